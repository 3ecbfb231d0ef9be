"""SecureBoost: gradient-boosted trees between parties that hold different columns of the same rows (V2, V3 (1) to (3)).

settings.py    the keys of the experiment file
gains.py       gradients in fixed point, what a split gains, which one wins
bins.py        a party's columns cut into bins, and the splits that it offers
histogram.py   sums by bin in the clear
sealed.py      the same on ciphertexts: packing, sisters by subtraction, several sums in a plaintext
nodes.py       which row stands where in the tree that is grown
records.py     what a party keeps of the trees
passive.py     what a party without the label is asked
active.py      what the party with the label is asked
inference.py   prediction between parties
files.py       a model as plain values, and back
protocol.py    the rounds, left of the link
words.py       texts about the scheme
scheme.py      the record of the scheme
"""

from fedatlas.vertical.boosting.files import export, loaded, outputs
from fedatlas.vertical.boosting.protocol import begin, grow, importance, infer, questions
from fedatlas.vertical.boosting.scheme import SECUREBOOST
from fedatlas.vertical.boosting.settings import SecureBoost, secureboost

__all__ = [
    "SECUREBOOST",
    "SecureBoost",
    "begin",
    "export",
    "grow",
    "importance",
    "infer",
    "loaded",
    "outputs",
    "questions",
    "secureboost",
]

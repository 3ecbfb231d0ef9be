"""SecureBoost: gradient-boosted trees over parties that hold different columns of the same rows (V2, V3).

settings.py    the keys of the experiment file
gains.py       gradients in fixed point, gains of splits, the best split
modes.py       the parties that take part in a level of a tree
goss.py        the rows with large gradients, and some of the others
bins.py        a party's columns cut into bins, and the splits that it offers
histogram.py   sums by bin in the clear
sealed.py      the same on ciphertexts: packing, subtraction of siblings, several sums in a plaintext
joint.py       additions on ciphertexts that several columns share
passive.py     answers of a party without the label
active.py      answers of the party with the label
inference.py   prediction by several parties
told.py        the rows that a party was told of while trees grew
guesses.py     what these tell of labels: attacks, for the report
protocol.py    the rounds, left of the link
words.py       texts about the scheme
scheme.py      the record of the scheme
"""

from fedatlas.vertical.boosting.gains import outputs
from fedatlas.vertical.boosting.protocol import begin, grow, infer, questions
from fedatlas.vertical.boosting.scheme import SECUREBOOST
from fedatlas.vertical.boosting.settings import SecureBoost, secureboost
from fedatlas.vertical.trees.files import export, loaded
from fedatlas.vertical.trees.importance import importance

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

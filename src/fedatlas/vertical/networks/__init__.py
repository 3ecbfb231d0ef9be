"""Split learning: networks of parties that hold different columns of the same rows, cut between them (V5).

settings.py     the keys of the experiment file
network.py      a party's network: scale, first weights, steps, the order of batches
letter_kinds.py the letters and their forms
passive.py      answers of a party without the label
active.py       answers of the party with the label
protocol.py     the rounds, left of the link
files.py        a model as plain values, and back
guesses.py      attacks on labels by the gradients that a party is sent
words.py        texts about the scheme
scheme.py       the record of the scheme
"""

from fedatlas.vertical.networks.scheme import SPLIT
from fedatlas.vertical.networks.settings import SplitLearning, split_learning

__all__ = ["SPLIT", "SplitLearning", "split_learning"]

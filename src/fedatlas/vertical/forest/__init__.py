"""Federated Forest: a random forest over parties that hold different columns of the same rows (V1).

settings.py     the keys of the experiment file
draws.py        the rows and the columns of a tree
coding.py       labels in whole numbers, and their secret code
splits.py       the best split of a node, in exact arithmetic
pruning.py      cost-complexity pruning
leaf_sets.py    prediction in one round
records.py      the trees as a party keeps them
passive.py      answers of a party without the label
active.py       answers of the party with the label, the master
files.py        a model as plain values, and back
letter_kinds.py the letters and their forms
protocol.py     the rounds, left of the link
words.py        texts about the scheme
scheme.py       the record of the scheme
"""

from fedatlas.vertical.forest.scheme import FEDERATED_FOREST
from fedatlas.vertical.forest.settings import FederatedForest, federated_forest

__all__ = ["FEDERATED_FOREST", "FederatedForest", "federated_forest"]

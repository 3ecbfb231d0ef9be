"""Split learning and hybrid federation: networks cut between parties that hold different columns of the same rows (V5).

settings.py     the keys of the experiment file
network.py      a party's network: scale, first weights, steps, the order of batches
letter_kinds.py the letters and their forms
passive.py      answers of a party without the label
active.py       answers of the party with the label
protocol.py     the rounds of split learning, left of the link
hybrid_parties.py   answers about columns that all parties have, and rows that one party has
hybrid_protocol.py  the rounds of hybrid federation
files.py        a model as plain values, and back
guesses.py      attacks on labels by the gradients that a party is sent
words.py        texts about the scheme
scheme.py       the records of the schemes
"""

from fedatlas.vertical.networks.scheme import HYBRID, SPLIT
from fedatlas.vertical.networks.settings import CutNetworks, hybrid, split_learning

__all__ = ["HYBRID", "SPLIT", "CutNetworks", "hybrid", "split_learning"]

"""Parties that hold different columns of the same rows: private alignment, and models trained between them.

parties.py    what a party holds, and what the alignment left in its state
letters.py    what parties tell each other through the coordinator
ids.py        ids as texts that can be compared; what is wrong with them
psi.py        points of a group in place of ids
align.py      private set intersection, as questions and generators
split.py      which aligned rows train, which judge
judging.py    what the active party says of its model
scheme.py     the record of a scheme
boosting/     SecureBoost
"""

from collections.abc import Mapping

from fedatlas.vertical.boosting import SECUREBOOST
from fedatlas.vertical.scheme import Scheme

SCHEMES: Mapping[str, Scheme] = {"secureboost": SECUREBOOST}
"""What ``[algorithm]`` can name where parties hold columns."""

LATER = ("hybrid", "split", "federated_forest", "private_ridge")
"""Schemes that are not in this version."""

"""Parties that hold different columns of the same rows: private alignment, and models that they train together.

parties.py    the data of a party, and its rows after alignment
letters.py    messages from party to party, carried by the coordinator
ids.py        ids as texts that can be compared, and how they differ
psi.py        points of a group in place of ids
elligator.py  ids as points of curve25519
align.py      private set intersection, as questions and generators
split.py      the split of aligned rows into training, validation and test
judging.py    the active party's figures of its model
owners.py     owners of rows: each splits its own, and judges by sums
scheme.py     the record of a scheme
trees/        parts of all schemes of trees
boosting/     SecureBoost
forest/       Federated Forest
networks/     split learning and hybrid federation
ridge/        private ridge regression, whose owners hold rows

`Parties` and the estimators are imported from `fedatlas.estimators` when they are first used.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from fedatlas.vertical.boosting import SECUREBOOST
from fedatlas.vertical.forest import FEDERATED_FOREST
from fedatlas.vertical.networks import HYBRID, SPLIT
from fedatlas.vertical.ridge import PRIVATE_RIDGE
from fedatlas.vertical.scheme import Scheme

SCHEMES: Mapping[str, Scheme] = {
    "secureboost": SECUREBOOST,
    "federated_forest": FEDERATED_FOREST,
    "split": SPLIT,
    "hybrid": HYBRID,
    "private_ridge": PRIVATE_RIDGE,
}
"""Schemes that ``[algorithm]`` can name if parties hold columns, or, as their `Scheme.layout` says, rows."""

_ESTIMATORS = {
    "Parties": "parties",
    "SecureBoostClassifier": "columns",
    "SecureBoostRegressor": "columns",
    "FederatedForestClassifier": "columns_forest",
    "FederatedForestRegressor": "columns_forest",
    "PrivateRidge": "ridge",
    "PrivateRidgeClassifier": "ridge",
}
"""Public name -> the module of the estimators that holds it."""


def __getattr__(name: str) -> Any:
    """Import an estimator on first use: estimators stand above everything that this room may know. AttributeError for other names."""
    if name not in _ESTIMATORS:
        raise AttributeError(f"module 'fedatlas.vertical' has no attribute '{name}'")
    found = globals()[name] = getattr(import_module(f"fedatlas.estimators.{_ESTIMATORS[name]}"), name)
    return found

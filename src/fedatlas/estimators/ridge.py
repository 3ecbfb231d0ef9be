"""Owners of rows that fit ridge regression privately, as scikit-learn estimators; all owners, engine and provider are simulated here."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Literal, Self

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data

from fedatlas import machine
from fedatlas.errors import ConfigError, DataError
from fedatlas.registry import arguments
from fedatlas.runs.columns_baselines import trained
from fedatlas.vertical.owners import side_of
from fedatlas.vertical.parties import Floats
from fedatlas.vertical.ridge import PRIVATE_RIDGE, numbers
from fedatlas.vertical.ridge.roles import ROLES, planned_of
from fedatlas.vertical.ridge.settings import Ridge, private_ridge

Owned = tuple[str, Floats, Floats]
"""An owner's name, and its rows and targets."""


class _PrivateRidge(BaseEstimator):  # type: ignore[misc]
    """The parameters and the training of both estimators."""

    def __init__(
        self,
        *,
        l2: float = 1.0,
        precision: int | Literal["auto"] = "auto",
        reveal: Literal["engine", "owners"] = "engine",
        key_bits: int = 2048,
    ) -> None:
        self.l2 = l2
        self.precision = precision
        self.reveal = reveal
        self.key_bits = key_bits

    @property
    def _how(self) -> Ridge:
        keys = {"l2": self.l2, "precision": self.precision, "reveal": self.reveal}
        bits: Any = self.key_bits
        if not isinstance(bits, (int, np.integer)):
            raise ConfigError(f"key_bits = {bits!r}: expected a whole number, such as 2048.")
        found: Ridge = private_ridge(**arguments("algorithm", private_ridge, keys))
        return found._replace(key_bits=int(bits), encrypted=True)

    def _owned(self, X: Any, y: Any, groups: Any) -> list[Owned]:
        """Return the rows and targets of each owner, in the order of `owners_`."""
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None.")
        tables = isinstance(X, (list, tuple)) and len(X) > 0 and all(np.ndim(one) == 2 for one in X)
        if tables:
            if groups is not None:
                raise ConfigError("groups= names the owners of rows of one table: leave it out with a list of tables.")
            X, y, groups = _together(X, y)
        numeric = isinstance(self, RegressorMixin)
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=numeric)
        groups = np.zeros(len(y), np.int64) if groups is None else column_or_1d(groups)
        check_consistent_length(X, groups)
        if lost := int(pd.isna(groups).sum()):
            raise DataError(f"groups names no owner for {lost:,} of {len(groups):,} rows: leave these rows out.")
        self.owners_ = np.unique(groups)
        self.n_owners_ = len(self.owners_)
        return [(str(one), X[groups == one], np.asarray(y)[groups == one]) for one in self.owners_]

    def _train(self, owned: Sequence[Owned], classes: int) -> None:
        how = self._how
        fixed, found, self.error_ = fitted(how, owned, classes)
        self.precision_ = fixed.precision
        self.coef_, self.intercept_ = found[:-1].T, found[-1]

    def _scores(self, X: Any) -> Floats:
        check_is_fitted(self, "coef_")
        x = validate_data(self, X, reset=False, dtype=np.float64)
        return np.asarray(x @ self.coef_.T + self.intercept_)


class PrivateRidge(RegressorMixin, _PrivateRidge):  # type: ignore[misc]
    """Ridge regression of rows that several owners hold; an engine adds up what they encrypt, and a crypto provider solves it masked.

    ``fit(tables, ys)`` takes a table and a target of each owner, with the same columns; ``fit(X, y, groups=owner)`` takes all rows in
    one table, and the owner of each. The coefficients are those of the rounded numbers exactly, however the rows are split.

    l2: lambda of ||X b - y||^2 + lambda ||b||^2; the intercept is not penalised. precision: bits after the point, from 8 to 52, or
    "auto", the most that the key has room for. reveal: "engine", or "owners" if only they are to learn the coefficients. key_bits: of
    Paillier's key, 2048, 3072 or 4096; shorter keys are for tests.

    Fitted: ``coef_`` (columns,), ``intercept_``, ``n_features_in_``, ``owners_`` (those in ``groups``, or the places in the list),
    ``precision_``, and ``error_``: rounding changes no prediction by more than this, in the label's unit, for rows whose values are no
    larger than those of training. Each owner finds such a bound from its own rows, and this is the least; infinite if none can.
    """

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Train. ``groups``: the owner of each row. PrivacyError for a key that is too short, DataError for columns that are not enough."""
        owned = self._owned(X, y, groups)
        self._train([(name, x, np.asarray(own, np.float64)) for name, x, own in owned], 0)
        self.coef_, self.intercept_ = self.coef_[0], float(self.intercept_[0])
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Return the number predicted for each row, (n,)."""
        return self._scores(X)


class PrivateRidgeClassifier(ClassifierMixin, _PrivateRidge):  # type: ignore[misc]
    """A classifier of the same kind: for each class one target, 1 in the class and -1 outside; of two classes, one target for both.

    The parameters are those of `PrivateRidge`. Fitted besides: ``classes_``; ``coef_`` is (1 or classes, columns). The class with the
    largest score is predicted, at a tie the first. Scores are no probabilities.
    """

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Train as `PrivateRidge`. ValueError for fewer than two classes. Warns of a class that an owner lacks."""
        owned = self._owned(X, y, groups)
        every = np.concatenate([own for _, _, own in owned])
        check_classification_targets(every)
        self.classes_ = np.unique(every)
        if len(self.classes_) < 2:
            raise ValueError("y has only one class: there is nothing to learn.")
        for name, _, own in owned:
            if lacking := [str(one) for one in self.classes_ if one not in own]:
                warnings.warn(f"owner '{name}' has no row of class '{lacking[0]}': others teach it.", stacklevel=2)
        codes = [(name, x, np.searchsorted(self.classes_, own).astype(np.float64)) for name, x, own in owned]
        self._train(codes, len(self.classes_))
        return self

    def decision_function(self, X: Any) -> np.ndarray:
        """Return the score of each class, (n, classes); of two classes that of the second, (n,)."""
        scores = self._scores(X)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict(self, X: Any) -> np.ndarray:
        """Return the class of each row, (n,)."""
        check_is_fitted(self, "coef_")
        scores = self.decision_function(X)
        places = (scores > 0).astype(np.int64) if scores.ndim == 1 else scores.argmax(axis=1)
        return np.asarray(self.classes_[places])


def _together(tables: Sequence[Any], ys: Any) -> tuple[Any, np.ndarray, np.ndarray]:
    """Return the rows of a list of tables, their targets, and the place of each row's table. DataError if they do not fit together."""
    if len(ys) != len(tables):
        raise DataError(f"{len(tables)} tables and {len(ys)} targets: give each owner's table its own.")
    tables = [one if hasattr(one, "shape") else np.asarray(one) for one in tables]
    first = tables[0]
    for k, (one, own) in enumerate(zip(tables, ys, strict=True)):
        if not len(one):
            raise DataError(f"owner {k} has no rows: leave its table out.")
        if len(one) != len(own):
            raise DataError(f"owner {k} has {len(one):,} rows and {len(own):,} targets: give each row one.")
        if one.shape[1] != first.shape[1] or [*getattr(one, "columns", ())] != [*getattr(first, "columns", ())]:
            raise DataError(f"owner {k} has other columns than owner 0: give all tables the same, in the same order.")
    groups = np.repeat(np.arange(len(tables)), [len(one) for one in tables])
    rows: Any = np.concatenate([np.asarray(one) for one in tables])
    if hasattr(first, "columns"):
        rows = pd.DataFrame(rows, columns=first.columns)
    return rows, np.concatenate([np.asarray(own) for own in ys]), groups


@machine.one_thread_an_operator()
def fitted(how: Ridge, owned: Sequence[Owned], classes: int) -> tuple[numbers.FixedPoint, Floats, float]:
    """Return the fixed point, (columns + 1, targets) coefficients, the intercept last, and the least of the owners' bounds."""
    side = side_of(owned, ROLES, classes=classes, workers=machine.cores())
    done = trained(side, PRIVATE_RIDGE, how, PRIVATE_RIDGE.fixed, "estimator")
    held = [done.state(k)["ridge"] for k in range(len(owned))]
    return planned_of(held[0]["plan"]), held[0]["coefficients"].numpy(), min(one["error"] for one in held)

"""The trained model of a finished run as a scikit-learn estimator over the run's raw columns. It needs no folder."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score

from fedatlas.errors import ConfigError
from fedatlas.prediction.finished_run import FinishedRun


class TrainedModel:
    """A finished run's common model with its preprocessing, which needs no folder and can be pickled."""

    def __init__(self, run: FinishedRun) -> None:
        run.named()  # ConfigError without a model of all clients
        self.run = run

    def __repr__(self) -> str:
        return f"<{self.run.config.algorithm.name}, {len(self.run.rows) - 1} rounds>"

    def __getstate__(self) -> dict[str, Any]:
        return {"run": self.run._replace(common=None), "state": self.run.named().save()}

    def __setstate__(self, kept: dict[str, Any]) -> None:
        run: FinishedRun = kept["run"]
        self.run = run._replace(common=run.filled(run.untrained(), kept["state"], "a pickled estimator"))

    def outputs(self, rows: Any) -> np.ndarray:
        """Return float64 (n, classes) probabilities, or (n,) predictions of a number."""
        table = self.run.predict(rows)
        columns = ["prediction"] if self.run.preprocess.task == "numbers" else list(table.columns[1:])
        found: np.ndarray = table[columns].to_numpy(np.float64)
        return found.reshape(-1) if self.run.preprocess.task == "numbers" else found

    def predictions(self, rows: Any) -> np.ndarray:
        """Return the class or the number that ``fedatlas predict`` gives each row."""
        return np.asarray(self.run.predict(rows)["prediction"].to_numpy())


class _Fitted(BaseEstimator):  # type: ignore[misc]
    """The trained model of a finished run as an estimator over the run's raw columns."""

    def __init__(self, trained: TrainedModel) -> None:
        self.trained = trained

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def fit(self, X: Any = None, y: Any = None) -> Self:  # noqa: ARG002
        """Do nothing: the model is trained."""
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Return what ``fedatlas predict`` gives each row: X is a DataFrame with the run's raw columns, or an array as it had."""
        return self.trained.predictions(X)

    @property
    def n_features_in_(self) -> int:
        """Number of raw columns, or of numbers in a row."""
        done = self.trained.run.preprocess
        return len(done.schema) or int(np.prod(done.shape))

    @property
    def feature_names_in_(self) -> np.ndarray:
        """Names of the raw columns; AttributeError for arrays."""
        if not (names := [column.name for column in self.trained.run.preprocess.schema]):
            raise AttributeError("the run's rows have no named columns.")
        return np.array(names, object)


class FittedClassifier(ClassifierMixin, _Fitted):  # type: ignore[misc]
    """A finished run's classifier; its classes are those of the run's target."""

    @property
    def classes_(self) -> np.ndarray:
        """The classes, in the order of `predict_proba`: as whole numbers or booleans, where all are written so."""
        return typed(self.trained.run.preprocess.class_names)

    def predict(self, X: Any) -> np.ndarray:
        """Return the class that ``fedatlas predict`` gives each row, as it stands in `classes_`."""
        known = dict(zip(self.trained.run.preprocess.class_names, self.classes_.tolist(), strict=True))
        return np.array([known[name] for name in self.trained.predictions(X)], self.classes_.dtype)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy on rows with the target ``y``, in whichever way its classes are written."""
        given = np.asarray(y)
        if given.dtype.kind not in "biuf" or self.classes_.dtype == object:
            given = typed([*map(str, given)]) if self.classes_.dtype != object else given.astype(str).astype(object)
        return float(accuracy_score(given, self.predict(X), sample_weight=sample_weight))

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probability of each class, (n, classes)."""
        return self.trained.outputs(X)


class FittedRegressor(RegressorMixin, _Fitted):  # type: ignore[misc]
    """A finished run's regressor, in the target's unit."""


def typed(names: Sequence[str]) -> np.ndarray:
    """Return classes, which a run keeps as texts, as the whole numbers or booleans that all of them are; else as texts."""
    if {*names} <= {"False", "True"}:
        return np.array([name == "True" for name in names])
    with contextlib.suppress(ValueError, OverflowError):
        if [str(int(name)) for name in names] == [*names]:
            return np.array([*map(int, names)], np.int64)
    return np.array(names, object)


def fitted(run: FinishedRun) -> FittedClassifier | FittedRegressor:
    """Return a finished run as an estimator. ConfigError for targets of token ids, and without a model of all clients."""
    if run.preprocess.task == "tokens":
        raise ConfigError("estimator() is for classes and numbers: use predict for texts.")
    return (FittedRegressor if run.preprocess.task == "numbers" else FittedClassifier)(TrainedModel(run))

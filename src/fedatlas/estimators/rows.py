"""Owners of rows as scikit-learn estimators. They hold the trained model and leave no folder behind."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data
from torch import nn

from fedatlas.api import Experiment
from fedatlas.errors import ConfigError
from fedatlas.estimators.parameters import free, merged, named, seed_of
from fedatlas.prediction.finished_run import load
from fedatlas.prediction.fitted import TrainedModel
from fedatlas.runs.ensure import ensure
from fedatlas.runs.finish import More
from fedatlas.setup.refusals import checked

JUDGED = 50  # rows used as the test set that every run needs; their figures are not used
ONLY_TRAIN = More(attacks=False, report=False, intervals=False)


class _Federated(BaseEstimator):  # type: ignore[misc]
    """The parameters and the training of both federated estimators."""

    def __init__(
        self,
        *,
        algorithm: str | Mapping[str, Any] = "fedavg",
        model: str | Mapping[str, Any] | nn.Module = "mlp",
        rounds: int = 20,
        clients: int = 5,
        epochs: int = 1,
        batch_size: int = 32,
        lr: float = 0.05,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        missing: str = "error",
        settings: Mapping[str, Any] | None = None,
        random_state: Any = None,
    ) -> None:
        self.algorithm = algorithm
        self.model = model
        self.rounds = rounds
        self.clients = clients
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.missing = missing
        self.settings = settings
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.missing == "median"
        tags.non_deterministic = False
        return tags

    def _checked(self, X: Any, y: Any = None) -> Any:
        """Return rows as a DataFrame, with the target if ``y`` is given, after the checks of scikit-learn."""
        finite = "allow-nan" if self.missing == "median" else True
        if isinstance(X, pd.DataFrame) and not all(map(pd.api.types.is_numeric_dtype, X.dtypes)):
            validate_data(self, X, reset=y is not None, skip_check_array=True)
            if y is None:
                return X
            check_consistent_length(X, y)
            return X, column_or_1d(y, warn=True)
        if y is None:
            return self._named(validate_data(self, X, reset=False, ensure_all_finite=finite))
        numeric = isinstance(self, RegressorMixin)
        X, y = validate_data(self, X, y, ensure_all_finite=finite, ensure_min_samples=2, y_numeric=numeric)
        return self._named(X), y

    def _given(self, X: Any, y: Any) -> Any:
        """Return checked rows and their target; ValueError without one."""
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None.")
        return self._checked(X, y)

    def _named(self, x: np.ndarray) -> pd.DataFrame:
        return pd.DataFrame(x, columns=getattr(self, "feature_names_in_", [f"x{i}" for i in range(x.shape[1])]))

    def _train(self, rows: pd.DataFrame, y: np.ndarray, groups: Any, task: str) -> None:
        """Train on rows with the target ``y`` (class ids or numbers), owned by ``groups``."""
        label, owner = free(rows.columns, "target"), free(rows.columns, "owner")
        table = rows.assign(**{label: y}).reset_index(drop=True)
        more: dict[str, Any] = {"partition": {"name": "iid", "clients": min(self.clients, len(rows))}}
        if groups is not None:
            check_consistent_length(rows, groups)
            table[owner] = np.asarray(groups)
            more = {"client": owner}
        own = self.model if isinstance(self.model, nn.Module) else None
        further = dict(self.settings or {})
        data = {
            "test": table[: min(len(table) - 1, JUDGED)],
            "label": label,
            "task": task,
            "missing": self.missing,
            **more,
        }
        asked = dict(further.pop("data", {}))
        if known := sorted(asked.keys() & {"name", "path", "client", *data}):
            raise ConfigError(f"settings: data.{known[0]} comes from fit's own arguments: leave it out.")
        experiment = Experiment.of(own, data=table, **data, **asked, **merged(self._tables(), further))
        with tempfile.TemporaryDirectory(prefix="fedatlas-") as folder:
            done = ensure(checked(experiment.config, experiment.module), Path(folder) / "run", ONLY_TRAIN)
            found = load(done.path, experiment.module)
            if found.common is None:
                raise ConfigError(
                    f"'{found.config.algorithm.name}' gives no model of all clients, and {type(self).__name__} keeps one model: choose "
                    "another algorithm, or run an Experiment and use load(RUN).predict(rows, client=0)."
                )
            self.run_ = TrainedModel(found)
        self.owners_ = None if groups is None else np.unique(table[owner])
        self.n_clients_ = int(done.summary["clients"])
        self.n_iter_ = int(done.summary["rounds"])

    def _tables(self) -> dict[str, Any]:
        """Return the tables of an experiment that the parameters define."""
        once = max(self.rounds, 1)
        local = {key: getattr(self, key) for key in ("epochs", "batch_size", "lr", "momentum", "weight_decay")}
        return {
            "seed": seed_of(self.random_state),
            "rounds": self.rounds,
            "algorithm": named(self.algorithm),
            **({} if isinstance(self.model, nn.Module) else {"model": named(self.model)}),
            "local": local,
            "evaluation": {"every": once},
            "checkpoint": {"every": once, "keep": 1},
            "engine": {"precision": "float64"},
        }


class FederatedClassifier(ClassifierMixin, _Federated):  # type: ignore[misc]
    """A classifier trained jointly by several owners of rows; simulated here.

    ``fit(X, y, groups=owner)`` makes each owner a client; without owners the rows are dealt to ``clients`` at random. In cross
    validation, give owners as ``params={"groups": owner}``, since ``groups=`` there is only for the splitter. X is an array or a
    DataFrame, whose text columns are categories. Numbers are standardised over all clients.

    algorithm, model: a name, or a mapping with the name and its keys, such as ``{"name": "fedprox", "mu": 0.1}``. A model may be a
    torch network. rounds: of communication. clients: number of clients for rows without owners. epochs, batch_size, lr, momentum,
    weight_decay: of local training. missing: "error", "drop" or "median". settings: further tables of an experiment, such as
    ``{"privacy": [...]}``. random_state: of every draw.

    Fitted: ``classes_``, ``n_features_in_``, ``n_clients_``, ``owners_`` (those in ``groups``; None if rows were dealt at random),
    ``n_iter_`` (rounds), and ``run_``, the trained model.
    """

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Train. ``groups``: the owner of each row. ValueError for fewer than two classes; ConfigError and DataError as in a run."""
        rows, y = self._given(X, y)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError("y has only one class: there is nothing to learn.")
        self._train(rows, codes, groups, "classes")
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probability of each class, (n, classes)."""
        check_is_fitted(self)
        return self.run_.outputs(self._checked(X))

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable class of each row, (n,)."""
        check_is_fitted(self)
        return np.asarray(self.classes_[self.predict_proba(X).argmax(axis=1)])


class FederatedRegressor(RegressorMixin, _Federated):  # type: ignore[misc]
    """A regressor trained jointly by several owners of rows; simulated here. The parameters are those of `FederatedClassifier`."""

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Train. ``groups``: the owner of each row. ConfigError and DataError as in a run."""
        rows, y = self._given(X, y)
        self._train(rows, np.asarray(y, np.float64), groups, "numbers")
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Return the number predicted for each row, (n,)."""
        check_is_fitted(self)
        return self.run_.outputs(self._checked(X))

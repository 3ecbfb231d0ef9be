"""Federated Forest as scikit-learn estimators."""

from __future__ import annotations

from typing import Any, Literal

from fedatlas.estimators.columns import ColumnsEstimator, OfClasses, OfNumbers


class _FederatedForest:
    """The parameters of both estimators."""

    scheme = "federated_forest"

    def __init__(
        self,
        *,
        trees: int = 100,
        depth: int = 10,
        features: Literal["sqrt"] | float = "sqrt",
        min_samples: int = 2,
        ccp_alpha: float = 0.0,
        label_party: str | None = None,
        random_state: Any = None,
    ) -> None:
        self.trees = trees
        self.depth = depth
        self.features = features
        self.min_samples = min_samples
        self.ccp_alpha = ccp_alpha
        self.label_party = label_party
        self.random_state = random_state


class FederatedForestClassifier(OfClasses, _FederatedForest, ColumnsEstimator):
    """A random forest that parties with different columns grow together; simulated here, as `Parties` holds all tables.

    ``fit(parties, y)`` grows the trees of ``fedatlas run``: the same rows, seed and keys give the same bits. Text columns are one 0/1
    column per category, at their owner; missing values need no care.

    trees ... ccp_alpha: the keys of ``[algorithm] name = "federated_forest"``. label_party: the party that holds y; None: the first.
    random_state: of every draw.

    Fitted: ``classes_``, ``n_features_in_``, ``importance_`` (party -> column -> gain), and ``run_``, the trained model.
    """


class FederatedForestRegressor(OfNumbers, _FederatedForest, ColumnsEstimator):
    """A regressor of the same kind. The parameters are those of `FederatedForestClassifier`."""

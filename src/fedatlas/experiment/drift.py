"""Whether the clients' models drift apart as their labels do (ALGORITHMS.md C12; the thesis' equations 3.7 and 3.8)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedatlas.algorithm import Ask, Update
from fedatlas.experiment.setup import Setup
from fedatlas.metrics.fairness import drift_correlation
from fedatlas.tree import Tree


class Drift:
    """Looks at the models that come back in a round; of a chain the first client's counts, the others' are not one client's work."""

    def __init__(self, setup: Setup) -> None:
        dataset = setup.dataset
        labels, clients = dataset.y_train.numpy(), setup.partition.clients
        self.shares = {
            k: np.bincount(labels[rows], minlength=dataset.classes) / len(rows)
            for k, rows in enumerate(clients)
            if len(rows)
        }
        self.like: Mapping[str, Any] = {}
        self.models: dict[int, np.ndarray] = {}

    def begin(self, like: Tree) -> None:
        """Forgets the last round. ``like``: the tensors that a whole model has."""
        self.like, self.models = {name: x.shape for name, x in like.items()}, {}

    def see(self, ask: Ask, client: int, update: Update) -> None:
        """Keeps the model in an update, where it holds a whole one that began with what the server sent."""
        model = update.get("model", {})
        own = ask.sender.get(client, client) == client
        if own and client in self.shares and {name: x.shape for name, x in model.items()} == self.like:
            self.models[client] = Tree(model).flatten().numpy().copy()

    def figure(self) -> float | None:
        """Spearman's rank correlation over the pairs of clients; None for fewer than three."""
        seen = sorted(self.models)
        if len(seen) < 3:
            return None
        return drift_correlation(np.stack([self.models[k] for k in seen]), np.stack([self.shares[k] for k in seen]))

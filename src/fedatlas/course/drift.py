"""Whether the clients' models drift apart as their labels do (C12; the thesis' equations 3.7 and 3.8)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from fedatlas.algorithm import Task, Update
from fedatlas.federation.link import Observer, Request
from fedatlas.metrics.fairness import drift_correlation
from fedatlas.setup.assembly import Setup
from fedatlas.tree import Tree


class Drift(Observer):
    """Looks at the models that come back in a round; of a chain the first client's counts, the others' are not one client's work."""

    def __init__(self, setup: Setup) -> None:
        dataset = setup.dataset
        labels, clients = dataset.train.y.numpy(), setup.partition.clients
        self.shares = {
            k: np.bincount(labels[rows], minlength=dataset.classes) / len(rows)
            for k, rows in enumerate(clients)
            if len(rows)
        }
        self.tasks = setup.algorithm.tasks
        self.like: Mapping[str, Any] = {}
        self.models: dict[int, np.ndarray] = {}
        self.told: Tree | None = None  # what the last of them began with
        self.apart = False

    def begin(self, like: Tree) -> None:
        """Forgets the last round. ``like``: the tensors that a whole model has."""
        self.like, self.models = {name: x.shape for name, x in like.items()}, {}
        self.told, self.apart = None, False

    def opened(self, request: Request, update: Update) -> None:
        """Keeps the model in an update, where it holds a whole one that began with what the server sent.

        Where clients began with different ones (clusters, nodes of a graph) the distance is that of the starts, and there is no figure.
        """
        model, client, task = update.get("model", {}), request.client, self.tasks[request.what]
        if not isinstance(task, Task) or request.sender not in {None, client}:
            return
        if client in self.shares and {name: x.shape for name, x in model.items()} == self.like:
            self.models[client] = Tree(model).flatten().numpy().copy()
            told = Tree(task.sealing.base(request.message, update).get("model", {}))
            self.apart |= self.told is not None and not alike(told, self.told)
            self.told = told

    def figure(self) -> float | None:
        """Spearman's rank correlation over the pairs of clients; None for fewer than three, and for models that began apart."""
        seen = sorted(self.models)
        if len(seen) < 3 or self.apart:
            return None
        return drift_correlation(np.stack([self.models[k] for k in seen]), np.stack([self.shares[k] for k in seen]))


def alike(a: Tree, b: Tree) -> bool:
    """Whether two models are the same, in most cases by being the same tensors."""
    return a.keys() == b.keys() and all(x is b[name] or torch.equal(x, b[name]) for name, x in a.items())

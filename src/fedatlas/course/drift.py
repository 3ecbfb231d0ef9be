"""Correlation of distances between clients' models with those between their labels (C12; thesis, eq. 3.7 and 3.8)."""

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
    """Observe the models returned in a round.

    Of a chain only the first client's model counts, since later ones build on others' work.
    """

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
        self.told: Tree | None = None  # the model that the last of them began with
        self.apart = False

    def begin(self, like: Tree) -> None:
        """Forget the last round. ``like``: the tensors of a whole model."""
        self.like, self.models = {name: x.shape for name, x in like.items()}, {}
        self.told, self.apart = None, False

    def opened(self, request: Request, update: Update) -> None:
        """Keep the model of an update if it is whole and the client began with what the server sent.

        If clients began with different models (clusters, nodes of a graph), the distances would reflect where they
        began; `figure` is then None.
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
        """Return Spearman's rank correlation of the two distances over pairs of clients.

        None for fewer than three clients, for different starts, and if one distance is the same for all pairs.
        """
        seen = sorted(self.models)
        if len(seen) < 3 or self.apart:
            return None
        return drift_correlation(np.stack([self.models[k] for k in seen]), np.stack([self.shares[k] for k in seen]))


def alike(a: Tree, b: Tree) -> bool:
    """Return whether two models are equal; in most cases their tensors are the same objects."""
    return a.keys() == b.keys() and all(x is b[name] or torch.equal(x, b[name]) for name, x in a.items())

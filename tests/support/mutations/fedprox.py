"""Penalties that have no gradient, or another one."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedatlas.algorithm import Batch, Facts, Message, Network, State
from fedatlas.algorithms import ALGORITHMS
from mutations import Mutation, oracle, with_task
from test_vectors import fedprox_stops_where_it_must

RIGHT = ALGORITHMS["fedprox"]


def detached(
    model: Network, params: Mapping[str, Tensor], batch: Batch, message: Message, client: State, facts: Facts
) -> Tensor:
    away = sum(((x.detach() - message["model"][name]) ** 2).sum() for name, x in params.items())
    return model.loss(params, batch) + message["mu"] / 2 * away


def unsquared(
    model: Network, params: Mapping[str, Tensor], batch: Batch, message: Message, client: State, facts: Facts
) -> Tensor:
    away = sum(((x - message["model"][name]) ** 2).sum() for name, x in params.items())
    return model.loss(params, batch) + message["mu"] / 2 * torch.sqrt(away + 1e-12)  # the root has no gradient at 0


MUTATIONS = [
    Mutation(
        "fedprox",
        f"penalty {said}",
        with_task(RIGHT, direction=None, objective=objective),
        (oracle("fedprox", mu=1.0), fedprox_stops_where_it_must),
    )
    for said, objective in (("from detached tensors", detached), ("with an un-squared norm", unsquared))
]

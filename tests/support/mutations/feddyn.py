"""Four of six public FedDyns have one of these."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from fedatlas.algorithm import Algorithm, Batch, Facts, Message, Network, Round, State, Update, Work
from fedatlas.algorithms import ALGORITHMS
from mutations import Build, Check, Mutation, oracle, with_task
from test_feddyn import h_is_the_mean_of_the_duals
from test_vectors import feddyn_solves, feddyn_two_quadratics

RIGHT = ALGORITHMS["feddyn"]
Penalty = Callable[[Mapping[str, Tensor], Message, State], Tensor]


def reaches_the_optimum(build: Build) -> None:
    feddyn_solves(build, by_size=False, optimum=Fraction(-1, 8), m=2)


def away(w: Mapping[str, Tensor], message: Message) -> Tensor:
    return sum(((x - message["model"][name]) ** 2).sum() for name, x in w.items())  # type: ignore[return-value]


def along(w: Mapping[str, Tensor], client: State) -> Tensor:
    return sum((x * client["g_k"][name]).sum() for name, x in w.items())  # type: ignore[return-value]


def detached(w: Mapping[str, Tensor], message: Message, client: State) -> Tensor:
    w = {name: x.detach() for name, x in w.items()}
    return message["alpha"] / 2 * away(w, message) - along(w, client)


def no_linear_gradient(w: Mapping[str, Tensor], message: Message, client: State) -> Tensor:
    return message["alpha"] / 2 * away(w, message) - along({name: x.detach() for name, x in w.items()}, client)


def unsquared(w: Mapping[str, Tensor], message: Message, client: State) -> Tensor:
    root = torch.sqrt(away(w, message) + 1e-12)  # the root has no gradient at 0
    return message["alpha"] / 2 * root - along(w, client)


def with_penalty(penalty: Penalty) -> Build:
    """FedDyn with its two terms as an objective instead of a direction."""

    def objective(
        model: Network, w: Mapping[str, Tensor], batch: Batch, message: Message, client: State, facts: Facts
    ) -> Tensor:
        return model.loss(w, batch) + penalty(w, message, client)

    return with_task(RIGHT, direction=None, objective=objective)


def by_cohort(**parameters: Any) -> Algorithm:
    made = RIGHT(**parameters)

    def server_update(server: State, mean: Update, round: Round) -> State:
        return made.server_update(server, mean, round._replace(K=round.m))

    return made._replace(server_update=server_update)


def wrong_sign(**parameters: Any) -> Algorithm:
    made = RIGHT(**parameters)

    def settle(seen: Update, work: Work, message: Message, client: State, facts: Facts) -> State:
        assert made.tasks["train"].settle is not None
        after = made.tasks["train"].settle(seen, work, message, client, facts)
        return {"g_k": client["g_k"] + (client["g_k"] - after["g_k"])}

    return with_task(RIGHT, settle=settle)(**parameters)


CHECKS: tuple[Check, ...] = (oracle("feddyn", alpha=0.3), feddyn_two_quadratics, reaches_the_optimum)
MUTATIONS = [
    Mutation("feddyn", "both penalties from detached tensors", with_penalty(detached), CHECKS),
    Mutation("feddyn", "linear term from detached tensors", with_penalty(no_linear_gradient), CHECKS),
    Mutation("feddyn", "un-squared norm", with_penalty(unsquared), CHECKS),
    Mutation(
        "feddyn", "h divided by the cohort instead of all clients", by_cohort, (CHECKS[0], h_is_the_mean_of_the_duals)
    ),
    Mutation("feddyn", "dual with the wrong sign", wrong_sign, (*CHECKS, h_is_the_mean_of_the_duals)),
]

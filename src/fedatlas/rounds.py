"""Round generators: who is asked what, in which order. They do no I/O and are driven by `fedatlas.engine` or a transport."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from fedatlas.algorithm import Algorithm, Ask, Message, Replies, Round, RoundGenerator, State, Weights
from fedatlas.tree import Tree


def federated(algorithm: Algorithm, server: State, round: Round) -> RoundGenerator:
    """One round of the FedAvg family: broadcast, local work, weighted mean over those who returned, server step.

    If nobody returns, the round changes nothing (ALGORITHMS.md C11). Buffers go down with the message, come back averaged
    by the weights of the models (integers: the maximum) and skip the server step (C9).
    """
    replies = yield Ask(
        round.cohort,
        "train",
        messages(algorithm, server, round.cohort),
        "mean",
        weights_of(algorithm, round),
        round.budgets,
    )
    if replies.value is None:
        return server
    after = algorithm.server_update(server, replies.value, returned(round, replies))
    if "buffers" in replies.value:
        after = {**after, "buffers": replies.value["buffers"]}
    cast: State = cast_like(after, server)
    return cast


def messages(algorithm: Algorithm, server: State, cohort: tuple[int, ...]) -> dict[int, Message]:
    """The broadcast for each client, with the model's buffers where it has any."""
    buffers = {"buffers": server["buffers"]} if server.get("buffers") else {}
    return {k: {**algorithm.broadcast(server, k), **buffers} for k in cohort}


def weights_of(algorithm: Algorithm, round: Round) -> Callable[[tuple[int, ...]], Weights]:
    """The algorithm's weights as a function of who answered."""
    return lambda answered: algorithm.weigh(round._replace(cohort=answered))


def returned(round: Round, replies: Replies) -> Round:
    """The round as it came out: the cohort are those who answered."""
    return round._replace(cohort=replies.clients, loss=replies.loss)


def cast_like(value: Any, like: Any) -> Any:
    """``value`` with floating tensors in the precision they have in ``like`` (means arrive in float64)."""
    if isinstance(value, Tensor):
        return value.to(like.dtype) if isinstance(like, Tensor) and value.dtype != like.dtype else value
    if isinstance(value, dict):
        like = like if isinstance(like, dict) else {}
        cast = {key: cast_like(x, like.get(key)) for key, x in value.items()}
        return Tree(cast) if isinstance(value, Tree) else cast
    return value

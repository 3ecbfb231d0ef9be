"""The geometric median by sums only: the server never sees one client's change, so the sums can be masked.

====  ========================================  =======  ==================================================
x_k   local model of client k, kept by it       nu       least distance that counts
z     the server's point, first its own model   p_k      weights of the algorithm, as of its mean
====  ========================================  =======  ==================================================

    train: client k keeps x_k;  then near-1, near-2, ...
    near:  client k -> server: (x_k - z) / d_k and nu / d_k,  d_k = max(nu, ||x_k - z||), in a mean by p_k
           z <- z + nu * sum p_k (x_k - z) / d_k / sum p_k nu / d_k

Source: Pillutla, Kakade, Harchaoui, IEEE TSP 2022. B5. These are the steps of `aggregation.rules.geometric_median`. A direction has length
1 at most, so the bound on a masked value holds for any change. nu / d_k spans many powers of two, so it is sent as ``DIGITS`` digits.
A client that claims more rows, or sends other numbers than these, moves z as it likes: the sum shows nobody's part in it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedatlas.algorithm import (
    Algorithm,
    Answered,
    Ask,
    Data,
    Facts,
    Finished,
    Message,
    Network,
    Question,
    Round,
    RoundGenerator,
    State,
    Task,
    Work,
)
from fedatlas.errors import ProtocolError
from fedatlas.grammar import Asks, Form
from fedatlas.rounds import cast_like, messages, returned, updated, weights_of
from fedatlas.tree import Tree

NEAR = "near-1"
DIGITS, BASE = 5, 1 << 12
"""Digits of nu / d_k, each a multiple of 1 / BASE below 1: 60 bits in all."""


def by_sums(algorithm: Algorithm, nu: float, iterations: int) -> Algorithm:
    """Return an algorithm whose server takes the geometric median of its clients' models instead of their mean."""
    train, begin = algorithm.training(), algorithm.client_init
    steps = [f"near-{step + 1}" for step in range(iterations)]  # one task each: no sum is opened twice in a round
    near = {what: Question(partial(towards, nu, what == steps[-1]), stateful=True) for what in steps}
    return algorithm._replace(
        tasks={
            "train": train._replace(finish=partial(keep, train), sealing=train.sealing._replace(silent=True)),
            **near,
        },
        asks=Asks((Form("train", "sum", broadcast=True), *map(Form, steps))),
        client_init=begin or (lambda params, facts: {}),
        rounds=partial(rounds, nu, steps),
    )


def why_no_sums(algorithm: Algorithm) -> str:
    """Return why an algorithm has no geometric median by sums; "" if it has one."""
    own = (algorithm.rounds, algorithm.prepare, algorithm.groups, algorithm.clusters, algorithm.personal)
    train = algorithm.tasks.get("train") if len(algorithm.tasks) == 1 else None
    if not isinstance(train, Task) or train.shows or train.sums or train.settle or any(one is not None for one in own):
        return "its rounds are more than one training for one mean of models"
    return ""


def keep(train: Task, params: Tree, work: Work, message: Message, client: State, facts: Facts) -> Finished:
    """Keep the local model with its client, and send nothing."""
    if facts.buffers:
        raise ProtocolError("a geometric median by sums has no place for statistics of batch norm: use group norm.")
    update, state = train.finish(params, work, message, client, facts)
    if update.keys() != {"model"}:
        raise ProtocolError(f"a geometric median by sums is one of models, but clients send {', '.join(update)}.")
    return {}, {**state, "kept": update["model"]}


def towards(
    nu: float, last: bool, model: Network, data: Data, message: Message, client: State, session: Any
) -> Answered:
    """Send the direction from z to the kept model, and the inverse of its distance; forget the model after the last step."""
    away = Tree(client["kept"]).to(torch.float64) - Tree(message["model"]).to(torch.float64)
    d = max(nu, away.norm())
    state = {name: x for name, x in client.items() if name != "kept"} if last else client
    return {"towards": (away / d).to(torch.float32), "inverse": digits(nu / d)}, state, session


def rounds(nu: float, steps: Sequence[str], algorithm: Algorithm, server: State, round: Round) -> RoundGenerator:
    """Run a round: local work, then the steps, among those who answered all."""
    replies = yield Ask(round.cohort, "train", messages(algorithm, server, round.cohort), "sum", budgets=round.budgets)
    z = server["model"]
    for what in steps:
        told = {"model": cast_like(z, server["model"])}
        who = replies.clients
        replies = yield Ask(who, what, dict.fromkeys(who, told), "mean", weights_of(algorithm, round))
        if replies.value is None or not (inverse := value_of(replies.value["inverse"])):
            return server
        z = Tree(told["model"]).to(torch.float64) + Tree(replies.value["towards"]).to(torch.float64) * (nu / inverse)
    return updated(algorithm, server, replies._replace(value={"model": z}), returned(round, replies))


def digits(x: float) -> Tensor:
    """Return a number of (0, 1] in digits, the largest first, (DIGITS,)."""
    out = []
    for _ in range(DIGITS):
        digit = min(math.floor(x * BASE), BASE)
        out.append(digit / BASE)
        x = x * BASE - digit
    return torch.tensor(out, dtype=torch.float32)


def value_of(given: Tensor) -> float:
    """Return the number of a mean of digits."""
    return math.fsum(float(digit) / BASE**place for place, digit in enumerate(given))

"""FedProx: a proximal term keeps local work near the model it started from.

===  =====================================  ====  ===========================================================
w    local model                            w_t   model received this round (the anchor), in the message
mu   weight of (mu/2) ||w - w_t||^2         eta   ``local.lr``; eta mu >= 2 is refused (plain SGD): it diverges
===  =====================================  ====  ===========================================================

Source: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, MLSys 2020. H9. Clients are drawn uniformly and
averaged by samples, as in the authors' code (the paper draws by n_k/n and takes the plain mean). Stragglers' partial
work counts (``failures.straggler_policy``). Adaptive mu: raised by 0.1 when the cohort's training loss rises, lowered
by 0.1 after five falls in a row; the first round has no predecessor. A mu that has risen to 2 / eta ends the run.
"""

from __future__ import annotations

import math

from fedatlas.algorithm import (
    Algorithm,
    Card,
    Facts,
    Finished,
    Message,
    Models,
    Round,
    ServerFacts,
    State,
    Task,
    Update,
    Work,
    keep_model,
    take_mean,
)
from fedatlas.algorithms.penalty import penalty_check
from fedatlas.errors import DivergedError
from fedatlas.registry import Rate
from fedatlas.tree import Tree
from fedatlas.weighting import Weighting, weighting

LOSS = ", and its training loss in a sum (not yet masked)"
NO_LOSS = {"losses": 0.0, "examples": 0.0}


def fedprox(*, mu: Rate = 0.01, adaptive: bool = False, weights: Weighting = "samples") -> Algorithm:
    """Keeps each client near the model it received: for unlike clients and uneven work.

    w <- w - eta (g + lambda w + mu (w - w_t)).

    mu: weight of the proximal term (mu/2) ||w - w_t||^2; 0 = FedAvg.
    adaptive: from that value on, raise mu by 0.1 with the training loss and lower it by 0.1 after five falls in a row.
    """
    if mu == 0 and not adaptive:  # the term is skipped, so that the run equals FedAvg's bit for bit
        return Algorithm("fedprox", weigh=weighting(weights), card=Card("regularisation"))

    def direction(g: Tree, w: Tree, message: Message, client: State, facts: Facts) -> Tree:
        pull: Tree = message["mu"] * (w - message["model"])
        return g + pull

    def server_init(models: Models, facts: ServerFacts) -> State:
        return {**keep_model(models, facts), "mu": mu, "loss": float("inf"), "falls": 0}

    def server_update(server: State, mean: Update, round: Round) -> State:
        after = take_mean(server, mean, round)
        before = server["loss"]
        loss = mean["losses"] / mean["examples"] if mean["examples"] else math.nan
        falls = server["falls"] + 1 if loss < before < math.inf else 0
        now = server["mu"] + 0.1 if loss > before else server["mu"]
        if falls == 5:
            now, falls = max(now - 0.1, 0.0), 0
        return {**after, "mu": now, "loss": loss, "falls": falls}

    def start(message: Message, client: State, facts: Facts) -> Tree:
        if not facts.momentum and message["mu"] * facts.lr >= 2:
            raise DivergedError(
                f"mu has risen to {message['mu']:.1f}, and eta mu >= 2 drives w further from w_t in every step"
            )
        return Tree(message["model"])

    def finish(w: Tree, work: Work, message: Message, client: State, facts: Facts) -> Finished:
        losses = {"losses": work.loss * work.examples, "examples": float(work.examples)} if work.steps else NO_LOSS
        return {"model": w, **losses}, client

    watched = Task(direction=direction, start=start, finish=finish, sums=("losses", "examples"))
    return Algorithm(
        "fedprox",
        tasks={"train": watched if adaptive else Task(direction=direction)},
        server_init=server_init,
        broadcast=lambda server, client_id: {"model": server["model"], "mu": server["mu"]},
        server_update=server_update if adaptive else take_mean,
        weigh=weighting(weights),
        check=penalty_check(mu),
        refuses={"chain": "mu follows the loss of a whole cohort, which a chain lacks"} if adaptive else {},
        card=Card("regularisation", leaves=f"the local model{LOSS if adaptive else ''}"),
    )

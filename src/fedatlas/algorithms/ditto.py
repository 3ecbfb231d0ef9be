"""Ditto: FedAvg's model for everybody, and for each client a personal model that is pulled towards it.

=====  ==========================================  ========  ==================================================
w_t    global model received this round            v_k       client k's own model, kept on the client
lam    ``lam``: pull of v_k towards w_t            eta       ``local.lr``; eta lam < 2, else the step diverges
=====  ==========================================  ========  ==================================================

    v_k <- v_k - eta (grad F_k(v_k) + lam (v_k - w_t))     ``personal_epochs`` epochs (0: as many as the others)
    w   <- FedAvg's round, bit for bit

Source: Li, Hu, Beirami, Smith, ICML 2021, Algorithm 2. B12. lam = 0 is local training, lam -> infinity gives w_t. v_k begins
at the first model that the client receives. Both kinds of work of a round shuffle alike. Nothing of v_k leaves the client.
"""

from __future__ import annotations

from fedatlas.algorithm import (
    Algorithm,
    Ask,
    Card,
    Facts,
    Finished,
    Local,
    Message,
    Round,
    RoundGenerator,
    Route,
    Sealing,
    State,
    Task,
    Work,
)
from fedatlas.algorithms.penalty import penalty_check
from fedatlas.algorithms.whole_models import kept_model, whole_model
from fedatlas.grammar import Asks, Form
from fedatlas.registry import Count, Rate
from fedatlas.rounds import messages, returned, updated, weights_of
from fedatlas.tree import Tree
from fedatlas.weighting import Weighting, weighting


def ditto(*, lam: Rate = 0.1, personal_epochs: Count = 0, weights: Weighting = "samples") -> Algorithm:
    """Keeps a personal model for each client near the common one.

    w <- sum p_k w_k; v_k <- v_k - eta (g + lam (v_k - w_t)).

    lam: lambda, weight of the pull (lambda/2) ||v_k - w_t||^2; 0 = each personal model is trained on its own rows only.
    personal_epochs: epochs per round for a client's own model; 0 = as in [local].
    """

    def direction(g: Tree, v: Tree, message: Message, client: State, facts: Facts) -> Tree:
        pull: Tree = lam * (v - message["model"])
        return g + pull

    personal = Task(
        start=lambda message, client, facts: whole_model(client, "v"),
        direction=direction if lam else None,  # left out, so that the work equals local training's bit for bit
        finish=keep_model,
        sealing=Sealing(silent=True),
        options=Local(epochs=personal_epochs or None),
    )
    return Algorithm(
        "ditto",
        rounds=rounds,
        asks=Asks((Form("personal", "sum"), Form("train", handed="self"))),
        tasks={"train": Task(stateful=False), "personal": personal},
        client_init=lambda params, facts: {"v": params},
        weigh=weighting(weights),
        personal=lambda message, client: whole_model(client, "v"),
        check=penalty_check(lam),
        refuses={"model.bn.local": "it keeps a whole model with each client, its batch-norm layers included"},
        card=Card("personalisation", keeps="its own model"),
    )


def keep_model(v: Tree, work: Work, message: Message, client: State, facts: Facts) -> Finished:
    """Keep the client's own model with it, and send nothing."""
    return {}, kept_model(v, facts, "v")


def rounds(algorithm: Algorithm, server: State, round: Round) -> RoundGenerator:
    """Send the message once for both kinds of work; the global model's comes last, so that its losses are the round's."""
    sent = messages(algorithm, server, round.cohort)
    yield Ask(round.cohort, "personal", sent, "sum", budgets=round.budgets)
    at_hand = Route(sender={k: k for k in round.cohort})
    weights = weights_of(algorithm, round)
    replies = yield Ask(round.cohort, "train", sent, "mean", weights, round.budgets, route=at_hand)
    return updated(algorithm, server, replies, returned(round, replies))

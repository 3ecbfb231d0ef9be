"""The two baselines that bound every federation: all rows in one place, and each client alone.

``centralised`` trains on the union of the clients' rows with the batches of client 0, one model of each architecture.
Source: H0 (the thesis' theta_C). ``local_only`` never averages: each client keeps its own model; the
server's stays the initial one.
Neither sends messages: the rows are sent to the server once (H0), or nothing is sent (docs/decisions.md).
"""

from __future__ import annotations

from typing import Literal

from fedatlas.algorithm import (
    UNION,
    Algorithm,
    Ask,
    Budget,
    Card,
    Demands,
    Facts,
    Finished,
    Message,
    Round,
    RoundGenerator,
    State,
    Task,
    Work,
)
from fedatlas.algorithms import architectures
from fedatlas.algorithms.whole_models import kept_model, model_part, whole_model
from fedatlas.grammar import Asks, Form
from fedatlas.rounds import messages, updated, weights_of
from fedatlas.tree import Tree


def centralised(*, budget: Literal["auto", "epochs", "samples"] = "auto") -> Algorithm:
    """All rows in one place: the upper baseline of a federation.

    theta <- SGD on the union of all rows, from the same initial model.

    budget: work per round: as many rows as the federation's cohort processes ("auto" and "samples": E epochs if all
        take part and none is a straggler), or the epochs of [local] for any cohort ("epochs").
    """

    def rounds(algorithm: Algorithm, server: State, round: Round) -> RoundGenerator:
        share = {} if budget == "epochs" else {UNION: Budget(examples=round.examples)}
        union = round._replace(cohort=(UNION,), sizes={UNION: round.n}, budgets=share)
        after = {}
        for name, state in architectures.states(server).items():
            at, told = architectures.at(server, UNION, name), {UNION: model_part(state)}
            replies = yield Ask((UNION,), "train", told, "mean", weights_of(algorithm, union), share, architectures=at)
            after[name] = model_part(updated(algorithm, state, replies, union))
        return architectures.renewed(server, after)

    return Algorithm(
        "centralised",
        rounds=rounds,
        asks=Asks((Form("train", most="clients", to="union"),)),  # once an architecture
        server_init=architectures.begin,
        broadcast=architectures.told,
        models=architectures.models,
        demands=Demands(mixed=True),
        refuses={"compression": "it sends rows once and no updates"},
        card=Card("baseline", sends="rows", leaves="all rows, once: this is the baseline without privacy"),
    )


def local_only() -> Algorithm:
    """Each client alone: the lower baseline of a federation.

    w_k <- local SGD from client k's own last model; nothing is shared.
    """

    def finish(params: Tree, work: Work, message: Message, client: State, facts: Facts) -> Finished:
        return {}, kept_model(params, facts)

    def rounds(algorithm: Algorithm, server: State, round: Round) -> RoundGenerator:
        yield Ask(round.cohort, "train", messages(algorithm, server, round.cohort), "sum", budgets=round.budgets)
        return server

    return Algorithm(
        "local_only",
        rounds=rounds,
        asks=Asks((Form("train", "sum"),)),
        tasks={"train": Task(start=lambda message, client, facts: whole_model(client), finish=finish)},
        client_init=lambda params, facts: {"model": params},
        server_init=architectures.begin,
        broadcast=architectures.told,
        models=lambda server: {},  # the server has only the initial model
        personal=lambda message, client: whole_model(client),
        demands=Demands(mixed=True),
        refuses={"compression": "nothing leaves a client"},
        card=Card("baseline", keeps="its own model", leaves="nothing", sends="nothing"),
    )

"""FedDF: FedAvg for each architecture; then every mean learns from all local models' scores of unlabelled rows.

=====  ================================================  =======  ======================================================
x_g    global model of architecture (prototype) g        S_t^g    clients of the round whose models have architecture g
x_k    local model of client k                           d        public rows, without their labels
T      ``temperature``, 1 in the paper                   N        ``steps``: 10^4 local steps at most
=====  ================================================  =======  ======================================================

    client k of S_t^g:  x_k <- LocalTrain(x_g)
    x_g <- sum over S_t^g of p_k x_k,  p_k = n_k / sum n_j                                       FedAvg, prototype by prototype
    teacher(x) = (1/m) sum over ALL clients of the round of f_k(x)                               mean logits (AVGLOGITS)
    x_g <- Adam on mean KL(softmax(teacher / T) || softmax(f_g / T)) over d,  N steps at most, until ``patience`` steps bring no
           lower loss on a held-out tenth of d; the best is kept, or x_g as it was if nothing is better

Source: Lin, Kong, Stich, Jaggi, NeurIPS 2020, Algorithms 1 and 3. B9. Adam, rate 1e-3 (constant; the paper's is
annealed), batches of 128, no weight decay. The loss is judged after every pass over d; ``passes`` bounds the work where d is small (100
passes, a tenth of them without gain), which from 12,800 rows on says no more than ``steps``. With 0 steps this is FedAvg, bit for bit.

steps: N, most steps of a model's distillation in a round; 0 = none, which is FedAvg.
patience: steps without a lower loss on the held-out public rows that end a distillation.
passes: most passes over the public rows in a distillation; a tenth of them without a lower loss also end it.
temperature: T, which divides the class scores; a larger T gives unlikely classes more weight.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from typing import Any

from fedatlas.aggregation import reducers
from fedatlas.algorithm import (
    SERVER,
    Algorithm,
    Answered,
    Ask,
    Card,
    Coefficients,
    Data,
    Demands,
    Local,
    Message,
    Network,
    Patience,
    Public,
    Question,
    Replies,
    Round,
    RoundGenerator,
    ServerFacts,
    Solver,
    State,
    Task,
    Update,
)
from fedatlas.algorithms import architectures
from fedatlas.algorithms.distillation import WHOLE_MODELS, distance, fitting, scores_of
from fedatlas.algorithms.whole_models import model_part
from fedatlas.grammar import Asks, Form
from fedatlas.registry import Count, Positive, Whole
from fedatlas.rounds import cast_like, messages, returned, updated
from fedatlas.weighting import Weighting, weighting

BATCH, HELD_OUT = 128, 0.1
ADAM = Solver("adam", lr=1e-3, batch_size=BATCH)


def feddf(
    *,
    steps: Count = 10_000,
    patience: Whole = 1_000,
    passes: Whole = 100,
    temperature: Positive = 1.0,
    weights: Weighting = "samples",
) -> Algorithm:
    """Averages models of one architecture, then teaches each the mean scores of all models on public rows.

    x_g <- sum p_k x_k; then x_g <- the mean logits of all x_k, on public rows.
    """
    stops = Patience(max(passes // 10, 1), patience, HELD_OUT)
    server_side = Local(passes, steps, weight_decay=0.0, patience=stops, public=Public(targets="teacher"), solver=ADAM)
    distil = Task(objective=fitting(distance("kl", temperature)), options=server_side, stateful=False)

    def notices(server: State, facts: ServerFacts) -> list[str]:
        return used(facts["public"], steps, passes) if steps else []

    itself = (Form(what, "each", most="clients", to="server") for what in ("score", "distil"))
    keys = ("patience", "passes", "temperature")
    idle = {} if steps else {f"algorithm.{key}": "steps = 0 leaves the distillation out" for key in keys}

    def rounds(algorithm: Algorithm, server: State, round: Round) -> RoundGenerator:
        sent = messages(algorithm, server, round.cohort)
        replies = yield Ask(round.cohort, "train", sent, "each", budgets=round.budgets)
        if not replies.clients:
            return server
        after = {name: averaged(algorithm, server, replies, name, round) for name in architectures.states(server)}
        if steps:
            after = yield from distilled(server, after, replies)
        return architectures.renewed(server, after)

    return Algorithm(
        "feddf",
        rounds=rounds,
        asks=Asks((Form("train", "each"), *itself)),
        tasks={"train": Task(shows=("model",)), "score": SCORE, "distil": distil},
        server_init=architectures.begin,
        broadcast=architectures.told,
        weigh=weighting(weights),
        models=architectures.models,
        demands=Demands(classes=True, mixed=True, public={"from": "test", "per_class": 20}, public_labels=False),
        refuses=WHOLE_MODELS,
        ruled=True,
        card=Card(
            "distillation",
            leaves="the local model, which the server sees client by client",
            unused=idle,
            notices=notices,
        ),
    )


def scores(model: Network, data: Data, message: Message, client: State, session: Any) -> Answered:
    """Return f_k(x) of the public rows in their order, (rows, classes)."""
    return scores_of(model, data, message["model"]), client, session


SCORE = Question(scores, data="public", passes=1.0)


def averaged(algorithm: Algorithm, server: State, replies: Replies, name: str, round: Round) -> State:
    """Return FedAvg's step of one architecture, from its clients' local models; unchanged without any, or with too few for a rule."""
    mine = tuple(k for k in replies.clients if architectures.owner(server, k) == name)
    state = model_part(architectures.states(server)[name])
    if not mine:
        return state
    share: Coefficients = algorithm.weigh(round._replace(cohort=mine))  # type: ignore[assignment]  # one part: models
    value = reducers.averaged(replies, {k: replies.each[k] for k in mine}, share, state, f"architecture {name}")
    mean = replies._replace(clients=mine, value=value)
    return updated(algorithm, state, mean, returned(round, mean))


def distilled(
    server: State, students: Mapping[str, State], replies: Replies
) -> Generator[Ask, Replies, dict[str, State]]:
    """Return the means after learning from the mean logits of all local models. The server does this work: no bytes.

    Under a rule it combines the logits. With too few models for it nothing is learnt.
    """
    heard = dict[int, Update]()
    for k in replies.clients:
        told, of = {SERVER: replies.each[k]}, architectures.at(server, SERVER, architectures.owner(server, k))
        scored = yield Ask((SERVER,), "score", told, "each", architectures=of)
        heard[k] = scored.each[SERVER]
    found = reducers.averaged(replies, heard, dict.fromkeys(heard, 1 / len(heard)), {}, "scores")
    if found is None:
        return dict(students)
    after, like = dict[str, State](), next(iter(replies.each.values()))["model"]
    teacher = {"teacher": cast_like(found["scores"], next(iter(like.values())))}
    for name, student in students.items():
        at = architectures.at(server, SERVER, name)
        got = yield Ask((SERVER,), "distil", {SERVER: {**student, **teacher}}, "each", architectures=at)
        after[name] = {**student, **model_part(got.each[SERVER])}
    return after


def used(public: int, steps: int, passes: int) -> list[str]:
    """List the notices about the number of public rows."""
    rows = public - max(math.floor(HELD_OUT * public + 0.5), 1)
    if rows < 1:
        return []
    most = min(steps, passes * math.ceil(rows / BATCH))
    return [
        f"'feddf' distils on {rows} of {public} public rows, at most {most} steps per round (algorithm.passes, steps)."
    ]

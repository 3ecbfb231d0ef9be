"""FedMD: clients with models of their own design learn from each other's class scores on public rows; no model is sent.

====  =====================================================  =======  ====================================================
f_k   client k's own model, kept on the client: its scores   D_0      public rows, known to all; the start uses their labels
      (logits) of a row are f_k(x)                           d_j      ``rows`` of them, redrawn each round
m     clients of this round                                  T        ``temperature`` of ``digest = "kl"``
====  =====================================================  =======  ====================================================

    once:  f_k <- ``start_epochs`` epochs on D_0; then D_k until 3 epochs bring no lower training loss, ``private_epochs`` at most
    round: score    client k -> server: f_k(x) for x in d_j
           consensus  f~(x) = (1/m) sum_k f_k(x)                   server -> clients
           digest   f_k <- ``digest_epochs`` epochs of  l1: mean |f_k - f~|    l2: mean (f_k - f~)^2
                                                        kl: mean over rows of KL(softmax(f~ / T) || softmax(f_k / T))
           revisit  f_k <- ``revisit_epochs`` epochs on D_k, as ``[local]`` says

Source: Li, Wang, NeurIPS 2019 workshop on federated learning, Algorithm 1. B8. Start and digest: Adam, rate 1e-3, batches of
256, fewer where a pass would not make 19 steps (as 5,000 rows do), without weight decay. Rows in batches are shuffled alike in digest and
revisit. The consensus is uniform and the server sees a mean only; the paper's c_k = 1/m. A straggler revisits with its own epochs.

digest: distance between a client's scores and the consensus: mean absolute or squared difference, or KL.
temperature: with digest "kl": T, which divides the scores; a larger T gives unlikely classes more weight.
rows: public rows that are scored and digested in a round; all if there are fewer.
digest_epochs: epochs on these rows in a round.
revisit_epochs: epochs on the client's own rows in a round, after the digest.
start_epochs: epochs on the labelled public rows before round 1; 0 = none.
private_epochs: most epochs on the client's own rows before round 1; three without a lower loss end it; 0 = none.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

from fedatlas.algorithm import (
    Algorithm,
    Answered,
    Ask,
    Budget,
    Card,
    Data,
    Demands,
    Facts,
    Finished,
    Local,
    Message,
    Models,
    Network,
    Patience,
    Public,
    Question,
    Round,
    RoundGenerator,
    Sealing,
    ServerFacts,
    Solver,
    State,
    Task,
    Work,
)
from fedatlas.algorithms.distillation import WHOLE_MODELS, distance, fitting, scores_of
from fedatlas.algorithms.whole_models import kept_model, whole_model
from fedatlas.grammar import Asks, Form
from fedatlas.registry import Count, Positive, Whole
from fedatlas.rounds import cast_like, weights_of
from fedatlas.tree import Tree
from fedatlas.weighting import weighting

BATCH, STEPS, RATE, WITHOUT_GAIN = 256, 19, 1e-3, 3
REFUSES = {
    "compression": "its clients send class scores of public rows and not a change of a model",
    **WHOLE_MODELS,
}


def fedmd(
    *,
    digest: Literal["l1", "l2", "kl"] = "l1",
    temperature: Positive = 1.0,
    rows: Whole = 5000,
    digest_epochs: Whole = 1,
    revisit_epochs: Whole = 2,
    start_epochs: Count = 20,
    private_epochs: Count = 50,
) -> Algorithm:
    """Clients with any networks agree on class scores of public rows; no model is sent.

    f~ = (1/m) sum f_k on public rows; f_k <- f~ by ``digest``, then its own rows again.
    """

    def server_init(models: Models, facts: ServerFacts) -> State:
        like = next(iter(next(iter(models.values())).values()))
        return {"consensus": like.new_empty(0)}

    return Algorithm(
        "fedmd",
        rounds=partial(learn, revisit_epochs),
        prepare=partial(set_up, {"start": start_epochs, "private": private_epochs}),
        asks=Asks(
            (Form("score"), Form("digest", "sum"), Form("train", "sum", epochs=revisit_epochs)),
            (Form("start", "sum"), Form("private", "sum")),
        ),
        tasks={
            "train": OWN,
            "start": OWN._replace(options=LEARN._replace(epochs=start_epochs, public=Public())),
            "private": OWN._replace(options=Local(private_epochs, patience=Patience(WITHOUT_GAIN))),
            "score": Question(scores, data="public", rows=rows, stateful=True, passes=1.0),
            "digest": OWN._replace(
                objective=fitting(distance(digest, temperature)),
                options=LEARN._replace(epochs=digest_epochs, public=Public(rows, "consensus")),
            ),
        },
        server_init=server_init,
        client_init=lambda params, facts: {"model": params},
        broadcast=lambda server, client_id: {},
        weigh=weighting("uniform"),
        ruled=True,
        models=lambda server: {},
        personal=lambda message, client: whole_model(client),
        demands=Demands(classes=True, mixed=True, public={"from": "test", "per_class": 20}),
        refuses=REFUSES,
        card=Card(
            "distillation",
            keeps="its own model",
            leaves="its model's class scores of public rows, in a mean (summed, not yet masked)",
            unused=unused(digest),
            notices=lambda server, facts: used(facts["public"], rows),
            excluded_laws={
                "fixed_point": "where all models agree, only a rounding error remains to be fitted. Adam divides by the "
                "gradient's size and takes full steps on it"
            },
        ),
    )


def silence(clients: tuple[int, ...]) -> dict[int, Message]:
    """Return empty messages: the clients have rows and models already."""
    return {k: {} for k in clients}


def keep(f: Tree, work: Work, message: Message, client: State, facts: Facts) -> Finished:
    """Keep the model with its client, and send nothing."""
    return {}, {**client, **kept_model(f, facts)}


def scores(model: Network, data: Data, message: Message, client: State, session: Any) -> Answered:
    """Return f_k(x) of the rows in their order, (rows, classes)."""
    return scores_of(model, data, client["model"], client.get("buffers", {})), client, session


OWN = Task(start=lambda message, client, facts: whole_model(client), finish=keep, sealing=Sealing(silent=True))
LEARN = Local(weight_decay=0.0, solver=Solver("adam", RATE, BATCH, STEPS))


def set_up(epochs: Mapping[str, int], algorithm: Algorithm, server: State, round: Round) -> RoundGenerator:
    """Train every client's model on the public rows, then on its own, before round 1."""
    for what, count in epochs.items():
        if count:
            yield Ask(round.cohort, what, silence(round.cohort), "sum")
    return server


def learn(revisit_epochs: int, algorithm: Algorithm, server: State, round: Round) -> RoundGenerator:
    """Run a round: score, consensus, digest, revisit."""
    asked = silence(round.cohort)
    replies = yield Ask(round.cohort, "score", asked, "mean", weights_of(algorithm, round))
    if replies.value is None:
        return server
    server = {**server, **cast_like({"consensus": replies.value["scores"]}, server)}
    told = {k: {"consensus": server["consensus"]} for k in replies.clients}
    yield Ask(replies.clients, "digest", told, "sum")
    budgets = {k: shorter(round.budgets.get(k), revisit_epochs) for k in replies.clients}
    yield Ask(replies.clients, "train", asked, "sum", budgets=budgets)
    return server


def unused(digest: str) -> Mapping[str, str]:
    """Name the keys without effect."""
    own = (
        "every training of FedMD has its own epochs (start_epochs, private_epochs, digest_epochs, revisit_epochs); "
        "it sets only a straggler's"
    )
    told = {"local.epochs": own, "local.steps": own}
    return (
        told if digest == "kl" else {**told, "algorithm.temperature": f"digest = '{digest}' compares unscaled scores"}
    )


def shorter(budget: Budget | None, epochs: int) -> Budget:
    """Return the revisit's budget: its epochs, or a straggler's epochs or steps if those are less."""
    if budget is None or budget.epochs is None:
        return Budget(epochs) if budget is None else budget
    return budget._replace(epochs=min(budget.epochs, epochs))


def used(public: int, rows: int) -> list[str]:
    """List the notices about the number of public rows."""
    if not public:
        return []
    size = min(BATCH, max(min(public, rows) // STEPS, 1))
    return [f"'fedmd' works on {min(public, rows)} of {public} public rows per round, in batches of {size}."]

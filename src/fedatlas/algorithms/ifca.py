"""IFCA: every client receives the models of all clusters, trains the one that fits its data best, and names it.

=======  ==========================================  =======  ================================================
theta_j  model of cluster j, of N = ``clusters``     F_k      mean loss over the rows of client k
j_k      cluster that client k picked                S_j      those of the cohort that picked j
=======  ==========================================  =======  ================================================

    client:  j_k = argmin_j F_k(theta_j), equals: the smallest;  w_k <- LocalTrain(theta_{j_k})
    model:     theta_j <- sum over S_j of n_k w_k / sum over S_j of n_k
    gradient:  theta_j <- theta_j + sum over S_j of n_k (w_k - theta_j) / sum over the cohort of n_k, with one exact gradient per client

Source: Ghosh, Chung, Yin, Ramchandran, NeurIPS 2020. B11. A cluster without picks keeps its model. The N models begin
apart, each drawn from the run's ``init`` stream; ``starts`` sets of them are tried for ``start_rounds`` rounds before round 1 and the run
goes on with the set of lowest training loss. The paper's means are uniform (``weights``).

clusters: N, number of models that clients choose from; 1 = FedAvg.
starts: sets of N initial models that are tried before round 1; the best is used; 1 = no trial.
start_rounds: rounds in which each of these sets is trained by all clients before it is judged.
average: the update of a cluster: the mean of its members' models, or one exact gradient each, by their share of the cohort.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch

from fedatlas.algorithm import (
    Algorithm,
    Answered,
    Ask,
    Card,
    Data,
    Demands,
    Facts,
    Finished,
    Message,
    Models,
    Network,
    Passes,
    Question,
    Replies,
    Round,
    RoundGenerator,
    Route,
    Sealing,
    ServerFacts,
    State,
    Task,
    Update,
    Work,
)
from fedatlas.algorithms import clusters as shared
from fedatlas.algorithms.gradients import shares_of
from fedatlas.algorithms.whole_models import whole_model
from fedatlas.grammar import Asks, Form
from fedatlas.registry import Whole
from fedatlas.rounds import cast_like, messages
from fedatlas.tree import Tree
from fedatlas.weighting import Weighting, weighting

TRAIN = Form("train", "each")
ONE_GRADIENT = {"local.epochs": 1, "local.batch_size": 0, "local.optimizer": "sgd", "local.momentum": 0.0}
ONE_START = {"algorithm.start_rounds": "there is one start"}
ONE_CLUSTER = dict.fromkeys(("algorithm.starts", "algorithm.start_rounds"), "there is one cluster")
CARD = Card(
    "clustering: multitask",
    leaves="the local model and the number of the cluster that fits it best; at the start also its loss",
)


def ifca(
    *,
    clusters: Whole = 2,
    starts: Whole = 5,
    start_rounds: Whole = 1,
    average: Literal["model", "gradient"] = "model",
    weights: Weighting = "samples",
) -> Algorithm:
    """Each client trains the model that fits it best, j_k = argmin_j F_k(theta_j): for a known number of groups."""
    starts = 1 if clusters == 1 else starts
    cost = Passes(survey=float(clusters))
    choose: dict[str, Any] = {"survey": best_fit, "passes": cost, "sealing": Sealing(picked_model)}

    def server_init(models: Models, facts: ServerFacts) -> State:
        drawn = [models["global"], *(models[str(i)] for i in range(1, clusters * starts))]
        further = [drawn[i : i + clusters] for i in range(clusters, len(drawn), clusters)]
        return {**shared.first_state(drawn[:clusters]), "starts": further}

    def rounds(algorithm: Algorithm, server: State, round: Round, turn: int = 0) -> RoundGenerator:
        sent, again = messages(algorithm, server, round.cohort), Route(visits=dict.fromkeys(round.cohort, turn))
        replies = yield Ask(round.cohort, "train", sent, "each", budgets=round.budgets, route=again)
        if not replies.clients:
            return server
        after = shared.renewed(server, replies, picked(replies), round.sizes, weights)
        if average == "gradient":
            after = damped(server, after, replies, weighting(weights)(round._replace(cohort=replies.clients)))
        return with_largest(after)

    def prepare(algorithm: Algorithm, server: State, round: Round) -> RoundGenerator:
        """Train every set of models for a while, and keep the one that fits best."""
        best, lowest = server, math.inf
        for further in [None, *server["starts"]]:
            tried = server if further is None else {**server, **shared.first_state(further)}
            for turn in range(start_rounds):
                tried = yield from rounds(algorithm, tried, round, turn)
            scored = yield Ask(round.cohort, "score", messages(algorithm, tried, round.cohort), "each")
            loss = mean_loss(scored, round)
            if loss < lowest:
                best, lowest = with_largest({**tried, "cluster": in_state(picked(scored))}), loss
        return {**best, "starts": []}

    return Algorithm(
        "ifca",
        rounds=rounds,
        prepare=prepare if starts > 1 else None,
        asks=Asks((TRAIN,), (TRAIN._replace(most=starts * start_rounds), Form("score", "each", most=starts))),
        tasks={
            "train": Task(start=from_picked, finish=say_which, shows=("model", "cluster"), **choose),
            "score": Question(say_loss, shows=("loss", "cluster"), passes=float(clusters)),
        },
        demands=Demands(inits=clusters * starts),
        server_init=server_init,
        broadcast=broadcast,
        models=shared.models,
        clusters=shared.assignment,
        personal=personal,
        ruled=True,
        fixes=ONE_GRADIENT if average == "gradient" else {},
        card=CARD._replace(unused=ONE_CLUSTER if clusters == 1 else ONE_START if starts == 1 else {}),
    )


def mean_loss(scored: Replies, round: Round) -> float:
    """Return the mean loss over the rows of the clients that answered; infinite if there are none."""
    n = sum(round.sizes[k] for k in scored.clients)
    return sum(round.sizes[k] * float(scored.each[k]["loss"]) for k in scored.clients) / n if n else math.inf


def broadcast(server: State, client_id: int) -> Message:
    """Return all models; ``cluster`` is the client's last pick, or the largest cluster before its first."""
    last = server["cluster"].get(str(client_id)) or shared.largest(server)
    return {"models": server["clusters"], "cluster": int(last), **shared.of_all(server)}


def personal(message: Message, client: State) -> Tree:
    """Return the model that the client picked last."""
    return whole_model(message["models"][str(message["cluster"])])


def with_largest(server: State) -> State:
    """Return the server with its largest cluster's model as the federation's.

    Models from different starts have no useful mean.
    """
    return {**server, **shared.of_all(server), **server["clusters"][shared.largest(server)]}


def best_fit(model: Network, data: Data, message: Message, client: State) -> Mapping[str, Any]:
    """Return the cluster whose model has the lowest mean loss over the client's rows, and that loss."""
    losses = []
    for own in message["models"].values():
        with torch.no_grad():
            pieces = [p._replace(extra={**p.extra, **own.get("buffers", {})}) for p in data.pieces()]
            shares = shares_of(pieces)
            losses.append(sum(float(model.loss(own["model"], p)) * s for p, s in zip(pieces, shares, strict=True)))
    cluster = min(range(len(losses)), key=losses.__getitem__)
    return {"cluster": cluster, "loss": losses[cluster]}


def from_picked(message: Message, client: State, facts: Facts) -> Tree:
    """Return the picked model, from which local work starts."""
    return whole_model(message["models"][str(facts.survey["cluster"])])


def picked_model(message: Message, update: Update) -> Models:
    """Return the reference of an update's change: the picked model."""
    return {"model": message["models"][str(update["cluster"])]["model"]} if "model" in update else {}


def say_which(y: Tree, work: Work, message: Message, client: State, facts: Facts) -> Finished:
    """Send the local model with the number of its cluster."""
    return {"model": y, "cluster": facts.survey["cluster"]}, client


def say_loss(model: Network, data: Data, message: Message, client: State, session: Any) -> Answered:
    """Send the loss of the best model, and its number."""
    found = best_fit(model, data, message, client)
    return {"loss": found["loss"], "cluster": found["cluster"]}, client, session


def picked(replies: Replies) -> dict[int, str]:
    """Map each client to the cluster it picked."""
    return {k: str(replies.each[k]["cluster"]) for k in replies.clients}


def in_state(names: Mapping[int, str]) -> dict[str, str]:
    """Return the names with string keys, as a server's state holds them."""
    return {str(k): name for k, name in names.items()}


def damped(before: State, after: State, replies: Replies, p: Mapping[int, float]) -> State:
    """Do gradient averaging: a cluster moves by the share of the cohort that picked it."""
    out = {}
    for name, own in after["clusters"].items():
        share = sum(p[k] for k, at in picked(replies).items() if at == name)
        old, new = before["clusters"][name]["model"], own["model"]
        moved = new if share == 1 else old + cast_like(share * (new.to(torch.float64) - old), old)
        out[name] = {**own, "model": moved}
    return {**after, "clusters": out}

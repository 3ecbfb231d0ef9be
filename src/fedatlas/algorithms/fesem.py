"""FeSEM: k-means of the clients' models; each client continues from its nearest centre.

====  =======================================  =======  ==========================================
W_k   model that client k returned             r_k      its centre: the nearest of N = ``clusters``
C_i   centre i, the model of cluster i         K        clients that returned
====  =======================================  =======  ==========================================

    client: W_k <- LocalTrain(C_{r_k})
    E:      r_k <- argmin_i |W_k - C_i|^2, equals: the smallest i
    M:      C_i <- mean of the W_k with r_k = i          both lower (1/K) sum_k |W_k - C_{r_k}|^2

Once, before round 1 (not with one cluster), every client trains w_0 for ``pretrain_epochs``. k-means++ draws first
centres among the returned models, and E and M are repeated until they converge; the best of five such draws is kept.
Source: Long, Xie, Shen, Zhou, Wang, Jiang, WWW Journal 2023 (Xie et al. 2020). G11. Distances are over all trainable tensors;
the authors cluster on one chosen tensor. A centre without members among those who returned keeps its value; one without any member at all
takes the model of the returned client that is farthest from its own centre. ``weights = "samples"`` counts clients by their examples.
"""

from __future__ import annotations

import numpy as np
import torch

from fedatlas.algorithm import (
    Algorithm,
    Ask,
    Card,
    Local,
    Models,
    Replies,
    Round,
    RoundGenerator,
    ServerFacts,
    State,
    Task,
)
from fedatlas.algorithms import clusters as shared
from fedatlas.algorithms.clusters import squared_distances
from fedatlas.algorithms.whole_models import whole_model
from fedatlas.errors import ConfigError
from fedatlas.grammar import Asks, Form
from fedatlas.registry import Whole
from fedatlas.rng import numpy_stream
from fedatlas.tree import Tree
from fedatlas.weighting import Weighting

DRAWS, STEPS = 5, 100  # draws of first centres; repetitions of E and M until they converge


TRAIN = Task(shows=("model",))


def fesem(*, clusters: Whole = 2, pretrain_epochs: Whole = 5, weights: Weighting = "uniform") -> Algorithm:
    """Assigns each client to the nearest of several models and averages within: for a known number of groups.

    r_k = argmin_i |W_k - C_i|; C_i <- mean of the W_k with r_k = i.

    clusters: N, number of centres; 1 = FedAvg.
    pretrain_epochs: epochs in which each client trains the initial model before round 1, to find the first centres.
    """

    def server_init(models: Models, facts: ServerFacts) -> State:
        return shared.first_state([models["global"]] * clusters)

    def em(server: State, replies: Replies, round: Round) -> State:
        """Do both steps with the returned models."""
        names = nearest(server, replies)
        return shared.whole_mean(shared.renewed(server, replies, names, round.sizes, weights))

    def rounds(algorithm: Algorithm, server: State, round: Round) -> RoundGenerator:
        sent = {k: algorithm.broadcast(server, k) for k in round.cohort}
        replies = yield Ask(round.cohort, "train", sent, "each", budgets=round.budgets)
        return em(server, replies, round) if replies.clients else server

    def prepare(algorithm: Algorithm, server: State, round: Round) -> RoundGenerator:
        if clusters > round.m:
            raise ConfigError(
                f"algorithm.clusters = {clusters}: only {round.m} clients hold rows; use at most that many clusters."
            )
        sent = {k: algorithm.broadcast(server, k) for k in round.cohort}
        replies = yield Ask(round.cohort, "pretrain", sent, "each")
        stream, found = numpy_stream(round.seed, "grouping", "centres"), list[tuple[float, State]]()
        for _ in range(DRAWS):
            drawn = seeds([replies.each[k]["model"] for k in replies.clients], clusters, stream)
            now: State = {**server, "clusters": {str(i): replies.each[replies.clients[j]] for i, j in enumerate(drawn)}}
            for _ in range(STEPS):
                before, now = now, em(now, replies, round)
                if now["cluster"] == before["cluster"]:
                    break
            found.append((objective(now, replies), now))
        return min(found, key=lambda pair: pair[0])[1]

    return Algorithm(
        "fesem",
        rounds=rounds,
        prepare=prepare if clusters > 1 else None,
        asks=Asks((Form("train", "each"),), (Form("pretrain", "each"),)),
        tasks={"train": TRAIN, "pretrain": TRAIN._replace(options=Local(epochs=pretrain_epochs))},
        server_init=server_init,
        broadcast=shared.of_client,
        models=shared.models,
        clusters=shared.assignment,
        personal=lambda message, client: whole_model(message),
        ruled=True,
        card=Card(
            "clustering: multitask",
            leaves="the local model, which the server sees client by client",
            unused={"algorithm.pretrain_epochs": "there is one cluster"} if clusters == 1 else {},
        ),
    )


def nearest(server: State, replies: Replies) -> dict[int, str]:
    """Do the E step, then find a member for every centre that has none."""
    clients, names = replies.clients, list(server["clusters"])
    centres = [server["clusters"][name]["model"] for name in names]
    far = squared_distances([replies.each[k]["model"] for k in clients], centres)
    own = {k: names[int(i)] for k, i in zip(clients, far.numpy().argmin(1), strict=True)}
    away = dict(zip(clients, far.min(1).values.tolist(), strict=True))
    for name in names:
        held = {**server["cluster"], **{str(k): c for k, c in own.items()}}
        if name not in held.values():
            alone = [k for k in clients if list(held.values()).count(own[k]) == 1]
            free = [k for k in clients if k not in alone]
            if free:
                own[max(free, key=lambda k: (away[k], -k))] = name
    return own


def objective(server: State, replies: Replies) -> float:
    """Return (1/K) sum_k |W_k - C_{r_k}|^2."""
    away = [
        squared_distances([replies.each[k]["model"]], [server["clusters"][server["cluster"][str(k)]]["model"]])
        for k in replies.clients
    ]
    return float(sum(away)) / len(away)


def seeds(models: list[Tree], count: int, stream: np.random.Generator) -> list[int]:
    """Draw k-means++ seeds: the first at random, each further one with probability ~ squared distance to the nearest seed."""
    drawn = [int(stream.integers(len(models)))]
    while len(drawn) < count:
        away = squared_distances(models, [models[i] for i in drawn]).min(1).values
        away[drawn] = 0.0
        rest = torch.ones_like(away)
        rest[drawn] = 0.0
        p = away if float(away.sum()) > 0 else rest
        drawn.append(int(stream.choice(len(models), p=(p / p.sum()).numpy())))
    return drawn

"""FedSGD, FedAvg and FedAvgM: the mean of the local models, with or without server momentum.

====  ==================================  ====  ==============================
w     global model ``server["model"]``    w_k   model returned by client k
p_k   weight of client k, sum 1           v     server momentum ``server["v"]``
eta   ``local.lr``                        eta_g ``server_lr``;  beta ``beta``
====  ==================================  ====  ==============================

Sources: McMahan et al., AISTATS 2017 (FedSGD, FedAvg); Hsu, Qi, Brown 2019 (FedAvgM). H1, H2, H5.
Weights are normalised over the clients that returned, although both original sources divide by all clients (C3).
"""

from __future__ import annotations

from fedatlas.algorithm import Algorithm, Card, Models, Round, ServerFacts, State, Update, keep_model
from fedatlas.registry import Decay, Rate
from fedatlas.weighting import Weighting, weighting


def fedavg(*, weights: Weighting = "samples") -> Algorithm:
    """Averages local models after some local epochs: the reference for all other algorithms.

    w <- sum p_k w_k after E local epochs.
    """
    return Algorithm("fedavg", weigh=weighting(weights), card=Card("averaging"))


def fedsgd(*, weights: Weighting = "samples") -> Algorithm:
    """One exact gradient per client and round: the slow reference for the others.

    w <- w - eta sum p_k grad F_k(w): one exact gradient per client and round.
    """
    fixes = {
        "local.epochs": 1,
        "local.batch_size": 0,
        "local.optimizer": "sgd",
        "local.momentum": 0.0,
        "local.nesterov": False,
    }
    return Algorithm("fedsgd", weigh=weighting(weights), fixes=fixes, card=Card("averaging"))


def fedavgm(*, server_lr: Rate = 1.0, beta: Decay = 0.9, weights: Weighting = "samples") -> Algorithm:
    """FedAvg with momentum on the server: steadier if few clients take part.

    Delta = sum p_k w_k - w;  v <- beta v + Delta;  w <- w + eta_g v.

    server_lr: eta_g, the server's learning rate: how much of the momentum v a round adds to the model.
    beta: share of the momentum v that is kept from round to round; 0 with server_lr = 1 is FedAvg.
    """

    def server_init(models: Models, facts: ServerFacts) -> State:
        return {**keep_model(models, facts), "v": models["global"].zeros()}

    def server_update(server: State, mean: Update, round: Round) -> State:
        w, v = server["model"], server["v"]
        v = beta * v + (mean["model"] - w)
        return {**server, "model": w + server_lr * v, "v": v}

    return Algorithm(
        "fedavgm",
        server_init=server_init,
        server_update=server_update,
        weigh=weighting(weights),
        card=Card("adaptive server update"),
    )

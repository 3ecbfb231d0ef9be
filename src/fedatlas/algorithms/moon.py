"""MOON: local features are drawn to the global model's and away from those of the client's own last model.

====  =============================  ========  ===========================================  ======  ===================
z     features of the local model    z_g, z_p  of the model received, of the client's last  mu      ``mu``
cos   cosine along the features      tau       ``temperature``                              w_prev  client's last model
====  =============================  ========  ===========================================  ======  ===================

    minimise  F_k(w) + mu mean over rows of l_con;   l_con = -log( e^{cos(z,z_g)/tau} / (e^{cos(z,z_g)/tau} + e^{cos(z,z_p)/tau}) )

Source: Li, He, Song, CVPR 2021. H12. z is the input of the last layer: the output of the projection head if there
is one (``model.projection = 256`` in the paper). z_g and z_p are computed without dropout and without gradient, and with
batch norm by the running statistics that local work has reached. A client's first participation has no term (the authors'
code compares clients that were never drawn with the random initial model). The server's part is FedAvg.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedatlas.algorithm import (
    Algorithm,
    Batch,
    Card,
    Demands,
    Facts,
    Finished,
    Message,
    Network,
    Passes,
    State,
    Task,
    Work,
)
from fedatlas.registry import Positive, Rate
from fedatlas.tree import Tensors, Tree
from fedatlas.weighting import Weighting, weighting


def contrast(z: Tensor, z_g: Tensor, z_p: Tensor, tau: float | Tensor) -> Tensor:
    """Return l_con of each row, (rows, h) three times -> (rows,): log(1 + e^{(cos(z, z_p) - cos(z, z_g)) / tau})."""
    between = torch.nn.functional.normalize(z_g, dim=-1) - torch.nn.functional.normalize(z_p, dim=-1)
    length = (z * z).sum(-1).clamp_min(1e-24).sqrt()  # one number per row, whereas z / |z| would have one per feature
    loss: Tensor = -torch.nn.functional.logsigmoid((z * between).sum(-1) / length / tau)
    return loss


def moon(*, mu: Rate = 1.0, temperature: Positive = 0.5, weights: Weighting = "samples") -> Algorithm:
    """Keeps a client's features near the global model's: for unlike clients and deep networks.

    Loss + mu mean(l_con); the mean of the local models becomes the global one.

    mu: weight of the contrastive term added to the loss; 0 = FedAvg.
    temperature: tau, which divides the cosines of features; a smaller tau sharpens the contrast.
    """
    if mu == 0:  # no term and no state, so that the run equals FedAvg's bit for bit
        nothing = {"algorithm.temperature": "mu = 0 omits the contrast"}
        return Algorithm("moon", weigh=weighting(weights), card=Card("regularisation", unused=nothing))

    def objective(model: Network, w: Tensors, batch: Batch, message: Message, client: State, facts: Facts) -> Tensor:
        z_g = model.features(message["model"], batch, frozen=True)
        z_p = model.features(client["previous"], batch, frozen=True)
        loss, z = model.loss_and_features(w, batch)
        term: Tensor = message["mu"] * client["seen"] * contrast(z, z_g, z_p, message["temperature"])
        return loss + term.mean()

    def client_init(params: Tree, facts: Facts) -> State:
        # 0 or 1 as a tensor of one number, so that new and known clients can share a step
        return {"previous": params, "seen": next(iter(params.values())).new_zeros(1)}

    def finish(w_k: Tree, work: Work, message: Message, client: State, facts: Facts) -> Finished:
        seen = client["seen"]
        return {"model": w_k}, {"previous": w_k, "seen": torch.ones_like(seen)} if work.steps else client

    return Algorithm(
        "moon",
        tasks={"train": Task(objective=objective, finish=finish, passes=Passes(step=5.0))},
        client_init=client_init,
        broadcast=lambda server, client_id: {"model": server["model"], "mu": mu, "temperature": temperature},
        weigh=weighting(weights),
        demands=Demands(features=True),
        card=Card("regularisation", keeps="its last local model"),
    )

"""FedAdagrad, FedAdam and FedYogi: a server optimiser that uses the mean update as a gradient.

=====  =====================================  ======  =========================================
w      global model                           Delta   sum p_k (w_k - w)
m, v   first and second moment on the server  tau     adaptivity floor (1e-3, not Adam's 1e-8)
eta_g  ``server_lr``                          beta1, beta2  decay of m, of v
=====  =====================================  ======  =========================================

    m <- beta1 m + (1 - beta1) Delta;   v by the method;   w <- w + eta_g m / (sqrt v + tau)

Source: Reddi et al., ICLR 2021, Algorithm 2. H5-H8. The squared quantity is Delta, not m (the authors'
answer to google-research/federated issue 41). v starts at tau^2; ``v_init="zero"`` as in the authors' runs. The paper
has no bias correction: it is off by default, and with ``bias_correction`` uses exponent t+1 with t from 0. Buffers
never pass through here (C9).

server_lr: eta_g, the server's learning rate: factor of m / (sqrt v + tau), the model's step in a round.
tau: adaptivity floor added to sqrt v, in units of a weight's change; a larger tau makes the rates of all weights more alike.
beta1: share of the moment m that is kept from round to round; 0 = no momentum.
beta2: share of the moment v that is kept from round to round; 1 - beta2 is the factor of the new square.
v_init: value of v before round 1: tau^2, as in the paper, or 0, as in the authors' runs.
bias_correction: rescale the steps of the first rounds as Adam does; the paper does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from fedatlas.algorithm import Algorithm, Card, Models, Round, ServerFacts, State, Update, keep_model
from fedatlas.registry import Decay, Positive, Rate
from fedatlas.weighting import Weighting, weighting

VInit = Literal["tau2", "zero"]


def fedopt(
    name: str,
    second_moment: Callable[[Tensor, Tensor], Tensor],
    server_lr: float,
    tau: float,
    beta1: float,
    beta2: float | None,
    v_init: VInit,
    bias_correction: bool,
    weights: Weighting,
) -> Algorithm:
    """Return one of the three, which differ only in ``second_moment(v, Delta^2)``."""

    def server_init(models: Models, facts: ServerFacts) -> State:
        w = models["global"]
        return {
            **keep_model(models, facts),
            "m": w.zeros(),
            "v": w.zeros().map(lambda x: x + (v_init == "tau2") * tau**2),
            "t": 0,
        }

    def server_update(server: State, mean: Update, round: Round) -> State:
        w, t = server["model"], server["t"] + 1
        delta = mean["model"] - w
        m = beta1 * server["m"] + (1 - beta1) * delta
        v = server["v"].map(second_moment, delta * delta)
        step = server_lr
        if bias_correction:
            step *= (1 - (beta2 or 0.0) ** t) ** 0.5 / (1 - beta1**t)
        return {
            **server,
            "model": w + step * m.map(lambda m_i, v_i: m_i / (v_i.sqrt() + tau), v),
            "m": m,
            "v": v,
            "t": t,
        }

    return Algorithm(
        name,
        server_init=server_init,
        server_update=server_update,
        weigh=weighting(weights),
        card=Card("adaptive server update"),
    )


def fedadagrad(
    *,
    server_lr: Rate = 0.1,
    tau: Positive = 1e-2,
    beta1: Decay = 0.0,
    v_init: VInit = "tau2",
    weights: Weighting = "samples",
) -> Algorithm:
    """FedAvg with Adagrad's step on the server: a rate per weight that shrinks as the weight moves.

    v <- v + Delta^2.
    """
    return fedopt("fedadagrad", torch.add, server_lr, tau, beta1, None, v_init, False, weights)


def fedadam(
    *,
    server_lr: Rate = 1e-2,
    tau: Positive = 1e-3,
    beta1: Decay = 0.9,
    beta2: Decay = 0.99,
    v_init: VInit = "tau2",
    bias_correction: bool = False,
    weights: Weighting = "samples",
) -> Algorithm:
    """FedAvg with Adam's step on the server: a rate per weight, with momentum.

    v <- beta2 v + (1 - beta2) Delta^2.
    """

    def adam(v: Tensor, square: Tensor) -> Tensor:
        return beta2 * v + (1 - beta2) * square

    return fedopt("fedadam", adam, server_lr, tau, beta1, beta2, v_init, bias_correction, weights)


def fedyogi(
    *,
    server_lr: Rate = 1e-2,
    tau: Positive = 1e-3,
    beta1: Decay = 0.9,
    beta2: Decay = 0.99,
    v_init: VInit = "tau2",
    bias_correction: bool = False,
    weights: Weighting = "samples",
) -> Algorithm:
    """FedAvg with Yogi's step on the server: like Adam, with gentler changes of the rates.

    v <- v - (1 - beta2) Delta^2 sign(v - Delta^2): additive, so v grows and shrinks by the same amount.
    """

    def yogi(v: Tensor, square: Tensor) -> Tensor:
        return v - (1 - beta2) * square * torch.sign(v - square)

    return fedopt("fedyogi", yogi, server_lr, tau, beta1, beta2, v_init, bias_correction, weights)

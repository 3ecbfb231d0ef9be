"""FedYogi: Reddi et al., ICLR 2021, Algorithm 2: v <- v - (1 - beta2) Delta^2 sign(v - Delta^2)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from oracles.fedopt import fedopt
from oracles.problem import Problem

CASES: list[dict[str, Any]] = [{}, {"beta2": 0.9, "bias_correction": True, "v_init": "zero"}]


def run(
    problem: Problem,
    *,
    server_lr: float = 1e-2,
    tau: float = 1e-3,
    beta1: float = 0.9,
    beta2: float = 0.99,
    v_init: str = "tau2",
    bias_correction: bool = False,
) -> dict[str, Any]:
    def yogi(v: Tensor, d: Tensor) -> Tensor:
        change = (1 - beta2) * d * d
        return torch.where(v > d * d, v - change, v + change)

    def correction(t: int) -> float:
        return math.sqrt(1 - beta2**t) / (1 - beta1**t) if bias_correction else 1.0

    return fedopt(
        problem,
        yogi,
        server_lr=server_lr,
        tau=tau,
        beta1=beta1,
        v0=tau * tau if v_init == "tau2" else 0.0,
        correction=correction,
    )

"""What FedAdagrad, FedAdam and FedYogi share: Reddi et al., ICLR 2021, Algorithm 2. Not an algorithm by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from oracles.fedavg import client_update
from oracles.problem import Problem


def fedopt(
    problem: Problem,
    second_moment: Callable[[Tensor, Tensor], Tensor],
    *,
    server_lr: float,
    tau: float,
    beta1: float,
    v0: float,
    weights: str = "samples",
    correction: Callable[[int], float] = lambda t: 1.0,
) -> dict[str, Any]:
    """Lines 1-15, coordinate by coordinate; ``second_moment(v, Delta)``; ``correction(t)`` scales step t = 1, 2, ... (1 in the paper)."""
    x = problem.w0
    m = torch.zeros_like(x)
    v = torch.full_like(x, v0)
    for number, cohort in problem.rounds():
        size = {k: problem.n[k] if weights == "samples" else 1 for k in cohort}
        delta = torch.zeros_like(x)
        for k in cohort:
            delta += size[k] / sum(size.values()) * (client_update(problem, number, k, x) - x)
        m = beta1 * m + (1 - beta1) * delta
        v = second_moment(v, delta)
        x = x + server_lr * correction(number) * m / (v**0.5 + tau)
    return {"model": x, "m": m, "v": v}

"""FedAdagrad: Reddi et al., ICLR 2021, Algorithm 2: v <- v + Delta^2, v_{-1} = tau^2, beta1 = 0."""

from __future__ import annotations

from typing import Any

from oracles.fedopt import fedopt
from oracles.problem import Problem

CASES: list[dict[str, Any]] = [{}, {"beta1": 0.5, "v_init": "zero", "weights": "uniform"}]


def run(
    problem: Problem,
    *,
    server_lr: float = 0.1,
    tau: float = 1e-2,
    beta1: float = 0.0,
    v_init: str = "tau2",
    weights: str = "samples",
) -> dict[str, Any]:
    v0 = tau * tau if v_init == "tau2" else 0.0
    return fedopt(problem, lambda v, d: v + d * d, server_lr=server_lr, tau=tau, beta1=beta1, v0=v0, weights=weights)

"""FedAdam: Reddi et al., ICLR 2021, Algorithm 2: v <- beta2 v + (1 - beta2) Delta^2. The paper has no bias correction."""

from __future__ import annotations

import math
from typing import Any

from oracles.fedopt import fedopt
from oracles.problem import Problem

CASES: list[dict[str, Any]] = [{}, {"tau": 1e-2, "bias_correction": True, "v_init": "zero"}]


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
    def correction(t: int) -> float:  # Kingma and Ba 2015, end of section 2: alpha_t of step t = 1, 2, ...
        return math.sqrt(1 - beta2**t) / (1 - beta1**t) if bias_correction else 1.0

    return fedopt(
        problem,
        lambda v, d: beta2 * v + (1 - beta2) * d * d,
        server_lr=server_lr,
        tau=tau,
        beta1=beta1,
        v0=tau * tau if v_init == "tau2" else 0.0,
        correction=correction,
    )

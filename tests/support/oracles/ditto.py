"""Ditto: Li, Hu, Beirami, Smith, ICML 2021, Algorithm 2: FedAvg, and for each client h_k(v; w_t) = F_k(v) + (lam/2) |v - w_t|^2.

The penalty stands in the objective, and autograd finds its gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from oracles.fedavg import average
from oracles.problem import Problem, gradient_of

CASES: list[dict[str, Any]] = [
    {},
    {"lam": 2.0, "personal_epochs": 3, "weights": "uniform"},
    {"lam": 0.0, "problem": {"momentum": 0.9, "decay": 0.95}},
]


def run(problem: Problem, *, lam: float = 0.1, personal_epochs: int = 0, weights: str = "samples") -> dict[str, Any]:
    w, v = problem.w0, dict[int, Tensor]()
    for number, cohort in problem.rounds():
        for k in cohort:
            v_k, velocity = v.get(k, w), torch.zeros_like(w)
            for x, y in problem.batches(number, k, personal_epochs or None):

                def h(u: Tensor, x: Tensor = x, y: Tensor = y, w_t: Tensor = w) -> Tensor:
                    return problem.loss(u, x, y) + lam / 2 * ((u - w_t) ** 2).sum()

                velocity = problem.momentum * velocity + gradient_of(h, v_k) + problem.weight_decay * v_k
                v_k = v_k - problem.rate(number) * velocity
            v[k] = v_k
        w = average(problem, number, cohort, w, weights)
    return {"model": w, "clients": {k: {"v": v_k} for k, v_k in v.items()}}

"""FedProx: Li et al., MLSys 2020, Algorithm 2: each client minimises h_k(w; w_t) = F_k(w) + (mu/2) ||w - w_t||^2.

The penalty stands in the objective here, and autograd finds its gradient. Clients are averaged by rows, as in the authors' code. Adaptive
mu (section 5.3.2): up by 0.1 when the loss of the cohort rises, down by 0.1 after it has fallen five times in a row.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from oracles.problem import Problem, gradient_of

CASES: list[dict[str, Any]] = [
    {},
    {"mu": 1.0},
    {"mu": 0.3, "adaptive": True},
    {"mu": 0.5, "problem": {"momentum": 0.9}},
    {"mu": 0.5, "adaptive": True, "problem": {"epochs": 3, "stragglers": True, "decay": 0.9}},
]


def local(
    problem: Problem, number: int, k: int, w_t: Tensor, mu: float, start: Tensor | None = None, first: int = 0
) -> tuple[Tensor, float, int]:
    """The local model, the sum of the training losses over the rows it saw, and how many those were."""
    w, velocity, losses, seen = w_t if start is None else start, torch.zeros_like(w_t), 0.0, 0
    for x, y in problem.batches(number, k, first=first):

        def h(v: Tensor, x: Tensor = x, y: Tensor = y) -> Tensor:
            return problem.loss(v, x, y) + mu / 2 * ((v - w_t) ** 2).sum()

        losses += len(y) * float(problem.loss(w, x, y))
        seen += len(y)
        velocity = problem.momentum * velocity + gradient_of(h, w) + problem.weight_decay * w
        w = w - problem.rate(number) * velocity
    return w, losses, seen


def run(problem: Problem, *, mu: float = 0.01, adaptive: bool = False) -> dict[str, Any]:
    w = problem.w0
    seen: list[float] = []
    falls = 0
    for number, cohort in problem.rounds():
        done = {k: local(problem, number, k, w, mu) for k in cohort}
        w = sum(problem.n[k] * done[k][0] for k in cohort) / sum(problem.n[k] for k in cohort)
        loss = sum(d[1] for d in done.values()) / sum(d[2] for d in done.values())
        seen.append(loss)
        if adaptive and len(seen) > 1:
            change = seen[-1] - seen[-2]
            mu += 0.1 * (change > 0)
            falls = (falls + 1) * (change < 0)
            if falls == 5:
                mu, falls = max(mu - 0.1, 0.0), 0
    return {"model": w, "mu": mu}

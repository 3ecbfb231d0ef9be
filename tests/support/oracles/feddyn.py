"""FedDyn: Acar et al., ICLR 2021, Algorithm 1.

theta_k = argmin L_k(theta) - <grad L_k(theta_k^{t-1}), theta> + alpha/2 ||theta - theta^{t-1}||^2. The penalised loss is written out,
and autograd finds its gradient. The paper's h sums over the clients that were active and is divided by m, the number of all clients.
``alpha_by_size``: alpha of client k is alpha times the mean size over its own size, as in the authors' code.
``variant="fedseq_code"``: the linear term is left out.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from oracles.problem import Problem, gradient_of

CASES: list[dict[str, Any]] = [
    {},
    {"alpha": 0.3},
    {"alpha": 0.1, "alpha_by_size": True},
    {"alpha": 0.1, "variant": "fedseq_code"},
    {"alpha": 0.1, "problem": {"momentum": 0.9, "lr": 0.02, "decay": 0.95}},
]


def local(
    problem: Problem, number: int, k: int, server: Tensor, linear: Tensor, alpha: float, first: int = 0
) -> Tensor:
    """Inexact minimisation of the penalised loss from the server's model."""
    theta, velocity = server, torch.zeros_like(server)
    for x, y in problem.batches(number, k, first=first):

        def penalised(v: Tensor, x: Tensor = x, y: Tensor = y) -> Tensor:
            return problem.loss(v, x, y) - linear @ v + alpha / 2 * ((v - server) ** 2).sum()

        velocity = problem.momentum * velocity + gradient_of(penalised, theta) + problem.weight_decay * theta
        theta = theta - problem.rate(number) * velocity
    return theta


def run(
    problem: Problem, *, alpha: float = 0.01, alpha_by_size: bool = False, variant: str = "paper"
) -> dict[str, Any]:
    m = len(problem.clients)
    mean_size = sum(problem.n.values()) / m
    theta = problem.w0
    h = torch.zeros_like(theta)
    gradient = {k: torch.zeros_like(theta) for k in problem.clients}  # the stored gradient of L_k at its last model
    for number, P in problem.rounds():
        found = {}
        for k in P:
            a = alpha * mean_size / problem.n[k] if alpha_by_size else alpha
            found[k] = local(problem, number, k, theta, gradient[k], a)
            if variant == "paper":
                gradient[k] = gradient[k] - a * (found[k] - theta)
        h = h - alpha * sum(found[k] - theta for k in P) / m
        theta = sum(found.values()) / len(P) - h / alpha
    seen = {k for P in problem.cohorts for k in P} if variant == "paper" else set()
    return {"model": theta, "h": h, "clients": {k: {"g_k": gradient[k]} for k in seen}}

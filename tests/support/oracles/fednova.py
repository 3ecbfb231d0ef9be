"""FedNova: Wang, Liu, Liang, Joshi, Poor, NeurIPS 2020, equations 6 to 8: x <- x - tau_eff sum p_i eta d_i, d_i = G_i a_i / ||a_i||_1.

The gradients G_i of a client's steps and the coefficients a_i with which its solver adds them up are kept one by one here.
"""

from __future__ import annotations

from typing import Any

import torch

from oracles.problem import Problem

CASES: list[dict[str, Any]] = [
    {},
    {"weights": "uniform"},
    {"mu": 0.5},
    {"problem": {"momentum": 0.9, "lr": 0.02}},
    {"mu": 0.5, "problem": {"epochs": 3, "stragglers": True, "decay": 0.9}},
    {"mu": 15.0, "problem": {"epochs": 3, "stragglers": True}},  # eta mu = 1.5: signs alternate
]


def local(problem: Problem, number: int, i: int, x0: torch.Tensor, mu: float) -> tuple[torch.Tensor, float]:
    """(G_i a_i, ||a_i||_1) of one client: SGD, with momentum, or with a proximal term."""
    G: list[torch.Tensor] = []
    a: list[float] = []
    velocity: list[float] = []  # how much of each gradient the momentum buffer holds
    x, eta = x0, problem.rate(number)
    for rows, labels in problem.batches(number, i):
        G.append(problem.gradient(x, rows, labels) + problem.weight_decay * x)
        velocity = [problem.momentum * v for v in velocity] + [1.0]
        a = [(1 - eta * mu) * c + v for c, v in zip([*a, 0.0], velocity, strict=True)]
        x = x0 - eta * sum(c * g for c, g in zip(a, G, strict=True))
    return sum(c * g for c, g in zip(a, G, strict=True)), sum(map(abs, a))


def run(problem: Problem, *, mu: float = 0.0, weights: str = "samples") -> dict[str, Any]:
    x = problem.w0
    for number, cohort in problem.rounds():
        size = {i: problem.n[i] if weights == "samples" else 1 for i in cohort}
        p = {i: s / sum(size.values()) for i, s in size.items()}
        done = {i: local(problem, number, i, x, mu) for i in cohort}
        tau_eff = sum(p[i] * done[i][1] for i in cohort)
        x = x - tau_eff * sum(p[i] * problem.rate(number) * done[i][0] / done[i][1] for i in cohort)
    return {"model": x}

"""FedAvg: McMahan, Moore, Ramage, Hampson, Aguera y Arcas, AISTATS 2017, Algorithm 1 (FederatedAveraging)."""

from __future__ import annotations

from typing import Any

import torch

from oracles.problem import Problem

CASES: list[dict[str, Any]] = [
    {},
    {"weights": "uniform"},
    {"problem": {"momentum": 0.9}},
    {"problem": {"epochs": 3, "stragglers": True, "decay": 0.9}},
]


def client_update(problem: Problem, number: int, k: int, w: torch.Tensor, first: int = 0) -> torch.Tensor:
    """ClientUpdate(k, w): E epochs of minibatch SGD; momentum, if any, begins at zero every time."""
    velocity = torch.zeros_like(w)
    for x, y in problem.batches(number, k, first=first):
        g = problem.gradient(w, x, y) + problem.weight_decay * w
        velocity = problem.momentum * velocity + g
        w = w - problem.rate(number) * velocity
    return w


def average(problem: Problem, number: int, cohort: tuple[int, ...], w: torch.Tensor, weights: str) -> torch.Tensor:
    """The weighted mean of the cohort's local models."""
    size = {k: problem.n[k] if weights == "samples" else 1 for k in cohort}
    total = torch.zeros_like(w)
    for k in cohort:
        total += size[k] * client_update(problem, number, k, w)
    return total / sum(size.values())


def run(problem: Problem, *, weights: str = "samples") -> dict[str, Any]:
    w = problem.w0
    for number, cohort in problem.rounds():
        w = average(problem, number, cohort, w, weights)
    return {"model": w}

"""MOON: Li, He, Song, CVPR 2021, Algorithm 1, lines 12 to 24. Without a previous local model there is no contrastive term."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from oracles.problem import Problem, gradient_of

CASES: list[dict[str, Any]] = [
    {},
    {"mu": 5.0, "temperature": 0.2},
    {"mu": 0.0},
    {"weights": "uniform", "problem": {"momentum": 0.9, "lr": 0.02, "decay": 0.95}},
]


def sim(a: Tensor, b: Tensor) -> Tensor:
    """Cosine similarity of each row."""
    return (a * b).sum(1) / (a.pow(2).sum(1).sqrt() * b.pow(2).sum(1).sqrt())


def contrastive(problem: Problem, v: Tensor, x: Tensor, w_t: Tensor, previous: Tensor, temperature: float) -> Tensor:
    """-log of the share that the global model's representation has beside the previous one's, the mean over rows."""
    z, z_glob, z_prev = (problem.features(p, x) for p in (v, w_t, previous))
    near = torch.exp(sim(z, z_glob) / temperature)
    far = torch.exp(sim(z, z_prev) / temperature)
    return -torch.log(near / (near + far)).mean()


def local(
    problem: Problem,
    number: int,
    k: int,
    w_t: Tensor,
    previous: Tensor | None,
    mu: float,
    temperature: float,
    start: Tensor | None = None,
    first: int = 0,
) -> Tensor:
    w, velocity = w_t if start is None else start, torch.zeros_like(w_t)
    for x, y in problem.batches(number, k, first=first):

        def loss(v: Tensor, x: Tensor = x, y: Tensor = y) -> Tensor:
            supervised = problem.loss(v, x, y)
            if previous is None:
                return supervised
            return supervised + mu * contrastive(problem, v, x, w_t, previous, temperature)

        velocity = problem.momentum * velocity + gradient_of(loss, w) + problem.weight_decay * w
        w = w - problem.rate(number) * velocity
    return w


def run(problem: Problem, *, mu: float = 1.0, temperature: float = 0.5, weights: str = "samples") -> dict[str, Any]:
    w = problem.w0
    previous: dict[int, Tensor] = {}
    for number, cohort in problem.rounds():
        done = {k: local(problem, number, k, w, previous.get(k), mu, temperature) for k in cohort}
        previous |= done
        size = {k: problem.n[k] if weights == "samples" else 1 for k in cohort}
        w = sum(size[k] * done[k] for k in cohort) / sum(size.values())
    kept = previous if mu else {}
    return {"model": w, "clients": {k: {"previous": p} for k, p in kept.items()}}

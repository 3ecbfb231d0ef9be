"""FedMD: Li and Wang, NeurIPS workshop 2019, Algorithm 1: every client its own network; what is averaged are scores of public rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from oracles.problem import Problem, Rows, gradient_of

CASES: list[dict[str, Any]] = [
    {},
    {"problem": {"several": True}},
    {"digest": "l2", "rows": 7, "digest_epochs": 2, "problem": {"several": True, "momentum": 0.9}},
    {"digest": "kl", "temperature": 2.0, "revisit_epochs": 1, "start_epochs": 0, "private_epochs": 2},
    {"revisit_epochs": 3, "start_epochs": 1, "private_epochs": 1, "problem": {"decay": 0.9}},
]

Criterion = Callable[[Problem, Tensor, Tensor, Tensor], Tensor]
"""(problem, model, x, targets) -> loss."""


def softmax(z: Tensor) -> Tensor:
    e = torch.exp(z - z.amax(1, keepdim=True))
    return e / e.sum(1, keepdim=True)


def criterion(digest: str, temperature: float) -> Criterion:
    def loss(problem: Problem, w: Tensor, x: Tensor, targets: Tensor) -> Tensor:
        own = problem.logits(w, x)
        if digest == "kl":
            p, q = softmax(targets / temperature), softmax(own / temperature)
            return (p * torch.log(p / q)).sum() / len(x)
        return (torch.abs(own - targets) if digest == "l1" else (own - targets) ** 2).sum() / own.numel()

    return loss


def adam(problem: Problem, w: Tensor, rows: Rows, loss: Criterion, where: tuple[int, int], epochs: int) -> Tensor:
    """Adam, rate 1e-3: batches of 256, but at least 19 steps a pass. ``where``: round and client."""
    (x, y), first, second, t = rows, torch.zeros_like(w), torch.zeros_like(w), 0
    size = min(256, max(len(x) // 19, 1))
    for epoch in range(epochs):
        for batch in problem.shuffled(len(x), size, *where, epoch):
            g = gradient_of(lambda v, b=batch: loss(problem, v, x[b], y[b]), w)
            t += 1
            first = 0.9 * first + 0.1 * g
            second = 0.999 * second + 0.001 * g**2
            w = w - 1e-3 * (first / (1 - 0.9**t)) / (torch.sqrt(second / (1 - 0.999**t)) + 1e-8)
    return w


def alone(problem: Problem, number: int, k: int, w: Tensor, epochs: int, stop: bool) -> Tensor:
    """SGD on the client's own rows; with ``stop`` until three epochs in a row brought no lower mean loss."""
    velocity, best, without = torch.zeros_like(w), float("inf"), 0
    for epoch in range(epochs):
        total = 0.0
        for x, y in problem.batches(number, k, 1, epoch):
            total += float(problem.loss(w, x, y)) * len(x)
            velocity = problem.momentum * velocity + problem.gradient(w, x, y) + problem.weight_decay * w
            w = w - problem.rate(number) * velocity
        without = 0 if total / problem.n[k] < best else without + 1
        best = min(best, total / problem.n[k])
        if stop and without == 3:
            break
    return w


def run(
    problem: Problem,
    *,
    digest: str = "l1",
    temperature: float = 1.0,
    rows: int = 5000,
    digest_epochs: int = 1,
    revisit_epochs: int = 2,
    start_epochs: int = 20,
    private_epochs: int = 50,
) -> dict[str, Any]:
    f, fit, consensus = {}, criterion(digest, temperature), torch.empty(0)
    for k in problem.clients:
        mine = problem.of(k)
        f[k] = adam(mine, mine.w0, problem.public, Problem.loss, (0, k), start_epochs)
        f[k] = alone(mine, 0, k, f[k], private_epochs, stop=True)
    for number, cohort in problem.rounds():
        x = problem.public[0][problem.drawn(number, rows)]
        consensus = sum(problem.of(k).logits(f[k], x) for k in cohort) / len(cohort)
        for k in cohort:
            mine = problem.of(k)
            f[k] = adam(mine, f[k], (x, consensus), fit, (number, k), digest_epochs)
            epochs = min(revisit_epochs, problem.work.get((number, k), revisit_epochs))
            f[k] = alone(mine, number, k, f[k], epochs, stop=False)
    return {"consensus": consensus.reshape(-1), "clients": {k: {"model": w} for k, w in f.items()}}

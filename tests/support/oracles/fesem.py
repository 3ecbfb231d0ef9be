"""FeSEM: Long, Xie, Shen, Zhou, Wang, Jiang, WWW Journal 2023: stochastic EM over the clients' models, one centre a cluster."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from oracles.fedavg import client_update
from oracles.problem import Problem

CASES: list[dict[str, Any]] = [
    {},
    {"clusters": 1},
    {"clusters": 3, "pretrain_epochs": 1, "weights": "samples"},
    {"clusters": 5, "problem": {"m": 5}},
    {"clusters": 4, "problem": {"m": 2, "lr": 0.5}},
]


def squared(a: Tensor, b: Tensor) -> float:
    return float(((a - b) ** 2).sum())


def plus_plus(stream: np.random.Generator, W: dict[int, Tensor], N: int) -> list[Tensor]:
    """k-means++: further centres are drawn with probability proportional to the squared distance to the nearest so far."""
    clients = sorted(W)
    drawn = [clients[int(stream.integers(len(clients)))]]
    while len(drawn) < N:
        away = torch.tensor([min(squared(W[k], W[j]) for j in drawn) for k in clients], dtype=torch.float64)
        drawn.append(clients[int(stream.choice(len(clients), p=(away / away.sum()).numpy()))])
    return [W[k] for k in drawn]


def e_step(W: dict[int, Tensor], C: list[Tensor], r: dict[int, int]) -> dict[int, int]:
    """The nearest centre of each; a centre that nobody at all belongs to takes the client farthest from its own."""
    r = {**r, **{k: min(range(len(C)), key=lambda i: squared(w, C[i])) for k, w in W.items()}}
    for i in range(len(C)):
        members = list(r.values())
        free = [k for k in W if members.count(r[k]) > 1]
        if i not in members and free:
            r[max(free, key=lambda k: squared(W[k], C[r[k]]))] = i
            # ties are of no account here: distances are real numbers
    return r


def m_step(W: dict[int, Tensor], C: list[Tensor], r: dict[int, int], size: dict[int, int]) -> list[Tensor]:
    out = list(C)
    for i in range(len(C)):
        mine = [k for k in W if r[k] == i]
        if mine:
            out[i] = sum(size[k] * W[k] for k in mine) / sum(size[k] for k in mine)
    return out


def first_centres(problem: Problem, N: int, epochs: int, size: dict[int, int]) -> tuple[list[Tensor], dict[int, int]]:
    """k-means to its end from five draws of k-means++, on the models after a first training alone; the best is kept."""
    alone = problem._replace(epochs=epochs)
    W = {k: client_update(alone, 0, k, problem.w0) for k in sorted(problem.clients)}
    stream, tried = problem.stream("grouping", "centres"), []
    for _ in range(5):
        C, r, before = plus_plus(stream, W, N), dict[int, int](), None
        while r != before:
            before = r
            r = e_step(W, C, r)
            C = m_step(W, C, r, size)
        tried.append((sum(squared(W[k], C[r[k]]) for k in W), C, r))
    return min(tried, key=lambda t: t[0])[1:]


def run(problem: Problem, *, clusters: int = 2, pretrain_epochs: int = 5, weights: str = "uniform") -> dict[str, Any]:
    size = {k: problem.n[k] if weights == "samples" else 1 for k in problem.clients}
    C, r = [problem.w0] * clusters, dict[int, int]()
    if clusters > 1:
        C, r = first_centres(problem, clusters, pretrain_epochs, size)
    for number, cohort in problem.rounds():
        W = {k: client_update(problem, number, k, C[r.get(k, 0)]) for k in sorted(cohort)}
        r = e_step(W, C, r)
        C = m_step(W, C, r, size)
    rows = [sum(problem.n[k] for k in r if r[k] == i) for i in range(clusters)]
    whole = sum((n * c for n, c in zip(rows, C, strict=True)), torch.zeros_like(problem.w0)) / sum(rows)
    return {"model": whole, "clusters": {str(i): {"model": c} for i, c in enumerate(C)}}

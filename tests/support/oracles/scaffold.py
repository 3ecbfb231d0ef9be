"""SCAFFOLD: Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, ICML 2020, Algorithm 1.

``weights="samples"`` is the form for the objective weighted by rows: client k counts n_k K / n times in both means.
"""

from __future__ import annotations

from typing import Any

import torch

from oracles.problem import Problem

CASES: list[dict[str, Any]] = [
    {},
    {"option": "I"},
    {"weights": "samples"},
    {"option": "I", "weights": "samples", "server_lr": 0.7},
    {"variant": "fedseq_code"},
    {"problem": {"epochs": 3, "stragglers": True, "decay": 0.9}},
]


def run(
    problem: Problem,
    *,
    option: str = "II",
    server_lr: float = 1.0,
    weights: str = "uniform",
    variant: str = "paper",
) -> dict[str, Any]:
    n, N = problem.n, len(problem.clients)
    total = sum(n.values())
    x = problem.w0
    c = torch.zeros_like(x)
    c_i = {i: torch.zeros_like(x) for i in problem.clients}
    for number, S in problem.rounds():
        delta_y, delta_c, eta = {}, {}, problem.rate(number)
        for i in S:
            y, steps = x, 0
            for rows, labels in problem.batches(number, i):
                g = problem.gradient(y, rows, labels) + problem.weight_decay * y
                y = y - eta * (g - c_i[i] + c)
                steps += 1
            if variant == "fedseq_code":  # the mean over this round's batches, each counted once, without weight decay
                each = [problem.gradient(x, rows, labels) for rows, labels in problem.batches(number, i)]
                c_plus = sum(each) / len(each)
            elif option == "I":
                c_plus = problem.gradient(x, *problem.rows(i)) + problem.weight_decay * x
            else:
                c_plus = c_i[i] - c + (x - y) / (steps * eta)
            delta_y[i], delta_c[i] = y - x, c_plus - c_i[i]
            c_i[i] = c_plus
        if variant == "fedseq_code":
            x = x + server_lr * sum(n[i] * delta_y[i] for i in S) / sum(n[i] for i in S)
            c = c + sum(delta_c.values()) / N
        elif weights == "uniform":
            x = x + server_lr / len(S) * sum(delta_y.values())
            c = c + len(S) / N * sum(delta_c.values()) / len(S)
        else:
            x = x + server_lr * sum(n[i] * delta_y[i] for i in S) / sum(n[i] for i in S)
            c = c + sum(n[i] / total * delta_c[i] for i in S)
    seen = {i for S in problem.cohorts for i in S}
    return {"model": x, "c": c, "clients": {i: {"c_k": c_i[i]} for i in seen}}

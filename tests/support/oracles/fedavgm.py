"""FedAvgM: Hsu, Qi, Brown 2019, section 4.3: v <- beta v + Delta w;  w <- w - v, with Delta w = sum (n_k/n) (w - w_k)."""

from __future__ import annotations

from typing import Any

import torch

from oracles.fedavg import average
from oracles.problem import Problem

CASES: list[dict[str, Any]] = [{}, {"server_lr": 0.5, "beta": 0.5}]


def run(problem: Problem, *, server_lr: float = 1.0, beta: float = 0.9) -> dict[str, Any]:
    w = problem.w0
    v = torch.zeros_like(w)
    for number, cohort in problem.rounds():
        descent = w - average(problem, number, cohort, w, "samples")
        v = beta * v + descent
        w = w - server_lr * v
    return {"model": w, "v": -v}  # the record's velocity points the way the model moves

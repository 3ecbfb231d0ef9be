"""Everybody alone: each client continues from its own last model; nothing is shared."""

from __future__ import annotations

from typing import Any

from oracles.fedavg import client_update
from oracles.problem import Problem

CASES: list[dict[str, Any]] = [{}]


def run(problem: Problem) -> dict[str, Any]:
    w_k = {}
    for number, cohort in problem.rounds():
        for k in cohort:
            w_k[k] = client_update(problem, number, k, w_k.get(k, problem.w0))
    return {"model": problem.w0, "clients": {k: {"model": w} for k, w in w_k.items()}}

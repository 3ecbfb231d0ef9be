"""The centralised baseline: SGD on the union of all rows; with partial participation as many rows a round as the cohort holds."""

from __future__ import annotations

from typing import Any

from oracles.problem import EVERYBODY, Problem

CASES: list[dict[str, Any]] = [{}, {"budget": "epochs"}]


def run(problem: Problem, *, budget: str = "auto") -> dict[str, Any]:
    w = problem.w0
    for number, cohort in problem.rounds():
        whole = budget == "epochs" or len(cohort) == len(problem.clients)
        held = problem.clients if whole else cohort
        left = problem.epochs * sum(problem.n[k] for k in held)
        for x, y in problem.batches(number, EVERYBODY):
            x, y = x[:left], y[:left]
            if left:
                w = w - problem.lr * (problem.gradient(w, x, y) + problem.weight_decay * w)
            left -= len(y)
    return {"model": w}

"""The centralised baseline: SGD on the union of all rows; with partial participation as many rows a round as the cohort holds.

Of each architecture, where there are several, one model.
"""

from __future__ import annotations

from typing import Any

from oracles.problem import EVERYBODY, Problem

CASES: list[dict[str, Any]] = [{}, {"budget": "epochs"}, {"problem": {"several": True}}]


def run(problem: Problem, *, budget: str = "auto") -> dict[str, Any]:
    if problem.kinds:
        alone = {name: problem._replace(start=start, kinds={}) for name, start in problem.kinds.items()}
        return {"states": {name: run(one, budget=budget) for name, one in alone.items()}}
    w = problem.w0
    for number, cohort in problem.rounds():
        whole = budget == "epochs" or len(cohort) == len(problem.clients)
        held = problem.clients if whole else cohort
        left = problem.epochs * sum(problem.n[k] for k in held)
        for x, y in problem.batches(number, EVERYBODY):
            x, y = x[:left], y[:left]
            if left:
                w = w - problem.rate(number) * (problem.gradient(w, x, y) + problem.weight_decay * w)
            left -= len(y)
    return {"model": w}

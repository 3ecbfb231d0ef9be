"""FedSGD: McMahan et al., AISTATS 2017, section 2: one gradient over all rows of each selected client, averaged by rows."""

from __future__ import annotations

from typing import Any

from oracles.problem import Problem

CASES: list[dict[str, Any]] = [{}, {"weights": "uniform"}]


def run(problem: Problem, *, weights: str = "samples") -> dict[str, Any]:
    w = problem.w0
    for number, cohort in problem.rounds():
        size = {k: problem.n[k] if weights == "samples" else 1 for k in cohort}
        step = sum(size[k] * (problem.gradient(w, *problem.rows(k)) + problem.weight_decay * w) for k in cohort)
        w = w - problem.rate(number) * step / sum(size.values())
    return {"model": w}

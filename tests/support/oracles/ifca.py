"""IFCA: Ghosh, Chung, Yin, Ramchandran, NeurIPS 2020, Algorithm 1, both averages; the start with the lowest training loss goes on."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from oracles.fedavg import client_update
from oracles.problem import Problem

CASES: list[dict[str, Any]] = [
    {},
    {"clusters": 3, "starts": 2, "start_rounds": 2, "weights": "uniform"},
    {"clusters": 2, "starts": 1, "average": "gradient"},
    {"clusters": 1},
]


def losses(problem: Problem, k: int, theta: list[Tensor]) -> list[float]:
    return [float(problem.loss(w, *problem.rows(k))) for w in theta]


def one_round(
    problem: Problem, number: int, cohort: tuple[int, ...], theta: list[Tensor], how: dict[str, Any], first: int = 0
) -> tuple[list[Tensor], dict[int, int]]:
    """The models after a round, and what each client picked."""
    size = {k: problem.n[k] if how["weights"] == "samples" else 1 for k in cohort}
    picked, done = {}, {}
    for k in sorted(cohort):
        found = losses(problem, k, theta)
        picked[k] = found.index(min(found))
        done[k] = client_update(problem, number, k, theta[picked[k]], first)
    after = []
    for j, w in enumerate(theta):
        mine = [k for k in done if picked[k] == j]
        over = sum(size[k] for k in (mine if how["average"] == "model" else cohort))
        after.append(w + sum(size[k] * (done[k] - w) for k in mine) / over if mine else w)
    return after, picked


def run(
    problem: Problem,
    *,
    clusters: int = 2,
    starts: int = 5,
    start_rounds: int = 1,
    average: str = "model",
    weights: str = "samples",
) -> dict[str, Any]:
    how = {"average": average, "weights": weights}
    everybody = tuple(sorted(problem.clients))
    drawn = [problem.w0, *problem.further]
    theta, last = drawn[:clusters], dict[int, int]()
    if clusters > 1 and starts > 1:
        tried = []
        for s in range(starts):
            models = drawn[s * clusters : (s + 1) * clusters]
            for turn in range(start_rounds):
                models, _ = one_round(problem, 0, everybody, models, how, turn * problem.epochs)
            loss = sum(problem.n[k] * min(losses(problem, k, models)) for k in everybody)
            tried.append((loss, s, models))
        theta = min(tried, key=lambda t: t[:2])[2]
        found = {k: losses(problem, k, theta) for k in everybody}
        last = {k: found[k].index(min(found[k])) for k in everybody}
    for number, cohort in problem.rounds():
        theta, picked = one_round(problem, number, cohort, theta, how)
        last |= picked
    rows = [sum(problem.n[k] for k in last if last[k] == j) for j in range(clusters)]
    clusters_end = {str(j): {"model": w} for j, w in enumerate(theta)}
    return {"model": theta[rows.index(max(rows))], "clusters": clusters_end}

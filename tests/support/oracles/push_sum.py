"""Push-sum with gradient steps: Kempe, Dobra, Gehrke, FOCS 2003, protocol Push-Sum; He, Tan, Tang, Qiu, Liu 2019.

Node j cuts what it holds into equal shares, one for each that hears it and one for itself; the share of one that is away stays.
"""

from __future__ import annotations

from typing import Any

import torch

from oracles.fedavg import client_update
from oracles.problem import Problem

WEB = [[0, 1], [1, 2], [2, 3], [3, 4], [4, 0], [0, 3], [4, 2], [2, 0]]
CASES: list[dict[str, Any]] = [
    {},
    {"graph": "complete"},
    {"graph": "given", "arcs": WEB, "problem": {"momentum": 0.9, "lr": 0.05}},
]


def targets(graph: str, arcs: list[list[int]] | None, n: int) -> dict[int, list[int]]:
    """node -> to whom it pushes, itself included."""
    if graph == "complete":
        return {j: list(range(n)) for j in range(n)}
    pairs = [[j, (j + 1) % n] for j in range(n)] + [[0, 2]] if graph == "directed_ring" else arcs or []
    return {j: [j] + [to for start, to in pairs if start == j] for j in range(n)}


def run(problem: Problem, *, graph: str = "directed_ring", arcs: list[list[int]] | None = None) -> dict[str, Any]:
    n = len(problem.clients)
    to = targets(graph, arcs, n)
    z = dict.fromkeys(range(n), problem.w0)
    u = dict.fromkeys(range(n), 1.0)
    for number, here in problem.rounds():
        got_z = {i: torch.zeros_like(problem.w0) for i in here}
        got_u = dict.fromkeys(here, 0.0)
        for j in here:
            x = z[j] / u[j]
            pushed = z[j] + client_update(problem, number, j, x) - x
            for i in to[j]:
                receiver = i if i in here else j
                got_z[receiver] = got_z[receiver] + pushed / len(to[j])
                got_u[receiver] += u[j] / len(to[j])
        z, u = {**z, **got_z}, {**u, **got_u}
    mean = torch.stack([z[i] / u[i] for i in range(n)]).mean(0)
    return {"model": mean, "nodes": {str(i): {"z": z[i], "u": u[i]} for i in range(n)}}

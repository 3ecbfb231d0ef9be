"""D-PSGD: Lian, Zhang, Zhang, Hsieh, Zhang, Liu, NeurIPS 2017, Algorithm 1, and the order in which each node steps first.

W by Metropolis' rule. A node that is away keeps its model; the weight it has in a neighbour's row goes to that neighbour itself.
"""

from __future__ import annotations

from typing import Any

import torch

from oracles.fedavg import client_update
from oracles.problem import Problem

STAR = [[0, 1], [0, 2], [0, 3], [3, 4]]
CASES: list[dict[str, Any]] = [
    {},
    {"order": "combine_first"},
    {"graph": "complete"},
    {"graph": "given", "edges": STAR},
    {"graph": "given", "edges": STAR, "order": "combine_first", "problem": {"momentum": 0.9, "lr": 0.05}},
]


def neighbours(graph: str, edges: list[list[int]] | None, n: int) -> dict[int, set[int]]:
    """node -> those it has an edge with."""
    if graph == "complete":
        return {i: set(range(n)) - {i} for i in range(n)}
    pairs = [[i, (i + 1) % n] for i in range(n)] if graph == "ring" else edges or []
    return {i: {b if a == i else a for a, b in pairs if i in (a, b)} for i in range(n)}


def weight(near: dict[int, set[int]], i: int, j: int, here: tuple[int, ...]) -> float:
    """W_ij among those who are here."""
    if i != j:
        return 1 / (1 + max(len(near[i]), len(near[j]))) if j in near[i] else 0.0
    return 1 - sum(weight(near, i, other, here) for other in here if other != i)


def run(
    problem: Problem, *, graph: str = "ring", edges: list[list[int]] | None = None, order: str = "adapt_first"
) -> dict[str, Any]:
    n = len(problem.clients)
    near = neighbours(graph, edges, n)
    x = dict.fromkeys(range(n), problem.w0)
    for number, here in problem.rounds():
        stepped = {i: client_update(problem, number, i, x[i]) for i in here}
        sent = stepped if order == "adapt_first" else x
        mixed = {i: sum(weight(near, i, j, here) * sent[j] for j in here) for i in here}
        if order == "combine_first":
            mixed = {i: mixed[i] - (x[i] - stepped[i]) for i in here}
        x = {**x, **mixed}
    mean = torch.stack([x[i] for i in range(n)]).mean(0)
    return {"model": mean, "nodes": {str(i): {"model": x[i]} for i in range(n)}}

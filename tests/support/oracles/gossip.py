"""D-PSGD: Lian, Zhang, Zhang, Hsieh, Zhang, Liu, NeurIPS 2017, Algorithm 1, and the order in which each node steps first.

W by Metropolis' rule, or random disjoint pairs that each take their mean (Boyd, Ghosh, Prabhakar, Shah 2006). A node that is away
keeps its model; the weight it has in a neighbour's row goes to that neighbour itself.
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
    {"graph": "torus", "problem": {"clients": 6}},
    {"graph": "random", "probability": 0.6},
    {"mixing": "pairwise"},
    {"graph": "complete", "mixing": "pairwise", "order": "combine_first", "problem": {"m": 5}},
]
TORUS_OF_SIX = [[0, 1], [1, 2], [2, 0], [3, 4], [4, 5], [5, 3], [0, 3], [1, 4], [2, 5]]


def neighbours(problem: Problem, graph: str, edges: list[list[int]] | None, probability: float) -> dict[int, set[int]]:
    """node -> those it has an edge with."""
    n = len(problem.clients)
    pairs = edges or {"ring": [[i, (i + 1) % n] for i in range(n)], "torus": TORUS_OF_SIX}.get(graph, [])
    if graph in ("complete", "random"):
        pairs = [[i, j] for i in range(n) for j in range(i + 1, n)]
    if graph == "random":  # the run's first draw, which is connected
        u = problem.stream("graph", 0).random((n, n))
        pairs = [[i, j] for i, j in pairs if u[i, j] < probability]
    return {i: {b if a == i else a for a, b in pairs if i in (a, b)} for i in range(n)}


def paired(problem: Problem, number: int, near: dict[int, set[int]], here: tuple[int, ...]) -> dict[int, set[int]]:
    """node -> its partner of this round: edges in a random order, each taken if both its ends are still free."""
    partner: dict[int, set[int]] = {i: set() for i in near}
    edges = [[i, j] for i in sorted(near) for j in sorted(near[i]) if i < j]
    for i, j in problem.stream("gossip", number).permutation(edges).tolist():
        if {i, j} <= set(here) and not partner[i] | partner[j]:
            partner[i], partner[j] = {j}, {i}
    return partner


def weight(near: dict[int, set[int]], i: int, j: int, here: tuple[int, ...]) -> float:
    """W_ij among those who are here."""
    if i != j:
        return 1 / (1 + max(len(near[i]), len(near[j]))) if j in near[i] else 0.0
    return 1 - sum(weight(near, i, other, here) for other in here if other != i)


def run(
    problem: Problem,
    *,
    graph: str = "ring",
    edges: list[list[int]] | None = None,
    probability: float = 0.0,
    mixing: str = "metropolis",
    order: str = "adapt_first",
) -> dict[str, Any]:
    n = len(problem.clients)
    joined = neighbours(problem, graph, edges, probability)
    x = dict.fromkeys(range(n), problem.w0)
    for number, here in problem.rounds():
        stepped = {i: client_update(problem, number, i, x[i]) for i in here}
        near = joined if mixing == "metropolis" else paired(problem, number, joined, here)
        sent = stepped if order == "adapt_first" else x
        mixed = {i: sum(weight(near, i, j, here) * sent[j] for j in here) for i in here}
        if order == "combine_first":
            mixed = {i: mixed[i] - (x[i] - stepped[i]) for i in here}
        x = {**x, **mixed}
    mean = torch.stack([x[i] for i in range(n)]).mean(0)
    return {"model": mean, "nodes": {str(i): {"model": x[i]} for i in range(n)}}

"""CFL: Sattler, Mueller, Samek, IEEE TNNLS 2021: split a cluster whose members' updates disagree at a stationary point.

The two halves are found by dropping the weakest edge of the maximum spanning tree of the cosines, or (``complete``) by joining, again
and again, the two groups whose least similar members are most similar. A client that is new after a split descends the tree.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from oracles.fedavg import client_update
from oracles.problem import Problem

SPLITS = {"eps1": 9.0, "eps2": 0.0, "after_round": 0}
CASES: list[dict[str, Any]] = [
    {},
    {**SPLITS, "problem": {"rounds": 4, "m": 5}},
    {**SPLITS, "problem": {"rounds": 4}},
    {**SPLITS, "linkage": "complete", "weights": "uniform", "problem": {"rounds": 3, "m": 5}},
    {"eps1": 0.2, "eps2": 0.25, "after_round": 3, "gamma": 0.3, "problem": {"m": 5}},
]


def cosine(a: Tensor, b: Tensor) -> float:
    return float(a @ b / (a.norm() * b.norm()))


def spanning_tree_halves(delta: dict[int, Tensor]) -> tuple[set[int], set[int]]:
    """Kruskal's maximum spanning tree without its last, weakest edge."""
    edges = sorted(combinations(sorted(delta), 2), key=lambda e: -cosine(delta[e[0]], delta[e[1]]))
    part = {k: {k} for k in delta}
    for i, j in edges:
        if part[i] is not part[j] and len({id(p) for p in part.values()}) > 2:
            joined = part[i] | part[j]
            part.update(dict.fromkeys(joined, joined))
    halves = sorted({id(p): p for p in part.values()}.values(), key=min)
    return halves[0], halves[1]


def complete_halves(delta: dict[int, Tensor]) -> tuple[set[int], set[int]]:
    groups = [{k} for k in sorted(delta)]
    while len(groups) > 2:
        a, b = max(combinations(groups, 2), key=lambda g: min(cosine(delta[i], delta[j]) for i in g[0] for j in g[1]))
        groups = sorted([g for g in groups if g is not a and g is not b] + [a | b], key=min)
    return groups[0], groups[1]


def run(
    problem: Problem,
    *,
    eps1: float = 0.4,
    eps2: float = 1.6,
    gamma: float = 0.0,
    after_round: int = 20,
    linkage: str = "single",
    weights: str = "samples",
) -> dict[str, Any]:
    theta, member, splits = {"0": problem.w0}, dict[int, str](), []
    size = {k: problem.n[k] if weights == "samples" else 1 for k in problem.clients}
    for number, cohort in problem.rounds():
        for k in cohort:
            if k in member:
                continue
            member[k] = "0"
            for parent, child, w, stay, go in splits:
                if member[k] == parent:
                    u = client_update(problem, number, k, w) - w
                    nearer = sum(cosine(u, v) for v in go) / len(go) > sum(cosine(u, v) for v in stay) / len(stay)
                    member[k] = child if nearer else parent
        done = {k: client_update(problem, number, k, theta[member[k]]) for k in cohort}
        for c in sorted(theta, key=int):
            held = sorted(k for k in member if member[k] == c)
            if number <= after_round or len(held) < 3 or not set(held) <= set(cohort):
                continue
            delta = {k: done[k] - theta[c] for k in held}
            together = sum(size[k] * delta[k] for k in held) / sum(size[k] for k in held)
            if not (together.norm() < eps1 and max(d.norm() for d in delta.values()) > eps2):
                continue
            stay, go = spanning_tree_halves(delta) if linkage == "single" else complete_halves(delta)
            across = max(cosine(delta[i], delta[j]) for i in stay for j in go)
            if gamma and ((1 - across) / 2) ** 0.5 <= gamma:
                continue
            child = str(len(theta))
            splits.append((c, child, theta[c], [delta[k] for k in stay], [delta[k] for k in go]))
            theta[child] = theta[c]
            member.update(dict.fromkeys(go, child))
        for c in theta:
            there = [k for k in sorted(cohort) if member[k] == c]
            if there:
                theta[c] = sum(size[k] * done[k] for k in there) / sum(size[k] for k in there)
    rows = {c: sum(problem.n[k] for k in member if member[k] == c) for c in theta}
    whole = sum((rows[c] * theta[c] for c in theta), torch.zeros_like(problem.w0)) / sum(rows.values())
    return {"model": whole, "clusters": {c: {"model": w} for c, w in theta.items()}}

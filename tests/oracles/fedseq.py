"""FedSeq: Zaccone, Rizzardi, Caldarola, Ciccone, Caputo, ICPR 2022: a model trained along each superclient, then the mean by examples.

The superclients are given (grouping has tests of its own), and so is the order of a chain.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from oracles import fedprox
from oracles.fedavg import client_update
from oracles.problem import Problem

CASES: list[dict[str, Any]] = [
    {},
    {"phi": "random", "group_size": 3, "passes": 2},
    {"phi": "random", "rule": {"name": "fedprox", "mu": 1.0}},
    {"phi": "random", "rule": {"name": "fedprox", "mu": 1.0}, "anchor": "server"},
]


def along(
    problem: Problem,
    number: int,
    superclient: int,
    members: tuple[int, ...],
    theta: Tensor,
    w_t: Tensor,
    how: Mapping[str, Any],
) -> Tensor:
    """LocalTrain along the chain, ``passes`` times around; FedProx's anchor is what the client received, or the server's model."""
    for turn in range(how.get("passes", 1)):
        for k in problem.chain(number, superclient, members, turn):
            first = turn * problem.epochs
            if how.get("rule"):
                anchor = w_t if how.get("anchor") == "server" else theta
                theta, _, _ = fedprox.local(problem, number, k, anchor, how["rule"]["mu"], theta, first)
            else:
                theta = client_update(problem, number, k, theta, first)
    return theta


def taking_part(problem: Problem, cohort: tuple[int, ...]) -> dict[int, tuple[int, ...]]:
    """superclient -> its members that are there."""
    there = {i: tuple(k for k in group if k in cohort) for i, group in enumerate(problem.groups)}
    return {i: members for i, members in there.items() if members}


def run(problem: Problem, **how: Any) -> dict[str, Any]:
    w = problem.w0
    for number, cohort in problem.rounds():
        chains = taking_part(problem, cohort)
        size = {i: sum(problem.n[k] for k in members) for i, members in chains.items()}
        theta = {i: along(problem, number, i, members, w, w, how) for i, members in chains.items()}
        w = sum(size[i] * theta[i] for i in chains) / sum(size.values())
    return {"model": w}

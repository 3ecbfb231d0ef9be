"""FedSeq: Zaccone, Rizzardi, Caldarola, Ciccone, Caputo, ICPR 2022: a model trained along each superclient, then the mean by examples.

The superclients are given (grouping has tests of its own), and so is the order of a chain. Inside a chain works the client's part of a
rule, and behind it the rule's server, to which a superclient is a client. What a client received is the rule's global model, or the
server's is. A client that a chain visits twice remembers its first visit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from oracles import feddyn, fedprox, moon
from oracles.fedavg import client_update
from oracles.problem import Problem

DYN = {"name": "feddyn", "alpha": 0.3}
MOON = {"name": "moon", "mu": 5.0, "temperature": 0.2}
CASES: list[dict[str, Any]] = [
    {},
    {"phi": "random", "group_size": 3, "passes": 2},
    {"phi": "random", "rule": {"name": "fedprox", "mu": 1.0}},
    {"phi": "random", "rule": {"name": "fedprox", "mu": 1.0}, "anchor": "server"},
    {"phi": "random", "rule": {"name": "fedavgm", "beta": 0.5, "server_lr": 0.8}},
    {"phi": "random", "group_size": 3, "rule": DYN},
    {"phi": "random", "passes": 2, "rule": {**DYN, "alpha_by_size": True}},
    {"phi": "random", "passes": 2, "rule": MOON},
    {"phi": "random", "rule": MOON, "anchor": "server"},
    {"phi": "random", "group_size": 3, "problem": {"epochs": 3, "stragglers": True, "decay": 0.9}},
    {"phi": "random", "passes": 2, "problem": {"epochs": 3, "stragglers": True}},
]

Memory = dict[int, Tensor]  # client -> FedDyn's gradient of its last visit, or MOON's previous model


def visit(
    problem: Problem,
    number: int,
    k: int,
    theta: Tensor,
    anchor: Tensor,
    first: int,
    rule: Mapping[str, Any],
    own: Memory,
) -> Tensor:
    """LocalTrain by the rule, from ``theta``; ``anchor`` is the rule's global model. Writes into ``own`` what the client keeps."""
    name = rule.get("name", "fedavg")
    if name == "fedprox":
        return fedprox.local(problem, number, k, anchor, rule["mu"], theta, first)[0]
    if name == "feddyn":
        a = rule["alpha"]
        if rule.get("alpha_by_size"):
            a *= sum(problem.n.values()) / len(problem.n) / problem.n[k]
        gradient = own.get(k, torch.zeros_like(theta))
        after = feddyn.local(problem, number, k, theta, gradient, a, first)
        own[k] = gradient - a * (after - theta)
        return after
    if name == "moon":
        own[k] = moon.local(problem, number, k, anchor, own.get(k), rule["mu"], rule["temperature"], theta, first)
        return own[k]
    return client_update(problem, number, k, theta, first)


def along(
    problem: Problem,
    number: int,
    superclient: int,
    members: tuple[int, ...],
    theta: Tensor,
    w_t: Tensor,
    how: Mapping[str, Any],
    own: Memory,
) -> Tensor:
    """The chain, ``passes`` times around."""
    for turn in range(how.get("passes", 1)):
        for k in problem.chain(number, superclient, members, turn):
            anchor = w_t if how.get("anchor") == "server" else theta
            first = turn * problem.epochs_of(number, k)
            theta = visit(problem, number, k, theta, anchor, first, how.get("rule") or {}, own)
    return theta


def taking_part(problem: Problem, cohort: tuple[int, ...]) -> dict[int, tuple[int, ...]]:
    """superclient -> its members that are there."""
    there = {i: tuple(k for k in group if k in cohort) for i, group in enumerate(problem.groups)}
    return {i: members for i, members in there.items() if members}


def run(problem: Problem, **how: Any) -> dict[str, Any]:
    rule = how.get("rule") or {}
    w, own = problem.w0, Memory()
    state = torch.zeros_like(w)  # FedAvgM's momentum, or FedDyn's h
    for number, cohort in problem.rounds():
        chains = taking_part(problem, cohort)
        size = {i: sum(problem.n[k] for k in members) for i, members in chains.items()}
        theta = {i: along(problem, number, i, members, w, w, how, own) for i, members in chains.items()}
        mean = sum(size[i] * theta[i] for i in chains) / sum(size.values())
        if rule.get("name") == "fedavgm":
            state = rule["beta"] * state + (w - mean)
            w = w - rule["server_lr"] * state
        elif rule.get("name") == "feddyn":
            state = state - rule["alpha"] * sum(theta[i] - w for i in chains) / len(problem.groups)
            w = sum(theta.values()) / len(chains) - state / rule["alpha"]
        else:
            w = mean
    kept = {"fedavgm": {"v": -state}, "feddyn": {"h": state}}.get(rule.get("name", ""), {})
    field = {"feddyn": "g_k", "moon": "previous"}.get(rule.get("name", ""), "")
    return {"model": w, **kept, "clients": {k: {field: x} for k, x in own.items()}}

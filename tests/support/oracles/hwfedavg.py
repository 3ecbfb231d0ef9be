"""HWFedAvg: Santos et al., IFC - Bank of Italy workshop 2023: FedAvg with weights that favour evenly spread labels.

p_j^k: share of class j at client k; P_j: its share in the cohort; Ptilde_k = sum_j P_j (p_j^k)^2, normalised over the cohort;
w_k = 1 / Ptilde_k, normalised; alpha_k = N_k / N; the weight of client k is alpha_k w_k, normalised.

Other scores, this project's own (H3): w_k is the entropy of p^k over that of even labels, the Gini index likewise,
or 1 / (1 + chi-square distance of p^k from P).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from oracles.fedavg import client_update
from oracles.problem import Problem

CASES: list[dict[str, Any]] = [
    {},
    {"size_scaling": False},
    {"exclude_above": 0.2},
    {"score": "entropy"},
    {"score": "gini", "size_scaling": False},
    {"score": "chi2", "exclude_above": 1.1},
    {"balance_local": True},
    {"balance_local": True, "score": "chi2", "size_scaling": False},
]


def concentration(problem: Problem, cohort: tuple[int, ...]) -> dict[int, float]:
    """s_k = sum_j P_j (p_j^k)^2 of each client."""
    counts = {k: np.bincount(problem.clients[k][1].numpy(), minlength=3) for k in cohort}
    everything = sum(counts.values())
    P = everything / everything.sum()
    return {k: float((P * (N / N.sum()) ** 2).sum()) for k, N in counts.items()}


def evenness(problem: Problem, cohort: tuple[int, ...], score: str) -> dict[int, float]:
    """w_k by another score than the paper's."""
    counts = {k: np.bincount(problem.clients[k][1].numpy(), minlength=3) for k in cohort}
    P = sum(counts.values()) / sum(N.sum() for N in counts.values())
    out = {}
    for k, N in counts.items():
        p = N / N.sum()
        if score == "entropy":
            out[k] = max(-sum(q * np.log(q) for q in p if q) / np.log(3), 1e-3)
        elif score == "gini":
            out[k] = max((1 - sum(q * q for q in p)) / (1 - 1 / 3), 1e-3)
        else:
            out[k] = 1 / (1 + sum((q - Q) ** 2 / Q for q, Q in zip(p, P, strict=True) if Q))
    return out


def weighted(problem: Problem, number: int, raw: dict[int, float], w: torch.Tensor, scaled: bool) -> torch.Tensor:
    """The mean of local models by alpha_k times the raw weight."""
    share = {k: omega * (problem.n[k] if scaled else 1.0) for k, omega in raw.items()}
    return sum(share[k] / sum(share.values()) * client_update(problem, number, k, w) for k in share)


def even(problem: Problem, number: int, cohort: tuple[int, ...]) -> Problem:
    """The problem in which each client of the cohort has as many rows of each class it holds as of its rarest."""
    kept = {k: tuple(x[problem.rarest(number, k)] for x in problem.clients[k]) for k in cohort}
    return problem._replace(clients=kept)


def run(
    federation: Problem,
    *,
    score: str = "homogeneity",
    size_scaling: bool = True,
    exclude_above: float = np.inf,
    balance_local: bool = False,
) -> dict[str, Any]:
    w = federation.w0
    for number, cohort in federation.rounds():
        problem = even(federation, number, cohort) if balance_local else federation
        if score != "homogeneity":
            spread = evenness(problem, cohort, score)
            kept = [k for k in cohort if 1 / spread[k] <= exclude_above] or list(cohort)
            w = weighted(problem, number, {k: spread[k] for k in kept}, w, size_scaling)
            continue
        s = concentration(problem, cohort)
        kept = [k for k in cohort if s[k] <= exclude_above] or list(cohort)
        Ptilde = {k: s[k] / sum(s[j] for j in kept) for k in kept}
        w = weighted(problem, number, {k: 1 / Ptilde[k] for k in kept}, w, size_scaling)
    return {"model": w}

"""HWFedAvg: Santos et al., IFC - Bank of Italy workshop 2023: FedAvg with weights that favour evenly spread labels.

p_j^k: share of class j at client k; P_j: its share in the cohort; Ptilde_k = sum_j P_j (p_j^k)^2, normalised over the cohort;
w_k = 1 / Ptilde_k, normalised; alpha_k = N_k / N; the weight of client k is alpha_k w_k, normalised.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from oracles.fedavg import client_update
from oracles.problem import Problem

CASES: list[dict[str, Any]] = [{}, {"size_scaling": False}, {"exclude_above": 0.2}]


def concentration(problem: Problem, cohort: tuple[int, ...]) -> dict[int, float]:
    """s_k = sum_j P_j (p_j^k)^2 of each client."""
    counts = {k: np.bincount(problem.clients[k][1].numpy(), minlength=3) for k in cohort}
    everything = sum(counts.values())
    P = everything / everything.sum()
    return {k: float((P * (N / N.sum()) ** 2).sum()) for k, N in counts.items()}


def weighted(problem: Problem, number: int, raw: dict[int, float], w: torch.Tensor, scaled: bool) -> torch.Tensor:
    """The mean of local models by alpha_k times the raw weight."""
    share = {k: omega * (problem.n[k] if scaled else 1.0) for k, omega in raw.items()}
    return sum(share[k] / sum(share.values()) * client_update(problem, number, k, w) for k in share)


def run(problem: Problem, *, size_scaling: bool = True, exclude_above: float = np.inf) -> dict[str, Any]:
    w = problem.w0
    for number, cohort in problem.rounds():
        s = concentration(problem, cohort)
        kept = [k for k in cohort if s[k] <= exclude_above] or list(cohort)
        Ptilde = {k: s[k] / sum(s[j] for j in kept) for k in kept}
        w = weighted(problem, number, {k: 1 / Ptilde[k] for k in kept}, w, size_scaling)
    return {"model": w}

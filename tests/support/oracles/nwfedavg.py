"""NWFedAvg: Santos et al. 2023: the inverse of HWFedAvg's raw weights, then scaled by size (``inverse="literal"``: of the whole weight)."""

from __future__ import annotations

from typing import Any

import torch

from oracles.hwfedavg import concentration, weighted
from oracles.problem import Problem

CASES: list[dict[str, Any]] = [{}, {"size_scaling": False}, {"inverse": "literal"}]


def run(problem: Problem, *, size_scaling: bool = True, inverse: str = "omega") -> dict[str, Any]:
    w: torch.Tensor = problem.w0
    for number, cohort in problem.rounds():
        s = concentration(problem, cohort)
        if inverse == "literal":  # 1 / (alpha_k / s_k)
            w = weighted(problem, number, {k: s[k] / problem.n[k] for k in cohort}, w, scaled=False)
        else:
            w = weighted(problem, number, s, w, size_scaling)
    return {"model": w}

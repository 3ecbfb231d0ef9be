"""FedBN: Li, Jiang, Zhang, Kamp, Dou, ICLR 2021. The network of the oracles has no batch norm, for which the method is FedAvg; what it
does with batch norm is done by hand in test_personal.py.
"""

from __future__ import annotations

from typing import Any

from oracles import fedavg
from oracles.problem import Problem

CASES: list[dict[str, Any]] = [{}, {"weights": "uniform"}]


def run(problem: Problem, *, weights: str = "samples") -> dict[str, Any]:
    return fedavg.run(problem, weights=weights)

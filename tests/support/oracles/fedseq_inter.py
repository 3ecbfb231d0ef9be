"""FedSeqInter: Zaccone et al., ICPR 2022: models travel from superclient to superclient and are averaged every so many rounds."""

from __future__ import annotations

from typing import Any

from oracles.fedseq import along, taking_part
from oracles.problem import Problem

CASES: list[dict[str, Any]] = [
    {},
    {"phi": "random", "period": 4},
    {"phi": "random", "period": "never", "passes": 2},
    {"phi": "random", "period": "fraction"},
    {"phi": "random", "period": 4, "rule": {"name": "fedprox", "mu": 1.0}},
    {"phi": "random", "period": 4, "rule": {"name": "fedprox", "mu": 1.0}, "anchor": "server"},
]


def run(problem: Problem, *, period: int | str = "num_superclients", **how: Any) -> dict[str, Any]:
    every = {"num_superclients": len(problem.groups), "never": 0, "fraction": 0}.get(str(period), period)
    base = problem.w0
    Theta, omega, drawn = {}, {}, 0
    for number, cohort in problem.rounds():
        chains = taking_part(problem, cohort)
        drawn += len(chains)
        if (every and number % int(every) == 0) or (period == "fraction" and drawn >= len(problem.groups)):
            if Theta:
                base = sum(omega[i] * Theta[i] for i in Theta) / sum(omega.values())
            Theta, omega, drawn = {}, {}, 0
        for i, (superclient, members) in enumerate(chains.items()):
            begin = Theta.get(i, base)
            Theta[i] = along(problem, number, superclient, members, begin, base, how, {})
            omega[i] = omega.get(i, 0) + sum(problem.n[k] for k in members)
    return {"model": sum(omega[i] * Theta[i] for i in Theta) / sum(omega.values())}

"""FedDF: Lin, Kong, Stich, Jaggi, NeurIPS 2020, Algorithms 1 and 3: FedAvg within each architecture, then distillation of all into each."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from oracles.fedavg import client_update
from oracles.fedmd import criterion
from oracles.problem import Problem, gradient_of

CASES: list[dict[str, Any]] = [
    {},
    {"problem": {"several": True}},
    {"weights": "uniform", "steps": 25, "patience": 5, "temperature": 3.0, "problem": {"several": True}},
    {"steps": 0, "problem": {"momentum": 0.9}},
]


def distil(
    problem: Problem, number: int, w: Tensor, teacher: Tensor, steps: int, patience: int, passes: int, T: float
) -> Tensor:
    """Adam towards the teacher's scores; a tenth of the rows says which model was best, the one at the start included."""
    x, fit = problem.public[0], criterion("kl", T)
    judged = problem.aside(number, 0.1)
    taught = torch.tensor([i for i in range(len(x)) if i not in judged.tolist()])
    best, kept = float(fit(problem, w, x[judged], teacher[judged])), w
    first, second, t, waited, idle = torch.zeros_like(w), torch.zeros_like(w), 0, 0, 0
    for epoch in range(passes):
        for batch in problem.shuffled(len(taught), 128, number, 0, epoch):
            if t == steps:
                break
            at = taught[batch]
            g = gradient_of(lambda v, at=at: fit(problem, v, x[at], teacher[at]), w)
            t, waited = t + 1, waited + 1
            first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g**2
            w = w - 1e-3 * (first / (1 - 0.9**t)) / (torch.sqrt(second / (1 - 0.999**t)) + 1e-8)
        loss = float(fit(problem, w, x[judged], teacher[judged]))
        idle += 1
        if loss < best:
            best, kept, waited, idle = loss, w, 0, 0
        if t == steps or waited >= patience or idle >= max(passes // 10, 1):
            break
    return kept


def run(
    problem: Problem,
    *,
    steps: int = 10_000,
    patience: int = 1_000,
    passes: int = 100,
    temperature: float = 1.0,
    weights: str = "samples",
) -> dict[str, Any]:
    owner = problem.owner or dict.fromkeys(problem.clients, "global")
    first = {name: problem.of(k) for k, name in reversed(owner.items())}  # a problem with each network
    x = {name: each.w0 for name, each in first.items()}
    for number, cohort in problem.rounds():
        local = {k: client_update(problem.of(k), number, k, x[owner[k]]) for k in cohort}
        for name in x:
            size = {k: problem.n[k] if weights == "samples" else 1 for k in cohort if owner[k] == name}
            if size:
                x[name] = sum(n * local[k] for k, n in size.items()) / sum(size.values())
        if steps:
            teacher = sum(problem.of(k).logits(w, problem.public[0]) for k, w in local.items()) / len(cohort)
            for name, mean in x.items():
                x[name] = distil(first[name], number, mean, teacher, steps, patience, passes, temperature)
    return {"states": {name: {"model": w} for name, w in x.items()}} if problem.owner else {"model": x["global"]}

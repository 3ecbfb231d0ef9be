"""FedBN: Li, Jiang, Zhang, Kamp, Dou, ICLR 2021, Algorithm 1: the layers of batch norm are not averaged, all others are, by rows.

Where the network has batch norm between its hidden layer and tanh, the layer is written out: rows are brought to mean 0 and variance 1
over their batch, and its running mean and variance (the unbiased one) move a tenth of the way to each batch's. A client that is new
begins with the average of the others' layers, which stands in the server's model. Without batch norm the method is FedAvg.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from oracles import fedavg
from oracles.problem import Problem, gradient_of

CASES: list[dict[str, Any]] = [
    {},
    {"weights": "uniform"},
    {"problem": {"normed": True, "batch_size": 7}},
    {"weights": "uniform", "problem": {"normed": True, "batch_size": 7, "momentum": 0.9, "lr": 0.02}},
]
EPS, TENTH = 1e-5, 0.1
MEAN, VAR, SEEN = "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"

Statistics = dict[str, Tensor]


def hidden(problem: Problem, w: Tensor, x: Tensor) -> Tensor:
    p = problem.named(w)
    return x @ p["hidden.weight"].T + p["hidden.bias"]


def loss(problem: Problem, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Mean cross entropy of a batch, normalised by its own mean and variance."""
    p, z = problem.named(w), hidden(problem, w, x)
    z = (z - z.mean(0)) / (((z - z.mean(0)) ** 2).mean(0) + EPS).sqrt()
    logits = torch.tanh(p["norm.weight"] * z + p["norm.bias"]) @ p["head.weight"].T + p["head.bias"]
    return -torch.log_softmax(logits, 1)[torch.arange(len(y)), y].mean()


def local(problem: Problem, number: int, k: int, w: Tensor, held: Statistics) -> tuple[Tensor, Statistics]:
    """E epochs of SGD; every batch that passes leaves its mark on the statistics."""
    velocity = torch.zeros_like(w)
    for x, y in problem.batches(number, k):
        z, n = hidden(problem, w, x), len(x)
        variance = ((z - z.mean(0)) ** 2).sum(0) / (n - 1)
        held = {
            MEAN: (1 - TENTH) * held[MEAN] + TENTH * z.mean(0),
            VAR: (1 - TENTH) * held[VAR] + TENTH * variance,
            SEEN: held[SEEN] + 1,
        }
        g = gradient_of(lambda v, x=x, y=y: loss(problem, v, x, y), w) + problem.weight_decay * w
        velocity = problem.momentum * velocity + g
        w = w - problem.rate(number) * velocity
    return w, held


def averaged(found: Mapping[int, Statistics], p: Mapping[int, float]) -> Statistics:
    """Means with the weights of the models; the counter is the largest."""
    means = {name: sum(p[k] * found[k][name] for k in p) for name in (MEAN, VAR)}
    return {**means, SEEN: torch.stack([found[k][SEEN] for k in p]).max()}  # type: ignore[dict-item]


def run(problem: Problem, *, weights: str = "samples") -> dict[str, Any]:
    if "norm.weight" not in problem.start:
        return fedavg.run(problem, weights=weights)
    stays = torch.cat([torch.full((x.numel(),), name.startswith("norm.")) for name, x in problem.start.items()])
    w, width = problem.w0, len(problem.start["norm.weight"])
    held = {MEAN: torch.zeros(width).to(w), VAR: torch.ones(width).to(w), SEEN: torch.tensor(0)}
    own: dict[int, tuple[Tensor, Statistics]] = {}
    for number, cohort in problem.rounds():
        for k in cohort:
            before, statistics = own.get(k, (w, held))
            own[k] = local(problem, number, k, torch.where(stays, before, w), statistics)
        size = {k: problem.n[k] if weights == "samples" else 1 for k in cohort}
        p = {k: size[k] / sum(size.values()) for k in cohort}
        w = sum(p[k] * own[k][0] for k in cohort)
        held = averaged({k: own[k][1] for k in cohort}, p)
    layers = {k: {n: x for n, x in problem.named(v).items() if n.startswith("norm.")} for k, (v, _) in own.items()}
    return {"model": w, "buffers": held, "clients": {k: {"own": {**layers[k], **own[k][1]}} for k in own}}

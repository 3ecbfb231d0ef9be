"""Scores of rows for membership, by the model's loss or gradient, or by a classifier trained on shadow models (A5).

A higher score means that membership is more likely. Source: Yeom, Giacomelli, Fredrikson, Jha, CSF 2018 (loss); Nasr, Shokri,
Houmansadr, S&P 2019 (gradient); Shokri, Stronati, Song, Shmatikov, S&P 2017 (shadow models; one logistic classifier over all classes,
with the label next to the sorted confidences).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Predict = Callable[[Tensor], Tensor]
"""Rows -> outputs (n, classes)."""


class Training(NamedTuple):
    """Settings for training a shadow model: like a client's, as far as the attacker knows them."""

    lr: float
    batch_size: int  # 0 = all rows
    epochs: int
    momentum: float = 0.0
    weight_decay: float = 0.0
    adam: bool = False
    nesterov: bool = False

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return the optimizer of a model."""
        if self.adam:
            return torch.optim.Adam(model.parameters(), lr=self.lr, weight_decay=self.weight_decay)
        more = {"momentum": self.momentum, "weight_decay": self.weight_decay, "nesterov": self.nesterov}
        return torch.optim.SGD(model.parameters(), lr=self.lr, **more)  # type: ignore[arg-type]


def federated(config: Any, sizes: Sequence[int], rows: int, epochs: int | None = None) -> Training:
    """Return a training on ``rows`` pooled rows that mimics the federation's, whose clients train on ``sizes`` rows.

    A step takes the share of all rows that a step of all clients of a round takes together, so there are as many steps as a client makes
    in all rounds, and each row is used as often as in the federation. ``epochs``: passes, instead of the federation's. Learning-rate
    schedules, the server's optimizer and noise are not mimicked.
    """
    local, many = config.local, sum(sizes) / len(sizes)
    batch = min(local.batch_size or many, many)
    steps = local.steps or local.epochs * math.ceil(many / batch)
    cohort = config.cohort.size / len(sizes) if config.cohort.size else config.cohort.fraction
    share = min(cohort, 1.0) * batch / many
    passes = epochs or max(1, round(config.rounds * steps * share))
    more = {"momentum": local.momentum, "weight_decay": local.weight_decay, "adam": local.optimizer == "adam"}
    more["nesterov"] = local.nesterov
    return Training(local.lr, max(1, round(share * rows)), passes, **more)


def by_loss(predict: Predict, x: Tensor, y: Tensor) -> Tensor:
    """Return (n,) float64: minus the cross entropy of each row."""
    return -F.cross_entropy(predict(x).double(), y, reduction="none")


def by_gradient(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return (n,) float64: minus the Euclidean norm of the gradient of each row's cross entropy by all weights."""
    weights, found = [w for w in model.parameters() if w.requires_grad], []
    for row, label in zip(torch.split(x, 1), torch.split(y, 1), strict=True):
        slopes = torch.autograd.grad(F.cross_entropy(model(row), label), weights)
        found.append(-torch.stack([g.double().square().sum() for g in slopes]).sum().sqrt())
    return torch.stack(found)


def features(outputs: Tensor, y: Tensor) -> Tensor:
    """Return (n, 2 classes + 1): log-confidences in falling order, that of the label, the label one-hot."""
    logs = torch.log_softmax(outputs.double(), 1).clamp_min(-30.0)
    own = logs.gather(1, y[:, None])
    return torch.cat([logs.sort(1, descending=True).values, own, F.one_hot(y, outputs.shape[1]).double()], 1)


def by_shadows(
    predict: Predict,
    x: Tensor,
    y: Tensor,
    auxiliary: tuple[Tensor, Tensor],
    fresh: Callable[[int], nn.Module],
    training: Training,
    shadows: int,
    rng: torch.Generator,
) -> Tensor:
    """Return (n,) float64: the target's outputs scored by a classifier that told members of shadow models from the rest.

    ``auxiliary``: the attacker's own rows; ``fresh``: an untrained network by number. Each shadow model learns half of the rows.
    """
    rows, labels = auxiliary
    seen, inside = [], []
    for number in range(shadows):
        order = torch.randperm(len(rows), generator=rng)
        half = order[: len(rows) // 2]
        model = trained(fresh(number), rows[half], labels[half], training, rng)
        with torch.inference_mode():
            seen.append(features(model(rows), labels))
        member = torch.zeros(len(rows), dtype=torch.float64)
        member[half] = 1.0
        inside.append(member)
    scored = features(predict(x), y)
    everything, member = torch.cat(seen), torch.cat(inside)
    mean, sd = everything.mean(0), everything.std(0).clamp_min(1e-6)
    weights = logistic((everything - mean) / sd, member)
    return ((scored - mean) / sd) @ weights[:-1] + weights[-1]


def outputs_of(model: nn.Module, x: Tensor) -> Tensor:
    """Return the outputs (n, classes) of a model in evaluation, by pieces that fit in memory."""
    with torch.inference_mode():
        return torch.cat([model(piece) for piece in torch.split(x, 1024)])


def trained(model: nn.Module, x: Tensor, y: Tensor, how: Training, rng: torch.Generator) -> nn.Module:
    """Train on the cross entropy by stochastic gradient descent; return the model."""
    model = copy.deepcopy(model)
    optimizer = how.optimizer(model)
    size = how.batch_size or len(x)
    for _ in range(how.epochs):
        for batch in torch.split(torch.randperm(len(x), generator=rng), size):
            optimizer.zero_grad()
            F.cross_entropy(model(x[batch]), y[batch]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return model.eval()


def logistic(x: Tensor, y: Tensor, ridge: float = 1e-3, steps: int = 30) -> Tensor:
    """Return (features + 1,) weights, the intercept last, of ridge logistic regression by Newton's method, in float64."""
    whole = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1)
    w = torch.zeros(whole.shape[1], dtype=x.dtype)
    for _ in range(steps):
        p = torch.sigmoid(whole @ w)
        slope = whole.T @ (p - y) / len(y) + ridge * w
        bend = (whole * (p * (1 - p))[:, None]).T @ whole / len(y) + ridge * torch.eye(len(w), dtype=x.dtype)
        step = torch.linalg.solve(bend, slope)
        w = w - step
        if float(step.abs().max()) < 1e-10:
            break
    return w

"""Distances between class scores that distillation minimises, for FedMD and FedDF."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from fedatlas.algorithm import Batch, Data, Facts, Message, Network, State
from fedatlas.tree import Tensors

Distance = Callable[[Tensor, Tensor], Tensor]
"""Function of the student's and the teacher's scores, both (rows, classes); it returns a mean."""

WHOLE_MODELS = dict.fromkeys(("model.bn.local", "model.bn.recalibrate"), "whole models are distilled")


def distance(name: str, temperature: float = 1.0) -> Distance:
    """Return a distance: ``l1``, ``l2``: mean over rows and classes of the difference; ``kl``: `divergence`."""
    if name == "l1":
        return lambda student, teacher: (student - teacher).abs().mean()
    if name == "l2":
        return lambda student, teacher: (student - teacher).square().mean()
    return lambda student, teacher: divergence(student, teacher, temperature)


def divergence(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Return the mean over rows of KL(softmax(teacher / T) || softmax(student / T)), without the factor T^2."""
    p, q = (log_softmax(both(scores) / temperature, dim=1) for scores in (teacher, student))
    return (p.exp() * (p - q)).sum(1).mean()


def fitting(fit: Distance) -> Callable[..., Tensor]:
    """Return the objective whose targets are another model's scores of the rows."""

    def objective(
        model: Network, params: Tensors, batch: Batch, message: Message, client: State, facts: Facts
    ) -> Tensor:
        return fit(model.logits(params, batch), batch.y)

    return objective


def scores_of(model: Network, data: Data, params: Tensors, buffers: Mapping[str, Tensor] = {}) -> dict[str, Tensor]:
    """Return the scores of the rows in order, (rows, classes); ``buffers``, if given, replace those of the message."""
    with torch.no_grad():
        found = [model.logits(params, piece._replace(extra={**piece.extra, **buffers})) for piece in data.pieces()]
    return {"scores": torch.cat(found)}


def both(scores: Tensor) -> Tensor:
    """Return the scores of all classes: a model of two classes may give one, the log-odds of the second."""
    return torch.cat([torch.zeros_like(scores), scores], 1) if scores.shape[1] == 1 else scores

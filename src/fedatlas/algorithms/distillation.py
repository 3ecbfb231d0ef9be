"""Distances between class scores that distillation makes small: FedMD's and FedDF's."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

Distance = Callable[[Tensor, Tensor], Tensor]
"""(the student's scores, the teacher's), both (rows, classes) -> mean."""

WHOLE_MODELS = dict.fromkeys(("model.bn.local", "model.bn.recalibrate"), "whole models are distilled")


def distance(name: str, temperature: float = 1.0) -> Distance:
    """``l1``, ``l2``: mean over rows and classes of the difference; ``kl``: `divergence`."""
    if name == "l1":
        return lambda student, teacher: (student - teacher).abs().mean()
    if name == "l2":
        return lambda student, teacher: (student - teacher).square().mean()
    return lambda student, teacher: divergence(student, teacher, temperature)


def divergence(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Mean over rows of KL(softmax(teacher / T) || softmax(student / T)), without the factor T^2."""
    p, q = (log_softmax(both(scores) / temperature, dim=1) for scores in (teacher, student))
    return (p.exp() * (p - q)).sum(1).mean()


def both(scores: Tensor) -> Tensor:
    """The scores of all classes: a model of two classes may give one, the log-odds of the second."""
    return torch.cat([torch.zeros_like(scores), scores], 1) if scores.shape[1] == 1 else scores

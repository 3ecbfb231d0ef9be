"""The weighted sum of updates, in float64 and in the order in which they are added (ALGORITHMS.md C8).

A monoid of nested values: lift an update by its coefficient, add. Coefficients are those the algorithm states (they sum to one for a
mean), so nothing is divided afterwards and a single client's update comes out bit for bit. Integer tensors take the maximum:
they are counters, which have no mean (C9).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedatlas.algorithm import Update
from fedatlas.errors import ProtocolError
from fedatlas.tree import Tree


class WeightedSum:
    """Adds updates up; holds one update's worth of memory, however many come."""

    def __init__(self) -> None:
        self.total: Any = None

    def add(self, update: Update, coefficients: float | Mapping[str, float]) -> None:
        """Adds ``coefficient * update``; with a mapping each part has its own (`part_of`).

        ProtocolError where the update has other parts than those before it: a part that some leave out has no mean.
        """
        if self.total is not None and self.total.keys() != update.keys():
            odd = sorted(self.total.keys() ^ update.keys())
            raise ProtocolError(f"updates to be added up differ in their parts: not every client sent '{odd[0]}'.")
        self.total = {
            part: _add(None if self.total is None else self.total[part], value, part_of(coefficients, part))
            for part, value in update.items()
        }


def part_of(coefficients: float | Mapping[str, float], part: str) -> float:
    """The coefficient of a part of an update; ``buffers`` and parts without one have that of ``model``, else of the first."""
    if not isinstance(coefficients, Mapping):
        return coefficients
    return coefficients.get(part, coefficients.get("model", next(iter(coefficients.values()))))


def _add(total: Any, value: Any, by: float) -> Any:
    if isinstance(value, Mapping):
        out = {key: _add(None if total is None else total[key], x, by) for key, x in value.items()}
        return Tree(out) if isinstance(value, Tree) else out
    if isinstance(value, Tensor):
        if not value.is_floating_point():
            return value.clone() if total is None else torch.maximum(total, value)
        if total is None:
            return value.to(torch.float64, copy=True).mul_(by)
        return total.add_(value.double(), alpha=by)
    return (0.0 if total is None else total) + by * value

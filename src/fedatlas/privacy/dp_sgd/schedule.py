"""The steps of DP-SGD on one client, from numbers that all may know: its rows, rows per batch, and its budget."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from fedatlas.algorithm import Budget


class Schedule(NamedTuple):
    """The noisy steps of one visit."""

    steps: int
    size: int  # B: expected rows of a batch, the fixed denominator
    rate: float  # q: probability with which each row is in a batch


def schedule(budget: Budget, n: int, batch_size: int) -> Schedule:
    """Return the steps on ``n`` rows: an epoch is ceil(n / B) steps. ``batch_size`` 0: all rows in every batch.

    They follow from the budget and n only, never from who was drawn.
    """
    size = min(batch_size or n, n)
    if not size:
        return Schedule(0, 0, 1.0)
    limits = [] if budget.steps is None else [budget.steps]
    if budget.epochs is not None:
        limits.append(budget.epochs * math.ceil(n / size))
    if budget.examples is not None:
        limits.append(math.ceil(budget.examples / size))
    return Schedule(min(limits, default=0), size, size / n)

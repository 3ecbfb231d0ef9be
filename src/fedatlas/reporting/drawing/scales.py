"""Scales: from values to coordinates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Linear(NamedTuple):
    """A straight axis from ``start`` to ``end`` (SVG units) for the values ``low`` to ``high``."""

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...]

    def __call__(self, value: float) -> float:
        """Return the place of a value."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


class Band(NamedTuple):
    """Equal slots from ``start`` to ``end``, one per category."""

    slots: int
    start: float
    end: float

    @property
    def step(self) -> float:
        """Width of a slot."""
        return (self.end - self.start) / self.slots

    def __call__(self, i: int) -> float:
        """Return the middle of slot ``i``."""
        return self.start + (i + 0.5) * self.step


def nice_step(span: float, parts: int, *, whole: bool = False) -> float:
    """Return the smallest of 1, 2, 2.5, 5 x 10^m that cuts ``span`` into at most ``parts``; ``whole``: only 1, 2, 5, 10 ..."""
    rough = max(span / parts, 1.0) if whole else span / parts
    power = 10.0 ** math.floor(math.log10(rough))
    steps = (1.0, 2.0, 5.0, 10.0) if whole else (1.0, 2.0, 2.5, 5.0, 10.0)
    return power * next(step for step in steps if step * power >= rough * (1 - 1e-9))


def linear(
    values: Iterable[float],
    start: float,
    end: float,
    *,
    parts: int = 5,
    zero: bool = False,
    whole: bool = False,
    tight: bool = False,
    unit: float = 1.0,
) -> Linear:
    """Return an axis over the values with round ticks.

    ``zero``: begins at 0. ``whole``: ticks only at whole numbers. ``tight``: ends at the last value instead of at a
    tick. ``unit``: ticks are round in this unit.
    """
    known = [v / unit for v in values]
    low, high = min(known, default=0.0), max(known, default=1.0)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if high - low < 1e-9 * max(abs(high), 1e-3):
        spread = abs(high) * 0.1 if abs(high) > 1e-9 else 1.0  # ticks have twelve decimals
        low, high = (0.0 if zero else low - spread), high + spread
    step = nice_step(high - low, parts, whole=whole)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = [round(i * step, 12) for i in range(first, last + 1)]
    ends = (low, high) if tight else (ticks[0], ticks[-1])
    shown = tuple(t * unit for t in ticks if ends[0] - 1e-9 * step <= t <= ends[1] + 1e-9 * step)
    return Linear(ends[0] * unit, ends[1] * unit, start, end, shown)


def logarithmic(values: Sequence[float], start: float, end: float) -> Linear:
    """Return a logarithmic axis of amounts above 0. It takes log10 of a value, and its ticks are round values."""
    low, high = (math.log10(f(values, default=1.0)) for f in (min, max))
    if high - low < 0.3:  # less than a factor of two
        middle = (low + high) / 2
        low, high = middle - 0.15, middle + 0.15
    fine = ((0.6, (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)), (1.2, (1, 2, 3, 5)), (2.5, (1, 2, 5)), (math.inf, (1,)))
    steps = next(steps for most, steps in fine if high - low < most)
    marks = [m + math.log10(k) for m in range(math.floor(low), math.ceil(high) + 1) for k in steps]
    return Linear(low, high, start, end, tuple(m for m in marks if low - 1e-9 <= m <= high + 1e-9))

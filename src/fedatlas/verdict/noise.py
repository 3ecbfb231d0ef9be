"""The noise of the last rounds: how far a figure swings in them, and whether that matters for the answer."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fedatlas.verdict.rule import Ends

SHARE, FEWEST = 0.25, 5  # share of the judged rounds that count as the last, and their least number


def last_swing(values: Sequence[float | None]) -> float | None:
    """Return how far a figure swings over the last rounds: the spread from lowest to highest about a straight line.

    ``values``: those of the judged rounds, without the initial model. None for fewer than five.
    """
    known = [v for v in values if v is not None and math.isfinite(v)]
    last = np.asarray(known[-max(FEWEST, round(SHARE * len(known))) :], dtype=np.float64)
    if len(last) < FEWEST:
        return None
    at = np.arange(len(last)) - (len(last) - 1) / 2
    rest = last - last.mean() - at * float((at * (last - last.mean())).sum() / (at * at).sum())
    return float(rest.max() - rest.min())


def matters(swing: float | None, gain: Ends | None, own: tuple[float, float] | None) -> bool:
    """Return whether a swing is as large as what the answer rests on: the gain, or half its interval.

    ``own``: the interval of the figure itself. A swing within half of it, about two standard errors, does not count,
    since it may be due to a row or two.
    """
    if swing is None or swing <= 0 or (own is not None and swing <= (own[1] - own[0]) / 2):
        return False
    if gain is not None:
        return swing > min(abs(gain.value), (gain.high - gain.low) / 2)
    return own is not None

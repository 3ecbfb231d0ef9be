"""The share of members found at 0.1% false positives, with an exact interval.

The threshold comes from a random half of the non-members. Neither the members nor the other half had a part in it, so their shares beyond
it have Clopper-Pearson intervals. The share of the other half is the placebo.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedatlas.metrics.intervals import Interval, clopper_pearson
from fedatlas.rng import numpy_stream

RESOLVED = 10_000  # non-members; with fewer, a rate at 0.1% false positives is not resolved
RATE = 1000  # one non-member in so many lies beyond the threshold
LEVEL, EACH = 0.95, 0.975  # of an interval; of each of the two that bound a difference


class LowRate(NamedTuple):
    """Shares beyond the threshold, or of None where they are not resolved."""

    found: Interval  # members
    placebo: Interval  # non-members of the other half
    leak: Interval  # their difference, at least at 95%


def low_rate(score: np.ndarray, member: np.ndarray, seed: int) -> LowRate:
    """Return the shares of members and of other non-members beyond a threshold that one non-member in a thousand exceeds."""
    outside = score[~member]
    if len(outside) < RESOLVED:
        return LowRate(*[Interval(None, None, None, LEVEL)] * 3)
    outside = numpy_stream(seed, "attack", "threshold").permutation(outside)
    half = len(outside) // 2
    bound = np.sort(outside[:half])[-1 - half // RATE]
    inside, rest = score[member] > bound, outside[half:] > bound
    found, placebo = _share(inside, LEVEL), _share(rest, LEVEL)
    more, less = _share(inside, EACH), _share(rest, EACH)
    leak = Interval(more[0] - less[0], more[1] - less[2], more[2] - less[1], LEVEL)
    return LowRate(Interval(*found, LEVEL), Interval(*placebo, LEVEL), leak)


def _share(beyond: np.ndarray, level: float) -> tuple[float, float, float]:
    hits = int(beyond.sum())
    return hits / len(beyond), *clopper_pearson(hits, len(beyond), level)

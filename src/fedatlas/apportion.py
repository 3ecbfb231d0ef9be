"""Split a total into proportional integers: rows to clients, rows to classes, clients to architectures."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_NEARLY = 1e-9  # a quota this little below an integer counts as that integer: 0.7 * 10 is 7


def largest_remainder(quotas: NDArray[np.floating], total: int) -> NDArray[np.int64]:
    """Round ``quotas`` (n,) to integers that sum to ``total``, which must be at least the sum of their floors.

    The remainder after flooring goes to the largest fractional parts, one each; ties go to the lower index.
    """
    whole: NDArray[np.int64] = np.floor(quotas + _NEARLY).astype(np.int64)
    whole[np.argsort(whole - quotas, kind="stable")[: total - int(whole.sum())]] += 1
    return whole


def proportional(weights: NDArray[np.floating | np.integer], total: int) -> NDArray[np.int64]:
    """Return integers proportional to ``weights`` (n,) that sum to ``total``, by largest remainder."""
    return largest_remainder(weights * (total / weights.sum()), total)

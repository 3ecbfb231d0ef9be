"""Skellam noise, drawn from its distribution function: whole numbers, without any floating-point arithmetic.

    P(X = k) = exp(-v) I_|k|(v)        v: the variance, a whole number; I: the modified Bessel function

`table` computes P(|X| <= j) in integers, by Miller's backward recursion I_(j-1) = I_(j+1) + (2 j / v) I_j, which loses nothing as all
terms are positive. A draw takes a sign and a uniform number of 127 bits and looks its size up. Of that number 63 bits are drawn first;
the other 64 only if the first ones equal those of an entry, which happens once in 2^40 draws. A draw differs from the ideal law by
less than 2^-100 in total variation (`EXACT`): the entries are rounded to 2^-127, and sizes beyond 16 standard deviations + 64, of mass
below 2^-180, are given to the last one.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedatlas.privacy.mechanism import Noise
from fedatlas.privacy.noise import words
from fedatlas.privacy.skellam import check_variance

EXACT = 2.0**-100  # largest distance of a draw from the ideal law, in total variation
LIMB, WIDTH = 64, 127  # bits of the part of a uniform number that is rarely drawn, and of the whole of it
START = 1 << 256  # the recursion's first value, so that its divisions round by less than 2^-256 of it


class SizeTable(NamedTuple):
    """P(|X| <= j) 2^127, rounded down, for j = 0, 1, ...; the last entry is 2^127. ``high``: bits from 64 up; ``low``: the others."""

    high: npt.NDArray[np.uint64]
    low: npt.NDArray[np.uint64]


def last_size(variance: int) -> int:
    """Return the largest size that is drawn."""
    return 16 * (math.isqrt(variance) + 1) + 64


@lru_cache(maxsize=4)
def table(variance: int) -> SizeTable:
    """Return the distribution of the size of a Skellam number of this variance. PrivacyError if it is too wide."""
    check_variance(variance)
    last = last_size(variance)
    sizes = [0] * last + [START, 0]  # relative probabilities of 0 to ``last``, which the sum of all makes probabilities
    for j in range(last, 0, -1):
        sizes[j - 1] = sizes[j + 1] + 2 * j * sizes[j] // variance
    whole, so_far, entries = 2 * sum(sizes) - sizes[0], 0, []
    for j in range(last + 1):
        so_far += sizes[j] if j == 0 else 2 * sizes[j]
        entries.append((so_far << WIDTH) // whole)
    entries[-1] = 1 << WIDTH
    high = np.array([x >> LIMB for x in entries], np.uint64)
    return SizeTable(high, np.array([x & (1 << LIMB) - 1 for x in entries], np.uint64))


def skellam(n: int, variance: int, noise: Noise, *key: int | str) -> npt.NDArray[np.int64]:
    """Return ``n`` independent Skellam numbers of this variance, in steps. ``key`` names the draw under "seed".

    PrivacyError if the variance is too large (`check_variance`).
    """
    if variance == 0:
        return np.zeros(n, np.int64)
    found, drawn = table(variance), words(noise, n, *key)
    first = drawn >> np.uint64(1)
    sizes = np.searchsorted(found.high, first, side="right")
    unsure = np.flatnonzero(found.high[np.maximum(sizes, 1) - 1] == first)
    rest = words(noise, len(unsure), *key, "rest") if len(unsure) else ()
    for i, more in zip(unsure.tolist(), rest, strict=True):
        begin = int(np.searchsorted(found.high, first[i]))
        sizes[i] = begin + int(np.searchsorted(found.low[begin : sizes[i]], more, side="right"))
    signs = np.where(drawn & np.uint64(1), 1, -1)
    return (signs * sizes).astype(np.int64)

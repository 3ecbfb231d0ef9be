"""Real numbers in agreed steps: whole numbers of so many bits across [-range, range). Values outside are refused, never clipped."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fedatlas.errors import PrivacyError


def step_of(bits: int, range: float) -> float:
    """Return the distance between neighbouring values: 2^bits values span [-range, range)."""
    return math.ldexp(range, 1 - bits)


def rounded(scaled: NDArray[np.float64], bits: int, range: float, owner: str, part: str) -> NDArray[np.int64]:
    """Return ``scaled``, numbers over their step, as whole numbers from -2^(bits-1) to below 2^(bits-1). ``scaled`` is overwritten.

    PrivacyError for a value outside or not a number. It names ``part`` of ``owner`` and a sufficient range.
    """
    np.rint(scaled, out=scaled)
    half = 1 << bits - 1
    low, high = (scaled.min(), scaled.max()) if scaled.size else (0.0, 0.0)  # both are NaN if any value is
    if -half <= low and high < half:
        return scaled.astype(np.int64)  # converting a negative float64 to an unsigned word depends on the processor
    if not math.isfinite(low) or not math.isfinite(high):
        raise PrivacyError(f"'{part}' of {owner} holds something that is no finite number: its training diverged.")
    wanted, step = range, step_of(bits, range)
    while low * step < -wanted or high * step >= wanted * (1 - math.ldexp(1.0, 1 - bits)):
        wanted *= 2
    raise PrivacyError(
        f"'{part}' of {owner} holds a value outside [-{range:g}, {range:g}): range = {wanted:.15g} would do."
    )

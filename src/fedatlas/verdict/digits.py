"""Figures of one sentence, all with the same number of decimals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from fedatlas.wording import DASH

USUAL, MOST = 3, 6  # decimals
NOTHING = 1e-9  # a value below this share of the largest figure is a rounding error


class Digits(NamedTuple):
    """The format of the figures of one sentence."""

    decimals: int

    def number(self, v: float | None) -> str:
        """Return a number as text: 0.81111 -> '0.811'; a dash for None."""
        if v is None:
            return DASH
        text = f"{abs(v):,.{self.decimals}f}"
        return f"−{text}" if v < 0 and any(digit in text for digit in "123456789") else text

    def signed(self, v: float | None) -> str:
        """Return the number with its sign; without one if it is written as 0."""
        text = self.number(v)
        plus = v is not None and v > 0 and any(digit in text for digit in "123456789")
        return f"+{text}" if plus else text

    def telling(self, pairs: Sequence[tuple[float, float]]) -> Digits:
        """Return enough decimals to write the numbers of every pair differently, if they differ."""
        apart = [(a, b) for a, b in pairs if abs(a - b) > NOTHING]
        enough = (Digits(d) for d in range(self.decimals, MOST + 1))
        return next(
            (d for d in enough if all(d.number(a) != d.number(b) for a, b in apart)), Digits(max(self.decimals, MOST))
        )

    def ends(self, low: float, high: float) -> str:
        """Return '+0.020 to +0.080'."""
        return f"{self.signed(low)} to {self.signed(high)}"


def digits_of(levels: Sequence[float | None], differences: Sequence[float | None]) -> Digits:
    """Return decimals that suit the size of the levels, and that show two digits of the largest difference."""
    of, apart = (max((abs(v) for v in group if v is not None), default=0.0) for group in (levels, differences))
    size = max(of, apart)
    usual = 0 if size >= 1000 else 1 if size >= 100 else USUAL
    if apart <= NOTHING * max(of, 1.0):
        return Digits(usual)
    return Digits(max(usual, min(1 - math.floor(math.log10(apart)), MOST)))

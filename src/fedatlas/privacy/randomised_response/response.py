"""k-ary randomised response in whole numbers, and the frequencies that it lets one estimate.

Of S = a + (k - 1) b equally likely numbers, a keep a value and b lead to each other value, with b = 2^32 and a the largest whole number
below e^epsilon b. So the likelihood ratio a / b is at most e^epsilon exactly, and at least e^epsilon - 2^-32. No probability is a
floating-point number: e^epsilon is rounded down with 60 digits, and a uniform number below S is drawn by rejection from words of the
party's secret.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedatlas.privacy.mechanism import Noise

OTHER = 1 << 32  # numbers that lead to each other value
DIGITS = 60  # of e^epsilon, more than the 2^128 that its largest multiple takes


class Odds(NamedTuple):
    """Whole numbers that decide a response among ``k`` values."""

    keep: int
    other: int
    k: int

    @property
    def total(self) -> int:
        """How many numbers there are."""
        return self.keep + (self.k - 1) * self.other

    @property
    def p(self) -> Fraction:
        """Probability that a value stays."""
        return Fraction(self.keep, self.total)

    @property
    def q(self) -> Fraction:
        """Probability of each other value."""
        return Fraction(self.other, self.total)


def odds(epsilon: float, k: int) -> Odds:
    """Return the numbers for an epsilon above 0 and at most 64, and ``k`` >= 2 values."""
    with decimal.localcontext(prec=DIGITS):
        below = decimal.Decimal(epsilon).exp().next_minus()
        return Odds(math.floor(below * OTHER), OTHER, k)


def responses(values: npt.NDArray[np.int64], of: Odds, noise: Noise, *key: int | str) -> npt.NDArray[np.int64]:
    """Return (n,) a response to each value 0, ..., k - 1; the same for the same secret and ``key``."""
    drawn = below(of.total, len(values), noise, *key)
    out = values.copy()
    for i, number in enumerate(drawn):
        if number >= of.keep:
            step = (number - of.keep) // of.other  # 0, ..., k - 2: the other values in their order
            out[i] = step + (step >= values[i])
    return out


def below(bound: int, n: int, noise: Noise, *key: int | str) -> list[int]:
    """Return ``n`` whole numbers from 0, ..., ``bound`` - 1, each equally likely: words of too high a value are drawn again."""
    out: list[int] = []
    for number in _numbers(bound.bit_length(), noise, *key):
        if len(out) == n:
            break
        if number < bound:
            out.append(number)
    return out


def _numbers(bits: int, noise: Noise, *key: int | str) -> Iterator[int]:
    """Yield whole numbers of so many bits, without end."""
    from fedatlas.privacy.noise import words

    each, block = -(-bits // 64), 0
    while True:
        raw = words(noise, 1024 * each, *key, block).tobytes()
        for at in range(0, len(raw), 8 * each):
            yield int.from_bytes(raw[at : at + 8 * each], "little") >> (64 * each - bits)
        block += 1


def estimate(counts: Sequence[int], of: Odds) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return unbiased estimates of the shares of the values before, and their standard errors, from ``counts`` of responses.

    (f - q) / (p - q), which may lie below 0 or above 1. The error is that of the draws and of a sample of rows.
    """
    n, gap = sum(counts), float(of.p - of.q)
    shares = [count / n for count in counts]
    found = tuple((f - float(of.q)) / gap for f in shares)
    return found, tuple(math.sqrt(f * (1 - f) / n) / gap for f in shares)

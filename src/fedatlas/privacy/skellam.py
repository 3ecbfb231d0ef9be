"""The price of Skellam noise: whole numbers with the law of a difference of two Poisson numbers, of variance mu together.

A sum of independent Skellam numbers is one of the sum of their variances, whoever left. For integer orders alpha > 1 the Rényi
divergence of whole vectors with noise of variance mu in each number, Delta_1 and Delta_2 apart, is at most

    alpha Delta_2^2 / (2 mu) + min( ((2 alpha - 1) Delta_2^2 + 6 Delta_1) / (4 mu^2), 3 Delta_1 / (2 mu) )

Whole numbers have Delta_1 <= Delta_2^2. With s = Delta_2 in steps and mu = (z s)^2 this is

    alpha / (2 z^2) + min( (2 alpha + 5) / (4 z^4 s^2), 3 / (2 z^2) )

a Gaussian's divergence and a rest that fine steps make negligible. Divergences of releases add up, and give epsilon at delta.
Source: Agarwal, Kairouz, Liu, The Skellam Mechanism, NeurIPS 2021, corollary 3.6; Canonne, Kairouz, Steinke 2020, proposition 12, for
epsilon. P16.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from fedatlas.errors import PrivacyError

ORDERS = (*range(2, 257), *(round(256 * 1.05**i) for i in range(1, 171)))
"""Orders of divergences that are tried, up to about 10^6."""

WIDEST = 1 << 16  # largest standard deviation of noise that is drawn: its table has a million entries


def divergence(order: int, multiplier: float, steps: float) -> float:
    """Return the bound above of one release: ``multiplier`` is z, ``steps`` is s; 0 steps stand for continuous Gaussian noise."""
    z = multiplier * multiplier
    rest = min((2 * order + 5) / (4 * z * z * steps * steps), 3 / (2 * z)) if steps else 0.0
    return order / (2 * z) + rest


def epsilon_of(spent: Callable[[int], float], delta: float) -> float:
    """Return the smallest epsilon >= 0 at ``delta`` that follows from a divergence of each order."""
    found = (spent(a) + math.log1p(-1 / a) - (math.log(delta) + math.log(a)) / (a - 1) for a in ORDERS)
    return max(min(found), 0.0)


def check_variance(variance: int) -> None:
    """Raise PrivacyError for a variance that has no table."""
    if not 0 <= variance <= WIDEST * WIDEST:
        raise PrivacyError(
            f"noise with a standard deviation of {math.sqrt(abs(variance)):,.0f} steps is wider than the {WIDEST:,} that are drawn "
            "here: take fewer bits."
        )

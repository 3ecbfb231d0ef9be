"""A lower bound on epsilon from one run with canaries (Steinke, Nasr, Jagielski 2023).

Each of m canaries was in the run with chance 1/2, independently. Who guesses r of them, and is right about v, would be so
with small chance under (epsilon, delta): of all guesses a share e^epsilon / (1 + e^epsilon) is right at best, and delta adds
a term. The bound is the smallest epsilon that is not rejected.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import expit
from scipy.stats import binom

SHARES = (0.1, 0.3, 0.6)
"""Shares of the canaries that are guessed. All are tried, and the confidence is paid for: it is divided among them."""
LARGEST = 60.0  # epsilon: beyond it nothing is told apart


Numbers = np.ndarray | Sequence[float]


class EpsilonBound(NamedTuple):
    """A lower bound on epsilon, by the guesses that gave it."""

    epsilon: float
    canaries: int
    guessed: int
    right: int


def lower_bound(score: Numbers, member: Numbers, delta: float, confidence: float) -> EpsilonBound:
    """Return the lower bound on epsilon at this confidence.

    score: (m,): the higher, the more likely the canary was in.
    member: (m,): whether it was.

    Half of the guesses are on the highest scores, as members, half on the lowest. Ties are broken by position, which knows
    nothing of membership.
    """
    values, truth = np.asarray(score, float), np.asarray(member, bool)
    m, order = len(truth), np.argsort(np.asarray(score, float), kind="stable")
    if len(values) != m or not np.isfinite(values).all():
        raise ValueError("one finite score for each canary is needed")
    error, out = (1 - confidence) / len(SHARES), EpsilonBound(0.0, m, 0, 0)
    for share in SHARES:
        half = int(share * m / 2)
        right = int(truth[order[m - half :]].sum() + (~truth[order[:half]]).sum()) if half else 0
        found = smallest_epsilon(m, 2 * half, right, delta, error)
        if found > out.epsilon or not out.guessed:
            out = EpsilonBound(found, m, 2 * half, right)
    return out


def smallest_epsilon(m: int, r: int, v: int, delta: float, error: float) -> float:
    """Return the smallest epsilon at which v of r guesses right has a chance above ``error``; 0 if it has so without a leak."""
    if not r or chance(m, r, v, 0.0, delta) > error:
        return 0.0
    low, high = 0.0, LARGEST
    if chance(m, r, v, high, delta) <= error:
        return high
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (low, middle) if chance(m, r, v, middle, delta) > error else (middle, high)
    return low


def chance(m: int, r: int, v: int, epsilon: float, delta: float) -> float:
    """Return a bound on the chance of at least v right among r guesses about m canaries, under (epsilon, delta)."""
    q = float(expit(epsilon))
    below = np.cumsum(binom.pmf(np.arange(v - 1, -1, -1), r, q)) if v else np.zeros(1)
    alpha = float((below / np.arange(1, len(below) + 1)).max())
    return min(1.0, float(binom.sf(v - 1, r, q)) + 2 * m * delta * alpha)


def most_right(epsilon: float, delta: float) -> float:
    """Return the largest share of guesses about one canary that may be right under (epsilon, delta)."""
    return min(1.0, (math.exp(min(epsilon, LARGEST)) + delta) / (1 + math.exp(min(epsilon, LARGEST))))

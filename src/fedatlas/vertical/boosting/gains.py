"""Gradients in fixed point, and what a split gains: one float64 function of whole sums (V2).

    squared    g = yhat - y, h = 1        on the standardised target
    logistic   g = p - y, h = p (1 - p)   p = 1 / (1 + exp(-margin))

Once a tree g and h, times the weights of the rows, are divided by the power of two above their largest size and rounded to 2^-precision;
from then on there are whole numbers only, which add up alike in any order and under encryption. A sum is a row of three: of g, of h, and
how many rows.

    gain = 1/2 [T(G_L)^2/(H_L + l2) + T(G_R)^2/(H_R + l2) - T(G)^2/(H + l2)] - min_gain
    T(G) = sign(G) max(|G| - l1, 0),  leaf = -T(G)/(H + l2)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedatlas.errors import DataError
from fedatlas.vertical.boosting.settings import SecureBoost
from fedatlas.vertical.parties import Floats, Whole


class Fixed(NamedTuple):
    """Gradients of some rows as whole numbers: g stands for g 2^(g_power - precision), h likewise."""

    g: Whole  # (rows,), at most 2^precision in size
    h: Whole  # (rows,), from 0 to 2^precision
    g_power: int
    h_power: int


class Unit(NamedTuple):
    """What margins mean: classes have log-odds; a number is start + scale margin."""

    task: str  # "classes" or "numbers"
    start: float = 0.0
    scale: float = 1.0


def unit_of(y: Floats, weight: Floats | None, task: str) -> Unit:
    """The target's weighted mean and standard deviation over the training rows; classes stay as they are."""
    if task == "classes":
        return Unit(task)
    mean = float(np.average(y, weights=weight))
    deviation = math.sqrt(float(np.average((y - mean) ** 2, weights=weight)))
    return Unit(task, mean, deviation or 1.0)


def gradients(y: Floats, margin: Floats, weight: Floats | None, unit: Unit) -> tuple[Floats, Floats]:
    """g and h of each row at these margins, times its weight."""
    if unit.task == "classes":
        with np.errstate(over="ignore"):  # exp of a large number is infinity, and p is 0
            p = 1 / (1 + np.exp(-margin))
        g, h = p - y, p * (1 - p)
    else:
        g, h = margin - (y - unit.start) / unit.scale, np.ones(len(y))
    return (g, h) if weight is None else (g * weight, h * weight)


def fixed(g: Floats, h: Floats, precision: int) -> Fixed:
    """Both rounded. DataError where their sums would run over 63 bits."""
    if len(g) << precision >= 1 << 62:
        raise DataError(
            f"sums of {len(g):,} rows at {precision} bits do not fit into 63 bits: lower algorithm.precision."
        )
    powers = [math.frexp(float(np.abs(one).max(initial=0.0)))[1] for one in (g, h)]
    whole = [
        np.rint(np.ldexp(one, precision - power)).astype(np.int64) for one, power in zip((g, h), powers, strict=True)
    ]
    return Fixed(whole[0], whole[1], powers[0], powers[1])


def real(sums: Whole, found: Fixed, precision: int) -> tuple[Floats, Floats]:
    """(G, H) that rows of sums (..., 3) stand for."""
    g = np.ldexp(sums[..., 0].astype(np.float64), found.g_power - precision)
    return g, np.ldexp(sums[..., 1].astype(np.float64), found.h_power - precision)


def pulled(G: Floats, l1: float) -> Floats:
    """T(G): nearer to 0 by l1."""
    moved: Floats = np.sign(G) * np.maximum(np.abs(G) - l1, 0)
    return moved


def worth(G: Floats, H: Floats, how: SecureBoost) -> Floats:
    """T(G)^2 / (H + l2); 0 where nothing can be divided by."""
    pull, over = pulled(G, how.l1), H + how.l2
    found: Floats = np.where(over > 0, pull * pull / np.where(over > 0, over, 1), 0)
    return found


def gains(left: Whole, whole: Whole, found: Fixed, how: SecureBoost) -> Floats:
    """(k,) what each candidate with these left sums (k, 3) gains in a node with these sums (3,); -inf where a side is too small."""
    right = whole - left
    both = worth(*real(left, found, how.precision), how) + worth(*real(right, found, how.precision), how)
    gained = 0.5 * (both - worth(*real(whole, found, how.precision), how)) - how.min_gain
    allowed = (left[:, 2] >= how.min_leaf) & (right[:, 2] >= how.min_leaf)
    return np.where(allowed, gained, -np.inf)


def leaf(whole: Whole, found: Fixed, how: SecureBoost) -> float:
    """What a leaf with these sums adds to a margin, learning rate included."""
    G, H = real(whole, found, how.precision)
    over = float(H) + how.l2
    return 0.0 - float(pulled(G, how.l1)) / over * how.learning_rate if over > 0 else 0.0


class Choice(NamedTuple):
    """The best split of a node: whose it is, and which of that party's candidates gain as much."""

    party: int
    gain: float
    ties: NDArray[np.int64]


def chosen(gained: Mapping[int, Floats]) -> Choice | None:
    """The best of all parties' candidates; of equal gains that of the party listed first (V2). None: no split gains anything."""
    best: Choice | None = None
    for party in sorted(gained):
        top = float(gained[party].max(initial=-np.inf))
        if top > 0 and (best is None or top > best.gain):
            best = Choice(party, top, np.flatnonzero(gained[party] == top))
    return best

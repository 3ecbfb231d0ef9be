"""Gradients in fixed point, and the gain of a split, a float64 function of integer sums (V2).

    squared    g = yhat - y, h = 1        on the standardised target
    logistic   g = p - y, h = p (1 - p)   p = 1 / (1 + exp(-margin))
    softmax    g_c = p_c - [y = c], h_c = p_c (1 - p_c)   p_c = exp(margin_c) / sum of exp(margin) over the classes

``square_scale = 2`` doubles g and h of the first, ``softmax_hess = "xgboost"`` h of the last.

Once per round, g and h of each class, times the weights of the rows, are divided by the power of two above their largest size
and rounded to 2^-precision. From then on all numbers are integers, whose sums are the same in any order and under
encryption. A sum has three parts, g, h and the number of rows; a sum of several classes has g and h of each, then the number.

    gain = 1/2 [T(G_L)^2/(H_L + l2) + T(G_R)^2/(H_R + l2) - T(G)^2/(H + l2)] - min_gain
    T(G) = sign(G) max(|G| - l1, 0),  leaf = -T(G)/(H + l2)

A tree of several classes (``multi_output``) adds up the bracket over them, and its leaf has a value for each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedatlas.algorithm import State
from fedatlas.errors import DataError
from fedatlas.vertical.boosting.settings import SecureBoost
from fedatlas.vertical.parties import Floats, Whole


class Fixed(NamedTuple):
    """Gradients of some rows, of one class, as integers: g represents g 2^(g_power - precision), and h likewise."""

    g: Whole  # (rows,), at most 2^precision in size
    h: Whole  # (rows,), from 0 to 2^precision
    g_power: int
    h_power: int


class MarginUnit(NamedTuple):
    """The unit of margins: log-odds for two classes, softmax for more; for a number, start + scale margin."""

    task: str  # "classes" or "numbers"
    start: float = 0.0
    scale: float = 1.0
    outputs: int = 1  # margins a row: one for each of three or more classes


def unit_of(y: Floats, weight: Floats | None, task: str, classes: int = 0) -> MarginUnit:
    """Return the unit: for numbers the target's weighted mean and standard deviation over the training rows.

    DataError for numbers so large that these are not finite.
    """
    if task == "classes":
        return MarginUnit(task, outputs=classes if classes > 2 else 1)
    with np.errstate(over="ignore", invalid="ignore"):
        mean = float(np.average(y, weights=weight))
        deviation = math.sqrt(float(np.average((y - mean) ** 2, weights=weight)))
    if not math.isfinite(mean + deviation):
        raise DataError("the label's numbers are too large for a mean and a standard deviation: use a larger unit.")
    return MarginUnit(task, mean, deviation or 1.0)


def softmax(margin: Floats) -> Floats:
    """Return (rows, classes), the probabilities of margins of this shape."""
    parts = np.exp(margin - margin.max(axis=1, keepdims=True))
    found: Floats = parts / _over_classes(parts)
    return found


def log_softmax(margin: Floats) -> Floats:
    """Return (rows, classes), the logarithms of the probabilities of margins of this shape."""
    below = margin - margin.max(axis=1, keepdims=True)
    found: Floats = below - np.log(_over_classes(np.exp(below)))
    return found


def _over_classes(parts: Floats) -> Floats:
    """Return (rows, 1), the sums over classes (rows, classes), added one after the other."""
    total: Floats = reduce(np.add, parts.T)
    return total[:, None]


def gradients(
    y: Floats, margin: Floats, weight: Floats | None, unit: MarginUnit, how: SecureBoost
) -> tuple[Floats, Floats]:
    """Return g and h of each row at these margins, times its weight: (rows,), or (rows, classes) of three or more."""
    if unit.outputs > 1:
        p = softmax(margin)
        g, h = p - (y[:, None] == np.arange(unit.outputs)), p * (1 - p) * (2 if how.softmax_hess == "xgboost" else 1)
        return (g, h) if weight is None else (g * weight[:, None], h * weight[:, None])
    if unit.task == "classes":
        with np.errstate(over="ignore"):  # exp of a large number is infinity, and p is 0
            p = 1 / (1 + np.exp(-margin))
        g, h = p - y, p * (1 - p)
    else:
        g, h = margin - (y - unit.start) / unit.scale, np.ones(len(y))
        g, h = g * (how.square_scale or 1), h * (how.square_scale or 1)
    return (g, h) if weight is None else (g * weight, h * weight)


def by_class(g: Floats, h: Floats, precision: int) -> tuple[Fixed, ...]:
    """Round g and h to fixed point, those of each class (rows, classes) by themselves. DataError as of `fixed`."""
    pairs = zip(np.atleast_2d(g.T), np.atleast_2d(h.T), strict=True)
    return tuple(fixed(*pair, precision) for pair in pairs)


def fixed(g: Floats, h: Floats, precision: int) -> Fixed:
    """Round g and h to fixed point. DataError if their sums could exceed 63 bits."""
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
    """Return (G, H), the real values of integer sums (..., 3)."""
    g = np.ldexp(sums[..., 0].astype(np.float64), found.g_power - precision)
    return g, np.ldexp(sums[..., 1].astype(np.float64), found.h_power - precision)


def pulled(G: Floats, l1: float) -> Floats:
    """Return T(G), which is G moved towards 0 by l1."""
    moved: Floats = np.sign(G) * np.maximum(np.abs(G) - l1, 0)
    return moved


def worth(G: Floats, H: Floats, how: SecureBoost) -> Floats:
    """Return T(G)^2 / (H + l2); 0 if the divisor is not positive."""
    pull, over = pulled(G, how.l1), H + how.l2
    found: Floats = np.where(over > 0, pull * pull / np.where(over > 0, over, 1), 0)
    return found


def of_class(sums: Whole, c: int) -> Whole:
    """Return (..., 3), the sums of class c of several (..., 2 classes + 1)."""
    found: Whole = sums[..., [2 * c, 2 * c + 1, -1]]
    return found


def gains(left: Whole, whole: Whole, found: Sequence[Fixed], how: SecureBoost) -> Floats:
    """Return (k,), the gain of each candidate with left sums (k, 2 classes + 1) in a node with sums (2 classes + 1,).

    ``found``: the gradients of these classes. -inf for a candidate with fewer than ``min_leaf`` rows on a side.
    """
    right, total = whole - left, np.zeros(len(left))
    for c, one in enumerate(found):
        a, b, both = (worth(*real(of_class(sums, c), one, how.precision), how) for sums in (left, right, whole))
        total += a + b - both
    allowed = (left[:, -1] >= how.min_leaf) & (right[:, -1] >= how.min_leaf)
    return np.where(allowed, 0.5 * total - how.min_gain, -np.inf)


def leaf(whole: Whole, found: Fixed, how: SecureBoost) -> float:
    """Return what a leaf with these sums (3,) adds to a margin, learning rate included."""
    G, H = real(whole, found, how.precision)
    over = float(H) + how.l2
    return 0.0 - float(pulled(G, how.l1)) / over * how.learning_rate if over > 0 else 0.0


class BestSplit(NamedTuple):
    """The best split of a node: its party, its gain, and the candidates of that party with this gain."""

    party: int
    gain: float
    ties: NDArray[np.int64]


def chosen(gained: Mapping[int, Floats]) -> BestSplit | None:
    """Return the best of all parties' candidates, or None if no split gains anything.

    Of equal gains, that of the party listed first is chosen (V2).
    """
    best: BestSplit | None = None
    for party in sorted(gained):
        top = float(gained[party].max(initial=-np.inf))
        if top > 0 and (best is None or top > best.gain):
            best = BestSplit(party, top, np.flatnonzero(gained[party] == top))
    return best


def outputs(state: State) -> Floats:
    """Return outputs in the active party's state: (N,) log-odds of the second class, or numbers in the label unit.

    For three or more classes: (N, classes), log-probabilities.
    """
    boost = state["boost"]
    start, scale = boost["unit"].tolist()
    margin: Floats = boost["margin"].numpy()
    if margin.ndim > 1:
        return log_softmax(margin)
    return margin if boost["task"] == "classes" else start + scale * margin

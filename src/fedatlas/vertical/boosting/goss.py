"""Gradient-based one-side sampling (V3 (4)): a tree is grown on the rows with the largest gradients, and on some others.

Of n rows the a n with the largest |g| are kept as they are, and b n of the rest are drawn, whose g and h are multiplied
by (1 - a) / b, so that sums stay as large as they were. The weights come before the fixed point, whose power of two is
above the largest weighted |g|. Of equal |g| the first rows are kept. With several classes |g| is summed over classes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedatlas.vertical.parties import Floats, Whole


class Kept(NamedTuple):
    """The rows that a tree is grown on."""

    rows: Whole  # (m,) their positions, ascending
    weight: Floats  # (m,) factors of their g and h

    def weighted(self, each: Floats) -> Floats:
        """Return g or h (n,) or (n, classes) of the kept rows, times their factors."""
        found: Floats = (each[self.rows].T * self.weight).T
        return found


def sizes(g: Floats) -> Floats:
    """Return (n,), the size of each row's gradients (n,) or (n, classes): |g|, summed over classes."""
    found: Floats = sum((np.abs(one) for one in g.reshape(len(g), -1).T), np.zeros(len(g)))
    return found


def kept(size: Floats, goss: tuple[float, float], stream: np.random.Generator) -> Kept:
    """Return which of n rows are kept; ``size`` (n,): |g| of each row, times its own weight."""
    a, b = goss
    n = len(size)
    top, some = round(a * n), round(b * n)
    if not top + some:
        some = min(n, 1)
    order = np.argsort(-size, kind="stable")
    rest = np.sort(order[top:])
    drawn = stream.choice(rest, min(some, len(rest)), replace=False)
    rows = np.concatenate([order[:top], drawn])
    weight = np.concatenate([np.ones(top), np.full(len(drawn), (1 - a) / b if b else 1.0)])
    at = np.argsort(rows)
    return Kept(rows[at].astype(np.int64), weight[at])

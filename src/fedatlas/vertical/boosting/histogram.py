"""Histograms in the clear: sums of g, of h and of rows by bin, and the left sums of all candidates."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedatlas.vertical.boosting.bins import Grid
from fedatlas.vertical.parties import Whole, tensor

EXACT = 1 << 53  # float64 adds integers exactly below this


def fields(g: Whole, h: Whole) -> Whole:
    """Return (rows, 2 classes): g and h of each class. They are (rows,), or (rows, classes)."""
    return np.stack([g, h], axis=-1).reshape(len(g), 2 * (g.shape[1] if g.ndim > 1 else 1))


def summed(spots: Whole, g: Whole, h: Whole, width: int) -> Whole:
    """Return (width, 2 classes + 1), the sums of g and h of each class, and of 1, at each position.

    ``spots`` (rows, columns): positions of the rows.
    """
    flat, columns, values = spots.ravel(), spots.shape[1], fields(g, h).T
    out = np.zeros((width, len(values) + 1), np.int64)
    for i, each in enumerate(values):
        if int(np.abs(each).max(initial=0)) * max(len(each), 1) < EXACT:
            out[:, i] = np.bincount(flat, np.repeat(each, columns), width)  # exact: whole numbers below 2^53
        else:
            np.add.at(out[:, i], flat, np.repeat(each, columns))
    out[:, -1] = np.bincount(flat, minlength=width)
    return out


def left_sums(histogram: Whole, found: Grid) -> Whole:
    """Return (k, fields), the sums of the rows that each candidate sends left."""
    running = np.cumsum(histogram, axis=0)
    before = running[found.first] - histogram[found.first]  # for each column, the sum of all bins before it
    of = np.searchsorted(found.columns, found.column)
    return running[found.at] - before[of] + histogram[found.hole] * found.adds[:, None]


class Clear(NamedTuple):
    """Sums of gradients in the clear; `sealed.Cipher` does the same with ciphertexts."""

    g: Whole  # of the rows that the tree is grown on
    h: Whole

    def histogram(self, members: Whole, spots: Whole, width: int) -> Whole:
        """Return the sums over some of the rows, whose bins are (members, columns)."""
        return summed(spots, self.g[members], self.h[members], width)

    def sister(self, parent: Whole, child: Whole) -> Whole:
        """Return the other child's sums: the parent's minus those of the child."""
        return parent - child

    def returned(self, histogram: Whole, found: Grid, order: Whole) -> Any:
        """Return the left sums of all candidates in this order, as they are sent."""
        return tensor(left_sums(histogram, found)[order])

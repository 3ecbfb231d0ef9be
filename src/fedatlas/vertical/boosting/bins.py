"""Cut a party's columns into bins, once, on its training rows, and list the splits that it can offer a node.

A column with no more different values than bins is cut between all of them, any other at quantiles. Bin b holds the
values above cut b - 1 and up to cut b; after the last of them comes a bin of missing values. A candidate is (column, bin,
direction of missing values), in this order; bins up to its bin go left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedatlas.vertical.parties import Floats, Whole
from fedatlas.vertical.trees.records import midpoints


class Grid(NamedTuple):
    """The layout of some of a party's columns in a histogram, one bin after another, and their candidates."""

    columns: Whole  # which of the party's columns
    first: Whole  # place of each one's first bin
    width: int  # bins in all, those of missing values included
    at: Whole  # (k,) of each candidate the place of its last bin on the left
    hole: Whole  # (k,) the place of its column's missing values
    column: Whole  # (k,)
    cut: Floats  # (k,) values up to it go left; infinity: all that are there
    left: NDArray[np.bool_]  # (k,) whether missing values go left
    adds: NDArray[np.bool_]  # (k,) whether missing values have to be added to the sum of the bins


def cuts_of(x: Floats, bins: int) -> Floats:
    """Return where to cut a column (rows,): at most ``bins`` - 1 values, ascending."""
    values = np.sort(x[~np.isnan(x)])
    different = np.unique(values)
    if len(different) <= bins:
        return midpoints(different) if len(different) else different
    ends = np.unique(values[np.arange(1, bins) * len(values) // bins - 1])
    found: Floats = ends[ends < different[-1]]
    return found


def numbered(x: Floats, cuts: Sequence[Floats]) -> NDArray[np.int32]:
    """Return (rows, columns), the bin of each value; missing values are in the last one."""
    out = np.empty(x.shape, np.int32)
    for f, one in enumerate(cuts):
        out[:, f] = np.where(np.isnan(x[:, f]), len(one) + 1, np.searchsorted(one, x[:, f], side="left"))
    return out


def grid(columns: Sequence[int], cuts: Sequence[Floats], holes: NDArray[np.bool_]) -> Grid:
    """Return the candidates of some columns; ``holes``: which of all columns have missing values in training rows.

    A column without missing values has one candidate per cut, since both directions would be equal. A column with
    missing values has two per cut, and one more that separates known from missing values.
    """
    first, at, hole, column, cut, left, adds = 0, [], [], [], [], [], []
    firsts = []
    for f in columns:
        firsts.append(first)
        last, gap = len(cuts[f]), bool(holes[f])
        for b in range(last + gap):
            for way in (True, False) if gap and b < last else (not gap,):
                at.append(first + b)
                hole.append(first + last + 1)
                column.append(f)
                cut.append(cuts[f][b] if b < last else np.inf)
                left.append(way)
                adds.append(way and gap)
        first += last + 2
    columns_, firsts_, at_, hole_, column_ = (
        np.array(one, np.int64) for one in (list(columns), firsts, at, hole, column)
    )
    ways = np.array(left, bool), np.array(adds, bool)
    return Grid(columns_, firsts_, first, at_, hole_, column_, np.array(cut, np.float64), *ways)


def spots(bins: NDArray[np.int32], found: Grid) -> Whole:
    """Return (rows, columns of the grid), the position of each row's bins in the histogram."""
    places: Whole = bins[:, found.columns].astype(np.int64) + found.first
    return places

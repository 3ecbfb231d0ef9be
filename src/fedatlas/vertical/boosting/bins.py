"""A party's columns cut into bins, once, on its training rows; and the splits that it can offer a node.

A column with no more different values than bins is cut between all of them, another one at quantiles. Bin b holds the values above cut
b - 1 and up to cut b; behind the last bin of values stands one of missing values. A candidate is (column, bin, where missing values go),
in this order: to the left are the bins up to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedatlas.vertical.parties import Floats, Whole


class Grid(NamedTuple):
    """How some columns of a party stand in a histogram, one bin after another, and the candidates they make."""

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
    """Where a column (rows,) is cut: at most ``bins`` - 1 places, ascending."""
    values = np.sort(x[~np.isnan(x)])
    different = np.unique(values)
    if len(different) <= bins:
        with np.errstate(invalid="ignore", over="ignore"):  # between infinities: the lower one will do
            between = different[:-1] + np.diff(different) / 2
        return np.where(between < different[1:], between, different[:-1]) if len(different) else different
    ends = np.unique(values[np.arange(1, bins) * len(values) // bins - 1])
    found: Floats = ends[ends < different[-1]]
    return found


def numbered(x: Floats, cuts: Sequence[Floats]) -> NDArray[np.int32]:
    """(rows, columns) the bin of each value; missing values stand in the last one."""
    out = np.empty(x.shape, np.int32)
    for f, one in enumerate(cuts):
        out[:, f] = np.where(np.isnan(x[:, f]), len(one) + 1, np.searchsorted(one, x[:, f], side="left"))
    return out


def grid(columns: Sequence[int], cuts: Sequence[Floats], holes: NDArray[np.bool_]) -> Grid:
    """The candidates of some columns; ``holes``: which of all columns lack values among the training rows.

    A column that lacks none has one candidate a cut: both directions would be equal, and of equals left is first. Another one has two, and
    one more that parts what is there from what is missing.
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
    """(rows, columns of the grid) the place of each row's bins in the histogram."""
    places: Whole = bins[:, found.columns].astype(np.int64) + found.first
    return places

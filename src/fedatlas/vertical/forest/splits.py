"""The best split of a node by a party's columns: Gini impurity of classes, variance of numbers, in exact arithmetic.

A sum has the number of rows n first, then the rows of each class, or the sum of the numbers. A split with the sums L on
the left of T lowers the impurity of the node, times its rows, by

    sum over entries of (n L - n_L T)^2 / (n n_L n_R)

Candidates are ordered by column, threshold, and missing values left before right; the first of the best ones is taken.
Thresholds lie in the middle between neighbouring values of the node's rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from fedatlas.vertical.parties import Floats, Whole
from fedatlas.vertical.trees.records import midpoints

NEAR = 1e-9  # relative distance above every error of a rounded gain; candidates within are compared exactly


class NodeSplit(NamedTuple):
    """A split of a node by a column."""

    column: int
    cut: float  # values up to it go left; infinity: all that are there
    left: bool  # whether missing values go left
    sums: Whole  # (1 + width,) of the rows that go left


class ColumnSplits(NamedTuple):
    """All splits of a node by one column, in their order."""

    cut: Floats  # (k,)
    left: np.ndarray  # (k,)
    sums: Whole  # (k, 1 + width)


def row_sums(labels: Whole, classes: int, times: Whole) -> Whole:
    """Return (rows, 1 + width), what each row adds to the sums of its node; ``times``: how often it was drawn."""
    each = np.eye(classes, dtype=np.int64)[labels] if classes else labels[:, None]
    return np.concatenate([times[:, None], each * times[:, None]], axis=1)


def best(x: Floats, columns: Sequence[int], sums: Whole) -> NodeSplit | None:
    """Return the best split of the rows x (rows, columns) of a node by some columns, or None if none gains anything."""
    found = [candidates(x[:, f], sums) for f in columns]
    every = np.concatenate([sums[:0], *(one.sums for one in found)])
    i = first_best(every, sums.sum(axis=0))
    if i is None:
        return None
    for f, one in zip(columns, found, strict=True):
        if i < len(one.cut):
            way = bool(one.left[i]) if np.isnan(x[:, f]).any() else most_left(x[:, f], one.cut[i], sums[:, 0])
            return NodeSplit(f, float(one.cut[i]), way, one.sums[i])
        i -= len(one.cut)
    raise AssertionError("a candidate belongs to a column.")


def most_left(values: Floats, cut: float, times: Whole) -> bool:
    """Return whether values that a node's rows never lack go left: if at least half of its rows do."""
    return bool(2 * times[values <= cut].sum() >= times.sum())


def candidates(values: Floats, sums: Whole) -> ColumnSplits:
    """Return every split by one column; a column with missing values has two at each threshold, and one that parts them."""
    there = np.flatnonzero(~np.isnan(values))
    order = there[np.argsort(values[there], kind="stable")]
    ascending, running = values[order], np.cumsum(sums[order], axis=0)
    ends = np.flatnonzero(ascending[:-1] < ascending[1:])
    cuts = midpoints(ascending[np.append(ends, len(ascending) - 1)]) if len(ascending) else ascending
    if len(there) == len(values) or not len(there):
        return ColumnSplits(cuts, np.ones(len(cuts), bool), running[ends])
    gone = sums.sum(axis=0) - running[-1]
    both = np.stack([running[ends] + gone, running[ends]], axis=1).reshape(-1, sums.shape[1])
    ways = np.append(np.tile([True, False], len(cuts)), False)
    return ColumnSplits(np.append(np.repeat(cuts, 2), np.inf), ways, np.concatenate([both, running[-1:]]))


def first_best(left: Whole, total: Whole) -> int | None:
    """Return the first of the splits (k, 1 + width) that gain most, or None if none gains anything."""
    if not len(left):
        return None
    middle = np.rint(total[1:] / total[0]).astype(np.int64) * (
        len(total) == 2
    )  # of numbers, for the rounded gains only
    n, count = float(total[0]), left[:, 0].astype(np.float64)
    apart = n * (left[:, 1:] - left[:, :1] * middle) - count[:, None] * (total[1:] - total[0] * middle)
    rounded = (apart**2).sum(axis=1) / (count * (n - count))
    if not rounded.max() > 0:
        return None
    near = np.flatnonzero(rounded >= rounded.max() * (1 - NEAR)).tolist()
    if len(near) == 1:
        return int(near[0])
    exact = {one: gain(one, total.tolist()) for one in {tuple(left[i].tolist()) for i in near}}
    return int(max(near, key=lambda i: (exact[tuple(left[i].tolist())], -i)))


def gain(left: Sequence[int], total: Sequence[int]) -> Fraction:
    """Return by how much a split lowers the impurity of a node, times its rows."""
    n, count = total[0], left[0]
    apart = sum((n * a - count * b) ** 2 for a, b in zip(left[1:], total[1:], strict=True))
    return Fraction(apart, n * count * (n - count))

"""Strict Mondrian: classes of rows by cuts at medians (P7).

Source: LeFevre, DeWitt, Ramakrishnan, Mondrian multidimensional k-anonymity, ICDE 2006. A class is cut at the lower median m of
its column of widest range, as a share of the table's: values up to m against the rest, else values below m against the rest, else
the next widest column; columns of equal width in their order. A cut is made if both sides keep all rules; a class without such a
cut stays. A column with a hierarchy is cut into the groups right below the smallest group that holds the class, if each of them
keeps the rules. A missing number lies below all numbers; a class with missing and known ones has the widest range, and is first cut
between the two.

A cut is stored halfway between the two values that it separates, so that no cut is a value of a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from fedatlas.privacy.anonymity.hierarchy import Hierarchy
from fedatlas.privacy.anonymity.rules import Conditions, Sensitive

MISSING = -np.inf
LOWEST = float(np.finfo(np.float64).min)  # the cut between missing and known numbers


class Quasi(NamedTuple):
    """A quasi-identifying column: numbers with `MISSING`, or codes of categories, float64 (rows,)."""

    name: str
    values: np.ndarray
    categories: tuple[str, ...] = ()  # in their order; () = numbers
    tree: Hierarchy | None = None


class CutTree(NamedTuple):
    """Cuts as lists by node, the root first: rows with a value below ``at`` go ``left``.

    A node with column -1 is a class, and ``left`` is its number; -1 = its rows are left out.
    """

    column: list[int]
    at: list[float]
    left: list[int]
    right: list[int]

    def classes_of(self, x: np.ndarray) -> np.ndarray:
        """Return the class of each row of x (rows, columns), int64 (rows,)."""
        node = np.zeros(len(x), np.int64)
        column, left, right = (np.array(part, np.int64) for part in (self.column, self.left, self.right))
        at = np.array(self.at)
        while len(open_ := np.flatnonzero(column[node] >= 0)):
            here = node[open_]
            lower = x[open_, column[here]] < at[here]
            node[open_] = np.where(lower, left[here], right[here])
        return left[node]


class Grouped(NamedTuple):
    """Grouped of rows: the number of each row's class, int64 (rows,), -1 = left out; and the cuts that made them."""

    of: np.ndarray
    tree: CutTree


def mondrian(
    columns: Sequence[Quasi], rules: Conditions, sensitive: Sequence[Sensitive] = (), suppress: int = 0
) -> Grouped:
    """Return classes that keep the rules. PrivacyError if not even all rows together do.

    suppress: how many rows may be left out in total. Where no cut keeps the rules on both sides, one is made whose smaller side
    has fewer than k rows, and these are left out. Grouped are visited in depth, lower side first.
    """
    rows = len(columns[0].values)
    rules.refuse(rows, sensitive)
    x = np.stack([column.values for column in columns], axis=1)
    spans = [_span(column.values) for column in columns]
    of, tree, classes = np.full(rows, -1, np.int64), new_tree(), 0
    stack = [(np.arange(rows), 0)]
    while stack:
        here, node = stack.pop()
        if found := _cut(x, here, columns, spans, rules, sensitive, suppress):
            column, bounds, parts = found
            kept = [
                (part, below)
                for part, below in zip(parts, cut_at(tree, node, column, bounds), strict=True)
                if len(part)
            ]
            suppress -= len(here) - sum(len(part) for part, _ in kept)
            stack += reversed(kept)
        else:
            of[here], tree.left[node], classes = classes, classes, classes + 1
    return Grouped(of, tree)


Found = tuple[int, list[float], list[np.ndarray]]
"""A column, its bounds, and the rows of each part in their order; a part that is left out has no rows."""


def _cut(
    x: np.ndarray,
    rows: np.ndarray,
    columns: Sequence[Quasi],
    spans: Sequence[float],
    rules: Conditions,
    sensitive: Sequence[Sensitive],
    spare: int,
) -> Found | None:
    """Return the first cut that may be made, or None."""
    if len(rows) < 2 * rules.k and not spare:
        return None
    own = x[rows]
    widths = _widths(own, spans)
    outliers: Found | None = None
    for j in np.argsort(-widths, kind="stable"):
        if not widths[j] > 0:
            break
        for bounds in _bounds(own[:, j], columns[j].tree):
            places = np.searchsorted(bounds, own[:, j], side="right")
            sizes = np.bincount(places, minlength=len(bounds) + 1)
            few = sizes < rules.k
            if few.any() and not (outliers is None and len(sizes) == 2 and 0 < sizes.min() <= spare and not few.all()):
                continue
            parts = [rows[places == i] for i in range(len(sizes))]
            fine = [rules.hold(part, sensitive) for part in parts]
            if all(fine):
                return int(j), bounds, parts
            if few.any() and fine[int(sizes.argmax())]:
                outliers = int(j), bounds, [part[:0] if less else part for part, less in zip(parts, few, strict=True)]
    return outliers


def _bounds(values: np.ndarray, tree: Hierarchy | None) -> Iterator[list[float]]:
    """Yield the bounds of the cuts to try."""
    if tree is not None:
        codes = values.astype(np.int64)
        groups = tree.levels[tree.smallest(codes.min(), codes.max()) + 1]
        first = np.unique(groups[codes], return_index=True)[1]
        starts = sorted(int(np.argmax(groups == groups[codes[i]])) for i in first)
        yield [start - 0.5 for start in starts[1:]]
        return
    if values.min() == MISSING:
        yield [LOWEST]
    half = (len(values) - 1) // 2
    m = np.partition(values, half)[half]
    above, below = values[values > m], values[values < m]
    if len(above):
        yield [_between(m, above.min())]
    if len(below):
        yield [_between(below.max(), m)]


def _between(low: float, high: float) -> float:
    """Return a number above ``low``, up to ``high``: halfway, as exactly as floats can."""
    if low == MISSING:
        return LOWEST
    half = float(low / 2 + high / 2)
    return half if low < half <= high else float(high)


def _span(values: np.ndarray) -> float:
    known = values[values != MISSING]
    return float(known.max() - known.min()) if len(known) else 0.0


def _widths(own: np.ndarray, spans: Sequence[float]) -> np.ndarray:
    """Return the range of each column as a share of the table's, (columns,)."""
    low, high = own.min(axis=0), own.max(axis=0)
    differ = high > low
    scale = np.where(np.array(spans) > 0, spans, 1.0)
    out: np.ndarray = np.minimum((np.where(differ, high, 0.0) - np.where(differ, low, 0.0)) / scale, 1.0)
    return out


def new_tree() -> CutTree:
    """Return a tree of one class, whose number is not known yet."""
    tree = CutTree([], [], [], [])
    _node(tree)
    return tree


def _node(tree: CutTree) -> int:
    tree.column.append(-1)
    tree.at.append(0.0)
    tree.left.append(-1)
    tree.right.append(-1)
    return len(tree.column) - 1


def cut_at(tree: CutTree, node: int, column: int, bounds: Sequence[float]) -> list[int]:
    """Cut a node at these bounds, one after another, and return the nodes of the parts."""
    out = []
    for bound in bounds:
        low, high = _node(tree), _node(tree)
        tree.column[node], tree.at[node], tree.left[node], tree.right[node] = column, bound, low, high
        out.append(low)
        node = high
    return [*out, node]

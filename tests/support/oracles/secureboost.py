"""A histogram booster on the joined table, row by row and slow: what SecureBoost has to grow between parties (V2).

Columns belong to parties only for the order of ties: the party listed first, then column, bin, missing left before right. Sums are
Python's whole numbers; floats appear where a gain or a leaf is formed. With three or more classes a round is a tree for each class, or
one whose gain is summed over them and whose leaf is a list.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np


class Settings(NamedTuple):
    """The keys, by their names."""

    trees: int = 3
    depth: int = 3
    bins: int = 32
    precision: int = 24
    learning_rate: float = 0.3
    l1: float = 0.0
    l2: float = 1.0
    min_gain: float = 0.0
    min_leaf: int = 1
    complete_secure: int = 0
    softmax_hess: str | None = None
    square_scale: int | None = None
    multi_output: bool | None = None
    mode: str = "default"
    passive_depth: int = 0
    goss: tuple[float, float] | None = None


def edges(values: Sequence[float], bins: int) -> list[float]:
    """Upper ends of all bins but the last: between different values where they are few, else at quantiles."""
    ordered = sorted(v for v in values if not math.isnan(v))
    different = sorted(set(ordered))
    if len(different) <= bins:
        return [middle if (middle := a + (b - a) / 2) < b else a for a, b in pairwise(different)]
    ends = {ordered[k * len(ordered) // bins - 1] for k in range(1, bins)}
    return sorted(end for end in ends if end < different[-1])


def whole(values: Sequence[float], precision: int) -> tuple[list[int], int]:
    """Each as a multiple of 2^(power - precision), 2^power above the largest size; round half to even."""
    power = math.frexp(max(abs(v) for v in values))[1]
    return [round(math.ldexp(v, precision - power)) for v in values], power


class Booster:
    """One training; ``owners``: by party its columns. ``drawn(tree)``: the rows of a tree, ``offered(tree, party)`` its columns.

    ``sampled(tree, rest, n)``: n of the rows that have not the largest gradients.
    """

    def __init__(
        self,
        x: Any,
        y: Any,
        task: str,
        owners: Sequence[Sequence[int]],
        how: Settings,
        *,
        train: Sequence[int] | None = None,
        weight: Any = None,
        active: int = 0,
        drawn: Callable[[int], Sequence[int]] | None = None,
        offered: Callable[[int, int], Sequence[int]] | None = None,
        sampled: Callable[[int, Sequence[int], int], Sequence[int]] | None = None,
    ) -> None:
        self.sampled = sampled
        self.x, self.owners, self.how, self.task, self.active = x.tolist(), owners, how, task, active
        self.train = list(range(len(y))) if train is None else list(train)
        self.weight = [1.0] * len(y) if weight is None else weight.tolist()
        self.drawn, self.offered = drawn or (lambda _: self.train), offered or (lambda _, party: owners[party])
        columns = [c for party in owners for c in party]
        self.edges = {c: edges([self.x[i][c] for i in self.train], how.bins) for c in columns}
        self.holes = {c: any(math.isnan(self.x[i][c]) for i in self.train) for c in columns}
        self.start, self.scale = 0.0, 1.0
        if task == "numbers":
            w, t = (np.array([each[i] for i in self.train]) for each in (self.weight, y.tolist()))
            self.start = float(np.average(t, weights=None if weight is None else w))
            self.scale = math.sqrt(float(np.average((t - self.start) ** 2, weights=None if weight is None else w)))
        self.y = y.tolist()
        self.classes = int(max(self.y)) + 1 if task == "classes" and max(self.y) > 1 else 1
        self.margin = [[0.0] * len(y) for _ in range(self.classes)]
        self.trees = [one for tree in range(1, how.trees + 1) for one in self.grown(tree)]
        self.outputs = self.said()

    def said(self) -> Any:
        """Log-odds, numbers, or of several classes log-probabilities by row."""
        if self.classes > 1:
            below = [[m - max(row) for m in row] for row in zip(*self.margin, strict=True)]
            totals = [np.log(sum(row)) for row in np.exp(np.array(below)).tolist()]
            return [[m - total for m in row] for row, total in zip(below, totals, strict=True)]
        return [m if self.task == "classes" else self.start + self.scale * m for m in self.margin[0]]

    def gradients(self, rows: list[int]) -> list[tuple[Any, Any]]:
        """By class g and h of some rows, without weights."""
        y = np.array([self.y[i] for i in rows])
        if self.classes > 1:
            m = [[one[i] for one in self.margin] for i in rows]
            exponentials = np.exp(np.array([[v - max(row) for v in row] for row in m])).tolist()
            p = [[e / sum(row) for e in row] for row in exponentials]
            twice = 2 if self.how.softmax_hess == "xgboost" else 1
            return [
                (
                    np.array([row[c] - (1 if label == c else 0) for row, label in zip(p, y, strict=True)]),
                    np.array([row[c] * (1 - row[c]) * twice for row in p]),
                )
                for c in range(self.classes)
            ]
        m = np.array([self.margin[0][i] for i in rows])
        if self.task == "classes":
            p = 1 / (1 + np.exp(-m))
            return [(p - y, p * (1 - p))]
        scale = self.how.square_scale or 1
        return [(scale * (m - (y - self.start) / self.scale), scale * np.ones(len(rows)))]

    def grown(self, tree: int) -> list[Any]:
        """The trees of a round, whose gradients are all those of its beginning; margins of all rows moved on."""
        rows, self.tree = list(self.drawn(tree)), tree
        w = np.array([self.weight[i] for i in rows])
        pairs = [[each * w for each in pair] for pair in self.gradients(rows)]
        if self.how.goss:
            rows, pairs = self.one_sided(tree, rows, pairs)
        found = [[whole(each.tolist(), self.how.precision) for each in pair] for pair in pairs]
        g_h = [tuple(dict(zip(rows, each, strict=True)) for each, _ in pair) for pair in found]
        powers = [tuple(power for _, power in pair) for pair in found]
        together = [range(self.classes)] if self.how.multi_output else [[c] for c in range(self.classes)]
        trees = []
        for self.of in together:
            self.g_h, self.powers = [g_h[c] for c in self.of], [powers[c] for c in self.of]
            trees.append(self.node(rows, list(range(len(self.y))), self.how.depth))
        return trees

    def one_sided(self, tree: int, rows: list[int], pairs: Any) -> Any:
        """GOSS: the rows of largest |g|, the first of equal ones, and drawn ones of the rest, which stand for all of it."""
        a, b = self.how.goss or (1.0, 0.0)
        size = [sum(abs(float(g[i])) for g, _ in pairs) for i in range(len(rows))]
        by_size = sorted(range(len(rows)), key=lambda i: (-size[i], i))
        large, rest = by_size[: round(a * len(rows))], sorted(by_size[round(a * len(rows)) :])
        some = self.sampled(tree, rest, round(b * len(rows))) if self.sampled and rest else []
        weight = dict.fromkeys(large, 1.0) | dict.fromkeys(some, (1 - a) / b)
        kept = sorted(weight)
        return [rows[i] for i in kept], [
            [np.array([one[i] * weight[i] for i in kept]) for one in pair] for pair in pairs
        ]

    def plays(self, party: int, depth: int) -> bool:
        """Whether a party's columns count where so many levels are left."""
        if self.tree <= self.how.complete_secure:
            return party == self.active
        if self.how.mode == "mix":
            return (self.tree - 1) % len(self.owners) == party
        if self.how.mode == "layered":
            return (party != self.active) == (self.how.depth - depth < self.how.passive_depth)
        return True

    def node(self, rows: list[int], walking: list[int], depth: int) -> Any:
        """What hangs here: a leaf, or a split with two nodes. ``rows`` train, ``walking`` are all that come by."""
        total = self.sums(rows)
        best = self.best(rows, total, depth) if depth else None
        if best is None:
            values = []
            for c, (G, H) in zip(self.of, self.real(total), strict=True):
                over = H + self.how.l2
                values.append(0.0 - self.pulled(G) / over * self.how.learning_rate if over > 0 else 0.0)
                for i in walking:
                    self.margin[c][i] += values[-1]
            return {"leaf": values[0] if len(values) == 1 else values, "rows": len(rows)}
        gain, party, column, cut, missing = best
        if not any(math.isnan(self.x[i][column]) for i in rows):  # nothing is known of holes here: with most rows
            missing = "left" if 2 * sum(self.x[i][column] <= cut for i in rows) >= len(rows) else "right"

        def left(i: int) -> bool:
            value = self.x[i][column]
            return missing == "left" if math.isnan(value) else value <= cut

        split = {"party": party, "column": column, "cut": cut, "missing": missing, "gain": gain}
        sides = [([i for i in some if left(i)], [i for i in some if not left(i)]) for some in (rows, walking)]
        return {**split, "children": [self.node(sides[0][k], sides[1][k], depth - 1) for k in (0, 1)]}

    def best(self, rows: list[int], total: tuple[int, ...], depth: int) -> Any:
        """The first of the splits that gain most, if it gains anything."""
        best: Any = None
        for party in range(len(self.owners)):
            if not self.plays(party, depth):
                continue
            for column in self.offered(self.tree, party):
                values = [(self.x[i][column], i) for i in rows]
                gone = self.sums([i for v, i in values if math.isnan(v)])
                cuts = [*self.edges[column], *([math.inf] if self.holes[column] else [])]
                for cut in cuts:
                    there = self.sums([i for v, i in values if v <= cut])
                    with_gone = tuple(a + b for a, b in zip(there, gone, strict=True))
                    for missing, sums in (("left", with_gone), ("right", there)):
                        gain = self.gain(sums, total)
                        if gain > 0 and (best is None or gain > best[0]):
                            best = (gain, party, column, cut, missing)
        return best

    def sums(self, rows: Sequence[int]) -> Any:
        """Of g and of h of each class of the tree, and how many."""
        return (*(sum(each[i] for i in rows) for pair in self.g_h for each in pair), len(rows))

    def real(self, sums: Any) -> list[tuple[float, float]]:
        """G and H of each class of the tree."""
        powers = [power - self.how.precision for pair in self.powers for power in pair]
        values = [math.ldexp(one, power) for one, power in zip(sums[:-1], powers, strict=True)]
        return [*zip(values[::2], values[1::2], strict=True)]

    def pulled(self, G: float) -> float:
        """T(G)."""
        return math.copysign(max(abs(G) - self.how.l1, 0.0), G)

    def gain(self, left: Any, total: Any) -> float:
        """V2's gain; below every limit where a side is too small."""
        right = tuple(a - b for a, b in zip(total, left, strict=True))
        if min(left[-1], right[-1]) < self.how.min_leaf:
            return -math.inf
        worth = []
        for sums in (left, right, total):
            pairs = [(self.pulled(G), H + self.how.l2) for G, H in self.real(sums)]
            worth.append([pull * pull / over if over > 0 else 0.0 for pull, over in pairs])
        return 0.5 * sum(a + b - both for a, b, both in zip(*worth, strict=True)) - self.how.min_gain

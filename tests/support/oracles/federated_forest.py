"""A random forest on the joined table, row by row and slow, in fractions: what parties with columns have to grow (V1).

Columns belong to parties only for the order of ties: the party listed first, then column, threshold, missing left before right. The draws
are given: how often each row is drawn for a tree, and the columns of each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np


class Settings(NamedTuple):
    """The keys, by their names."""

    depth: int = 10
    min_samples: int = 2
    ccp_alpha: float = 0.0


class Forest:
    """One training. ``bags``: by tree how often each training row is drawn; ``columns``: by tree the columns, in the order of ties."""

    def __init__(
        self,
        x: Any,
        y: Any,
        task: str,
        how: Settings,
        *,
        bags: Sequence[Sequence[int]],
        columns: Sequence[Sequence[int]],
        train: Sequence[int] | None = None,
    ) -> None:
        self.x, self.y, self.task, self.how = x.tolist(), y.tolist(), task, how
        self.train = list(range(len(y))) if train is None else list(train)
        self.classes = int(max(self.y)) + 1 if task == "classes" else 0
        own = [self.y[i] for i in self.train]
        low, span = min(own), max(own) - min(own)
        self.unit = span / (1 << 24) if span > 0 else 1.0
        self.q = [Fraction(round((v - low) / self.unit)) for v in self.y]
        self.trees = [self.grown(bag, some) for bag, some in zip(bags, columns, strict=True)]
        self.outputs = [self.said(row) for row in self.x]

    def grown(self, bag: Sequence[int], columns: Sequence[int]) -> Any:
        rows = [i for i, times in zip(self.train, bag, strict=True) for _ in range(times)]
        self.columns, self.drawn = columns, len(rows)
        tree = self.node(rows, self.how.depth)
        if self.how.ccp_alpha:
            self.prune(tree)
        return tree

    def worth(self, rows: Sequence[int]) -> Fraction:
        """What the impurity of some rows, times their number, lacks to a constant."""
        if not self.classes:
            total = sum(self.q[i] for i in rows)
            return Fraction(total * total, len(rows))
        counts = [sum(self.y[i] == c for i in rows) for c in range(self.classes)]
        return Fraction(sum(n * n for n in counts), len(rows))

    def impurity(self, rows: Sequence[int]) -> Fraction:
        """Gini or variance, in the label's unit, times the rows' share."""
        if self.classes:
            return (len(rows) - self.worth(rows)) / self.drawn
        return (sum(self.q[i] ** 2 for i in rows) - self.worth(rows)) * Fraction(self.unit) ** 2 / self.drawn

    def node(self, rows: list[int], depth: int) -> Any:
        best = self.best(rows) if depth and len(rows) >= self.how.min_samples else None
        out = {"rows": len(rows), "leaf": self.leaf(rows), "cost": self.impurity(rows)}
        if best is None:
            return out
        gain, column, cut, missing, left = best
        scale = Fraction(1) if self.classes else Fraction(self.unit) ** 2
        split = {"column": column, "cut": cut, "missing": missing, "gain": float(gain * scale / self.drawn)}
        sides = [[i for i in rows if (i in left) == go] for go in (True, False)]
        return {**out, **split, "children": [self.node(one, depth - 1) for one in sides]}

    def leaf(self, rows: list[int]) -> Any:
        if self.classes:
            return [sum(self.y[i] == c for i in rows) / len(rows) for c in range(self.classes)]
        return math.fsum(self.y[i] for i in rows) / len(rows)

    def best(self, rows: list[int]) -> Any:
        best, whole = None, self.worth(rows)
        for column in self.columns:
            known = {i: v for i in set(rows) if not math.isnan(v := self.x[i][column])}
            values = sorted(set(known.values()))
            holes = {i for i in rows if i not in known}
            cuts = [m if (m := a + (b - a) / 2) < b else a for a, b in pairwise(values)]
            for cut in [*cuts, *([math.inf] if holes and values else [])]:
                up_to = {i for i, v in known.items() if v <= cut}
                for missing in ("left", "right"):
                    left = up_to | holes if missing == "left" else up_to
                    mine = [i for i in rows if i in left]
                    if not mine or len(mine) == len(rows):
                        continue
                    gain = self.worth(mine) + self.worth([i for i in rows if i not in left]) - whole
                    if not holes:
                        missing = "left" if 2 * len(mine) >= len(rows) else "right"
                    if gain > 0 and (best is None or gain > best[0]):
                        best = gain, column, cut, missing, left
        return best

    def prune(self, tree: Any) -> None:
        """Cut the weakest branch again and again while it brings too little; of equal ones the first from above, left before right."""
        while True:
            inner = list(self.inner([tree]))
            if not inner:
                return
            rises = [(one["cost"] - sum(leaf["cost"] for leaf in leaves)) / (len(leaves) - 1) for one, leaves in inner]
            weakest = min(range(len(inner)), key=lambda k: (rises[k], k))
            if rises[weakest] > Fraction(self.how.ccp_alpha):
                return
            del inner[weakest][0]["children"]

    def inner(self, level: list[Any]) -> Any:
        """Each inner node with its leaves, level by level."""
        while level:
            for one in level:
                if "children" in one:
                    yield one, self.leaves(one)
            level = [child for one in level for child in one.get("children", ())]

    def leaves(self, one: Any) -> list[Any]:
        return [leaf for child in one["children"] for leaf in self.leaves(child)] if "children" in one else [one]

    def said(self, row: list[float]) -> Any:
        """Log-odds of the second class, a number, or log-probabilities."""
        total: Any = [0.0] * self.classes if self.classes else 0.0
        for tree in self.trees:
            one = tree
            while "children" in one:
                value = row[one["column"]]
                left = one["missing"] == "left" if math.isnan(value) else value <= one["cut"]
                one = one["children"][0 if left else 1]
            total = [a + b for a, b in zip(total, one["leaf"], strict=True)] if self.classes else total + one["leaf"]
        if not self.classes:
            return total / len(self.trees)
        least = 0.5 / len(self.train)
        p = np.array(total) / len(self.trees)
        if self.classes == 2:
            second = min(max(p[1], least), 1 - least)
            return float(np.log(second) - np.log(1 - second))
        p = np.maximum(p, least)
        return np.log(p / p.sum()).tolist()

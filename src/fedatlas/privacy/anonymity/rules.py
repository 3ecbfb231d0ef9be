"""The rules that every class must keep: k rows, l well-represented sensitive values, a distance of at most t from the table (P7, P8, P9).

Sources: Samarati and Sweeney 1998 (k); Machanavajjhala, Kifer, Gehrke, Venkitasubramaniam, TKDD 2007 (l); Li, Li,
Venkatasubramanian, ICDE 2007 (t).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from fedatlas.errors import PrivacyError
from fedatlas.privacy.anonymity import closeness
from fedatlas.privacy.anonymity.hierarchy import Hierarchy

Diversity = Literal["distinct", "entropy", "recursive"]
TOLERANCE = 1e-9  # of sums of shares


class Sensitive(NamedTuple):
    """A sensitive column: the code of each row, int64 (rows,), and how often the table has each code, int64 (values,)."""

    name: str
    codes: np.ndarray
    counts: np.ndarray
    shares: np.ndarray  # the table's distribution
    below: np.ndarray  # running sums of the shares, and of these sums (from 0)
    sums: np.ndarray
    ordered: bool = False
    tree: Hierarchy | None = None

    @classmethod
    def of(
        cls, name: str, codes: np.ndarray, values: int, *, ordered: bool = False, tree: Hierarchy | None = None
    ) -> Sensitive:
        """Return the column of these codes, each below ``values``."""
        found = cls.counted(name, np.bincount(codes, minlength=values))
        return found._replace(codes=codes, ordered=ordered, tree=tree)

    @classmethod
    def counted(cls, name: str, counts: np.ndarray) -> Sensitive:
        """Return a column of which only the counts are known."""
        shares = counts / counts.sum()
        below = np.cumsum(shares)
        sums = np.concatenate(([0.0], np.cumsum(below)))
        return cls(name, np.zeros(0, np.int64), counts, shares, below, sums)

    def distance(self, values: np.ndarray, counts: np.ndarray) -> float:
        """Return how far a class with these values is from the table, from 0 to 1."""
        if self.tree is not None:
            return closeness.hierarchical(values, counts, self.shares, self.tree)
        if self.ordered:
            return closeness.ordered(values, counts, self.below, self.sums)
        return closeness.equal(values, counts, self.shares)


class Conditions(NamedTuple):
    """The conditions on a class. ``c`` is that of recursive (c, l)-diversity."""

    k: int = 1
    l: float = 1.0  # noqa: E741  (the paper's letter, and the key's)
    t: float = 1.0
    diversity: Diversity = "distinct"
    c: float = 3.0

    def diverse(self, counts: np.ndarray) -> bool:
        """Return whether a class with these counts of its sensitive values is l-diverse."""
        if self.diversity == "entropy":
            return entropy(counts) >= math.log(self.l) - TOLERANCE
        if len(counts) < self.l or self.diversity == "distinct":
            return len(counts) >= self.l
        falling = np.sort(counts)[::-1]
        return bool(falling[0] < self.c * falling[int(self.l) - 1 :].sum())

    def hold(self, rows: np.ndarray, sensitive: Sequence[Sensitive]) -> bool:
        """Return whether these rows, as one class, keep all conditions."""
        found = ((column, *np.unique(column.codes[rows], return_counts=True)) for column in sensitive)
        return self.kept(len(rows), found)

    def kept(self, rows: int, found: Iterable[tuple[Sensitive, np.ndarray, np.ndarray]]) -> bool:
        """Return whether a class keeps all conditions; ``found``: the codes in each sensitive column, and their counts."""
        if rows < self.k:
            return False
        if self.l <= 1 and self.t >= 1:
            return True
        for column, values, counts in found:
            if self.l > 1 and not self.diverse(counts):
                return False
            if self.t < 1 and column.distance(values, counts) > self.t + TOLERANCE:
                return False
        return True

    def refuse(self, rows: int, sensitive: Sequence[Sensitive]) -> None:
        """Raise PrivacyError if not even all rows together keep the conditions."""
        if rows < self.k:
            raise PrivacyError(f"k = {self.k}, but there are only {rows} rows: choose a smaller k.")
        for column in sensitive if self.l > 1 else ():
            counts = column.counts[column.counts > 0]
            if self.diverse(counts):
                continue
            if len(counts) < self.l:
                raise PrivacyError(
                    f"l = {self.l:g}, but '{column.name}' has only {len(counts)} different values: choose a smaller l."
                )
            kind = "entropy" if self.diversity == "entropy" else f"recursive (c = {self.c:g})"
            most = f"; {math.exp(entropy(counts)):.2f} is possible" if self.diversity == "entropy" else ""
            raise PrivacyError(
                f"l = {self.l:g}: not even all rows together have {kind} diversity in '{column.name}'{most}; choose a smaller l."
            )


def entropy(counts: np.ndarray) -> float:
    """Return the entropy of counts, in nats."""
    shares = counts / counts.sum()
    return float(-(shares * np.log(shares)).sum())

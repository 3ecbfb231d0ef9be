"""Cuts that all clients share, from sums of counts on a public grid: strict Mondrian on bins (P7, P8, P9).

A column of numbers has bins of equal width in its public range, the first and last of which take what lies outside; a category is a
bin by itself; missing cells are one more. All classes of one depth are cut at once, by one sum over all clients: the rows of each
class in each bin, by sensitive value. Bins up to that of the lower median are cut from the rest, else those below it, else the next
column. A cut is made if both sides keep all conditions in the union. Cuts lie on the grid, so that none is a client's value.

A class's value is the mean of its bins' middles, weighted by their counts, or its most frequent category.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedatlas.algorithm import SERVER
from fedatlas.errors import DataError, PrivacyError
from fedatlas.privacy.anonymise.choice import TARGET, AnonymityKeys
from fedatlas.privacy.anonymise.columns import of_target, place_of, quasi_of, sensitive_values
from fedatlas.privacy.anonymity.mondrian import LOWEST, CutTree, Quasi, cut_at, new_tree
from fedatlas.privacy.anonymity.rules import Conditions, Sensitive
from fedatlas.privacy.own_rows import Columns, OwnRows, RowsHow, Total

Counts = list[np.ndarray]
"""The rows of a class by quasi-identifier: int64 (bins, sensitive values)."""


class GridColumn(NamedTuple):
    """A quasi-identifier on the grid. Bin 0 is that of missing cells."""

    edges: np.ndarray  # where bins 1, 2, ... begin, as `Quasi` has its values
    middles: np.ndarray  # of each bin in stored form; NaN for missing cells
    category: bool

    def bins(self, column: Quasi) -> np.ndarray:
        """Return the bin of each row."""
        found: np.ndarray = np.searchsorted(self.edges, column.values, side="right")
        return found

    def value(self, counts: np.ndarray) -> float | None:
        """Return the value of a class with these counts by bin; None for missing."""
        if self.category:
            most = float(self.middles[int(counts.argmax())])
            return None if np.isnan(most) else most
        known = counts[1:].sum()
        return float((counts[1:] * self.middles[1:]).sum() / known) if known else None


class SecretColumn(NamedTuple):
    """A sensitive column of categories and the number of its values; without a name all rows have the same."""

    name: str = ""
    values: int = 1

    def codes(self, rows: OwnRows) -> np.ndarray:
        """Return the code of each row; 0 = missing."""
        if not self.name:
            return np.zeros(len(rows.x), np.int64)
        return sensitive_values(self.name, rows)[0].astype(np.int64) + 1


class GridQuestion(NamedTuple):
    """The counts that decide the cuts of one depth."""

    chosen: AnonymityKeys
    grid: Sequence[GridColumn]
    secrets: Sequence[SecretColumn]
    tree: CutTree  # so far, in which the classes to cut are numbered from 0

    def counted(self, rows: OwnRows, classes: int) -> Tensor:
        """Return a client's counts, one after another: of each sensitive column, quasi-identifier, class, bin and value."""
        columns = quasi_of(self.chosen, rows)
        of = self.tree.classes_of(np.stack([column.values for column in columns], axis=1))
        mine = of >= 0
        out = []
        for secret in self.secrets:
            codes = secret.codes(rows)
            for one, column in zip(self.grid, columns, strict=True):
                places = (of * len(one.middles) + one.bins(column)) * secret.values + codes
                out.append(np.bincount(places[mine], minlength=classes * len(one.middles) * secret.values))
        return torch.from_numpy(np.concatenate(out))

    def length(self, classes: int) -> int:
        """Return how many counts there are for this number of classes."""
        return classes * sum(len(one.middles) for one in self.grid) * sum(secret.values for secret in self.secrets)

    def parts(self, counts: np.ndarray, classes: int) -> list[list[Counts]]:
        """Return summed counts by class and sensitive column."""
        out: list[list[Counts]] = [[[] for _ in self.secrets] for _ in range(classes)]
        for s, secret in enumerate(self.secrets):
            for one in self.grid:
                size = classes * len(one.middles) * secret.values
                part, counts = counts[:size].reshape(classes, len(one.middles), secret.values), counts[size:]
                for i in range(classes):
                    out[i][s].append(part[i])
        return out


def agree(chosen: AnonymityKeys, columns: Columns, classes: Sequence[str], total: Total) -> Mapping[str, Any]:
    """Return the shared cuts and the values of their classes as plain values.

    DataError for columns that have no grid, and if not even all rows of all clients keep the conditions.
    """
    grid = [grid_of(chosen, columns, name) for name in chosen.quasi]
    secrets = [secret_of(columns, classes, name) for name in chosen.sensitive] or [SecretColumn()]
    conditions, tree, values = chosen.conditions(), new_tree(), list[list[float | None]]()
    open_, due = [0], list[int]()
    whole: Whole | None = None
    while open_:
        asked = GridQuestion(chosen, grid, secrets, numbered(tree, open_))
        summed = total(partial(asked.counted, classes=len(open_))).numpy()
        check_form(summed, asked.length(len(open_)))
        found = asked.parts(summed, len(open_))
        check_counts(found, due)
        whole = whole or Whole.of(found[0], secrets, conditions)
        following, due = [], []
        for node, own in zip(open_, found, strict=True):
            if (cut := whole.cut(own)) is None:
                tree.left[node] = len(values)
                values.append([one.value(part.sum(axis=1)) for one, part in zip(grid, own[0], strict=True)])
            else:
                column, b = cut
                following += cut_at(tree, node, column, [float(grid[column].edges[b - 1])])
                due += [int(side.sum()) for side in np.split(own[0][column], [b])]
        open_ = following
    return {"cuts": dict(tree._asdict()), "values": values}


def check_form(counts: np.ndarray, length: int) -> None:
    """Raise DataError for a sum of another length or type than the counts that were asked for."""
    if counts.dtype != np.int64 or counts.shape != (length,):
        raise DataError(
            f"privacy.anonymise: {length} counts were asked for and others came: a client counted wrongly. Find out which."
        )


def check_counts(found: Sequence[Sequence[Counts]], due: Sequence[int]) -> None:
    """Raise DataError for counts that no rows have. ``due``: the rows of each class, as its cut counted them; [] at first.

    So cuts end when the rows are used up, also if a client lies.
    """
    rows = due or [int(found[0][0][0].sum())]
    for own, many in zip(found, rows, strict=True):
        parts = [part for by_column in own for part in by_column]
        if any((part < 0).any() or int(part.sum()) != many for part in parts):
            raise DataError(
                "privacy.anonymise: sums of counts contradict each other: a client counted wrongly. Find out which."
            )


def numbered(tree: CutTree, open_: Sequence[int]) -> CutTree:
    """Return a copy in which only the open classes have a number."""
    left = [-1 if column < 0 else left for column, left in zip(tree.column, tree.left, strict=True)]
    for i, node in enumerate(open_):
        left[node] = i
    return tree._replace(left=left)


class Whole(NamedTuple):
    """All rows of all clients as one class: the range of each column in bins, and the sensitive columns."""

    spans: Sequence[float]
    sensitive: Sequence[Sensitive]
    conditions: Conditions

    @classmethod
    def of(cls, counts: Sequence[Counts], secrets: Sequence[SecretColumn], conditions: Conditions) -> Whole:
        """Return all rows, from their counts. DataError if they do not keep the conditions."""
        held = [np.flatnonzero(part[1:].sum(axis=1)) for part in counts[0]]
        spans = [float(bins[-1] - bins[0]) if len(bins) else 0.0 for bins in held]
        columns = zip(secrets, counts, strict=True)
        sensitive = [Sensitive.counted(one.name, own[0].sum(axis=0)) for one, own in columns if one.name]
        try:
            conditions.refuse(int(counts[0][0].sum()), sensitive)
        except PrivacyError as error:
            raise DataError(f"privacy.anonymise: {error}") from None
        return cls(spans, sensitive, conditions)

    def cut(self, own: Sequence[Counts]) -> tuple[int, int] | None:
        """Return the first cut of a class that may be made: (column, first bin of the upper side)."""
        rows = [part.sum(axis=1) for part in own[0]]
        widths = np.array([width(part, span) for part, span in zip(rows, self.spans, strict=True)])
        for j in np.argsort(-widths, kind="stable").tolist():
            for b in bounds(rows[j]) if widths[j] > 0 else ():
                if all(self._kept(own, j, side) for side in (slice(None, b), slice(b, None))):
                    return j, b
        return None

    def _kept(self, own: Sequence[Counts], j: int, side: slice) -> bool:
        held = [part[j][side].sum(axis=0) for part in own]
        found = [(one, np.flatnonzero(part), part[part > 0]) for one, part in zip(self.sensitive, held, strict=False)]
        return self.conditions.kept(int(held[0].sum()), found)


def width(rows: np.ndarray, span: float) -> float:
    """Return the range of a class in a column as a share of that of all rows; 1 if cells are missing and others are not."""
    held = np.flatnonzero(rows)
    if len(held) < 2 or held[0] == 0:
        return float(len(held) > 1)
    return float(held[-1] - held[0]) / span


def bounds(rows: np.ndarray) -> Iterator[int]:
    """Yield the cuts to try, by the rows in each bin: missing cells first, then above and below the median's bin."""
    below = np.cumsum(rows)
    if rows[0]:
        yield 1
    m = int(np.searchsorted(below, (below[-1] - 1) // 2, side="right"))
    if below[m] < below[-1]:
        yield m + 1
    if below[m] > rows[m]:
        yield m


def grid_of(chosen: AnonymityKeys, columns: Columns, name: str) -> GridColumn:
    """Return a column's grid. DataError for a column of numbers without a public range."""
    categories = columns[place_of(columns, name)][1]
    if categories:
        codes = np.arange(len(categories))
        return GridColumn(codes + 0.5, np.concatenate(([np.nan], codes)), category=True)
    if name not in chosen.bounds:
        raise DataError(
            f"privacy.anonymise.bounds: '{name}' is a column of numbers and has no public range; add {name} = [LOWEST, HIGHEST]."
        )
    low, high = chosen.bounds[name]
    inner = np.linspace(low, high, chosen.bins + 1)
    middles = (inner[:-1] + inner[1:]) / 2
    return GridColumn(np.concatenate(([LOWEST], inner[1:-1])), np.concatenate(([np.nan], middles)), category=False)


def secret_of(columns: Columns, classes: Sequence[str], name: str) -> SecretColumn:
    """Return a sensitive column. DataError for numbers, whose values are no public grid."""
    target = of_target(name, columns)
    categories = classes if target else columns[place_of(columns, name, f"; write '{TARGET}' for the target")][1]
    if not categories:
        what = "the target" if target else f"'{name}'"
        raise DataError(
            f"privacy.anonymise.sensitive: {what} is a number, and boundaries = 'counts' counts categories; write boundaries = 'local'."
        )
    return SecretColumn(name, len(categories) + 1)


def told_cuts(chosen: AnonymityKeys, told: Any) -> tuple[CutTree, np.ndarray]:
    """Return the cuts and the values of their classes, float64 (classes, columns), that all were told. DataError for anything else.

    Each cut leads to later ones, so that every row comes to a class.
    """
    try:
        tree = CutTree(**told["cuts"])
        values = np.array([[np.nan if one is None else one for one in row] for row in told["values"]], np.float64)
        good = values.shape == (len(values), len(chosen.quasi)) and not np.isinf(values).any()
        nodes, lengths = len(tree.column), {len(part) for part in tree}
        good = good and nodes > 0 and lengths == {nodes} and all(map(_number, (x for part in tree for x in part)))
        for node, (column, _, left, right) in enumerate(zip(*tree, strict=True)):
            cut = column in range(len(chosen.quasi)) and all(side in range(node + 1, nodes) for side in (left, right))
            good = good and (cut or (column == -1 and left in range(len(values))))
    except (AttributeError, LookupError, TypeError, ValueError):
        good = False
    if not good:
        raise DataError(
            "privacy.anonymise: what is told of the cuts that all agreed on is damaged: put the original back."
        )
    return tree, values


def _number(x: Any) -> bool:
    return type(x) in {int, float} and math.isfinite(x)


def by_agreed(chosen: AnonymityKeys, rows: OwnRows, how: RowsHow) -> OwnRows:
    """Return rows generalised by the shared cuts, as each client trains on and as new rows are read. DataError for no such cuts."""
    tree, values = told_cuts(chosen, how.told.get(SERVER))
    columns = quasi_of(chosen, rows)
    of = tree.classes_of(np.stack([column.values for column in columns], axis=1))
    x = rows.x.clone()
    for j, column in enumerate(columns):
        x[:, place_of(rows.columns, column.name)] = torch.from_numpy(values[of, j]).to(x.dtype)
    return rows._replace(x=x)

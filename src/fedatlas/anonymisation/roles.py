"""The four roles of a table's columns, and the columns of a table by role.

Identifiers are left out. Quasi-identifiers are generalised. Sensitive columns stay, and their values are diverse or close in every
class. All other columns stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedatlas.data.cells import coded, codes, in_order, missing, numbers
from fedatlas.errors import ConfigError, DataError, unknown_name
from fedatlas.privacy.anonymity.hierarchy import Hierarchy, hierarchy
from fedatlas.privacy.anonymity.mondrian import MISSING, Quasi
from fedatlas.privacy.anonymity.rules import Sensitive

if TYPE_CHECKING:
    import pandas as pd

IDENTIFYING = 0.5  # share of rows whose cell in a column occurs once, from which the column looks like an identifier
FEW = 20  # rows below which this says nothing


class ColumnRoles(NamedTuple):
    """The names of a table's columns by role, and those of numbers that are codes. Every other column stays as it is."""

    quasi: tuple[str, ...]
    sensitive: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()

    def check(self, columns: Sequence[str], prefix: str = "") -> None:
        """Raise ConfigError for a column that the table lacks, or that has two roles. ``prefix``: of a key in a message."""
        if not self.quasi:
            raise ConfigError(
                f"{prefix}quasi names no column: name those by which somebody may know a person, such as age."
            )
        seen = dict[str, str]()
        for key, names in self._asdict().items():
            for name in names:
                if name not in columns:
                    raise unknown_name(f"column in {prefix}{key}", name, columns)
                if key != "categories" and seen.setdefault(name, key) != key:
                    raise ConfigError(
                        f"column '{name}' is in {prefix}{seen[name]} and in {prefix}{key}: give it one role."
                    )

    def others(self, columns: Sequence[str]) -> list[str]:
        """Return the columns that stay as they are."""
        named = {*self.quasi, *self.sensitive, *self.drop}
        return [name for name in columns if name not in named]


def plain_texts(column: pd.Series) -> np.ndarray:
    """Return the cells as texts; a missing one is ""."""
    cells = codes(column)
    return np.where(missing(cells), "", cells)


def quasi_columns(table: pd.DataFrame, roles: ColumnRoles, trees: Mapping[str, Any]) -> list[Quasi]:
    """Return the quasi-identifiers: numbers, or categories by a hierarchy or in the order of their names."""
    out = []
    for name in roles.quasi:
        values = None if name in (*roles.categories, *trees) else numbers(table[name])
        if values is None:
            at, categories, tree = _coded(table[name], trees.get(name))
            out.append(Quasi(name, at.astype(np.float64), categories, tree))
        else:
            out.append(Quasi(name, np.where(np.isnan(values), MISSING, _finite(values, name))))
    return out


def sensitive_columns(table: pd.DataFrame, roles: ColumnRoles, trees: Mapping[str, Any]) -> list[Sensitive]:
    """Return the sensitive columns. Numbers are ordered by value; categories are equally far apart, or as their hierarchy says."""
    out = []
    for name in roles.sensitive:
        values = None if name in (*roles.categories, *trees) else numbers(table[name])
        if values is None:
            at, categories, tree = _coded(table[name], trees.get(name))
            out.append(Sensitive.of(name, at, len(categories), tree=tree))
        else:
            known, at = np.unique(np.where(np.isnan(values), MISSING, _finite(values, name)), return_inverse=True)
            out.append(Sensitive.of(name, at, len(known), ordered=True))
    return out


def _coded(column: pd.Series, tree: Any) -> tuple[np.ndarray, tuple[str, ...], Hierarchy | None]:
    """Return codes, the names of the categories, and their hierarchy if a ``tree`` is given."""
    cells = plain_texts(column).tolist()
    if tree is None:
        names = in_order({*cells})
        return coded(cells, names), names, None
    found = hierarchy(tree, str(column.name), ("",) if "" in cells else ())
    if lacking := sorted({*cells} - {*found.members}):
        raise ConfigError(f"the hierarchy of '{column.name}' lacks '{lacking[0]}', which the table holds: add it.")
    return coded(cells, found.members), found.members, found


def _finite(values: np.ndarray, name: str) -> np.ndarray:
    if np.isinf(values).any():
        raise DataError(f"column '{name}' holds an infinite number: correct it or leave the cell empty.")
    return values


def looks_identifying(table: pd.DataFrame, names: Sequence[str]) -> Iterator[str]:
    """Yield the columns in which most cells occur once, as those of names, numbers of patients, or exact amounts do."""
    for name in names if len(table) >= FEW else ():
        cells = plain_texts(table[name])
        if (np.unique(cells, return_counts=True)[1] == 1).sum() >= IDENTIFYING * len(cells):
            yield name


def telling(table: pd.DataFrame, names: Sequence[str], quasi: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (column, quasi-identifier) where each cell of a column goes with one value of the quasi-identifier."""
    at = {name: np.unique(plain_texts(table[name]), return_inverse=True)[1] for name in (*names, *quasi)}
    for name in names:
        different = int(at[name].max()) + 1
        for one in quasi if 2 * different <= len(table) else ():
            pairs = np.unique(at[name] * (int(at[one].max()) + 1) + at[one])
            if len(pairs) == different and at[one].any():
                yield name, one

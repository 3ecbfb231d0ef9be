"""The public ranges of a table's columns, for mechanisms that change their numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fedatlas.errors import ConfigError

if TYPE_CHECKING:
    from fedatlas.privacy.own_rows import OwnRows

Range = tuple[float, float]
Bounds = dict[str, Range] | Range
"""(lowest, highest) value of each column by name, or of every column."""


def check_bounds(name: str, bounds: Bounds, key: str = "bounds") -> None:
    """Raise ConfigError for a range that is empty or not finite. ``name``: of the mechanism."""
    each: Mapping[str, object] = bounds if isinstance(bounds, dict) else {"": bounds}
    for column, range_ in each.items():
        if isinstance(range_, tuple) and not (all(map(math.isfinite, range_)) and range_[0] < range_[1]):
            where = f"privacy.{name}.{key}{f'.{column}' if column else ''}"
            raise ConfigError(f"{where} = {list(range_)}: give the lowest and the highest value, the lower one first.")


def bounds_of(name: str, bounds: Bounds, column: str) -> Range:
    """Return the range of a column. ConfigError if it has none."""
    if not isinstance(bounds, dict):
        return bounds
    if column not in bounds:
        raise ConfigError(
            f"privacy.{name}.bounds: the range of column '{column}' is missing, and it is not computed from rows, which would show "
            "two of them: add it, or name the columns to change in 'columns'."
        )
    return bounds[column]


def numeric(name: str, rows: OwnRows, columns: Sequence[str] = ()) -> list[int]:
    """Return the places of the columns of numbers that are meant. ConfigError for rows without any, or for a name of none."""
    known = {column: j for j, (column, categories) in enumerate(rows.columns) if not categories}
    if not rows.columns or not rows.x.is_floating_point():
        raise ConfigError(
            f"[[privacy]] '{name}': it changes the columns of a table, and these rows are pictures or texts; remove the table."
        )
    for column in columns:
        if column not in known:
            held = "holds categories" if any(column == one for one, _ in rows.columns) else "is no input"
            raise ConfigError(f"privacy.{name}.columns: '{column}' {held}; name columns of numbers.")
    if not known:
        raise ConfigError(f"[[privacy]] '{name}': the table has no column of numbers; remove it.")
    return [known[column] for column in columns] if columns else [*known.values()]

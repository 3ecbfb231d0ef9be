"""The decimal mark of one file: the key's, or the only one under which all its numeric columns are numbers.

Reading a cell with a decimal comma is reading it with commas and points exchanged: ``1.234,5`` becomes ``1,234.5`` with
a comma between thousands. Cells are then written with a point, so later code never meets a decimal comma.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from fedatlas.data.cells import MISSING, bare, now, read_as, set_to, value_of
from fedatlas.data.text_table import form_of
from fedatlas.errors import ConfigError, DataError

if TYPE_CHECKING:
    import pandas as pd

EXCHANGED = str.maketrans(",.", ".,")


class _Readings(NamedTuple):
    """The different texts of a column, and their readings as numbers; None if one of them is not a number."""

    column: str
    point: dict[str, float] | None
    comma: dict[str, float] | None
    cells: tuple[str, ...]

    def first(self, mark: str) -> str:
        """Return the first cell with the mark."""
        return next((cell for cell in self.cells if mark in cell), "")


def with_points(table: pd.DataFrame, columns: Iterable[str], source: str, keys: str = "data.") -> pd.DataFrame:
    """Return the table with these columns' numbers written with a decimal point. DataError if no mark fits them all."""
    read = now()
    if read.rules < 3:
        return table
    if read.thousands == read.decimal == ",":
        raise ConfigError(f"{keys}decimal and {keys}thousands are both ',': one of them is another mark.")
    if read.decimal == "." or (read.thousands == "," and not read.decimal):
        return table
    columns = [name for name in dict.fromkeys(columns) if name in table.columns]
    if not (read.decimal or read.commas) and not any(
        isinstance(cell, str) and "," in cell for name in columns for cell in table[name]
    ):
        return table
    found = [_readings(name, _texts(table[name])) for name in columns]
    commas = [one for one in found if one.comma is not None and one.point is None and one.cells]
    points = [one for one in found if one.point is not None and one.comma is None and one.cells]
    if not read.decimal and not any(map(_surely, commas)):
        if read.commas and not points:
            _refuse_open(found, source, keys)
        return table
    if points:
        other = points[0]
        why = (
            f"but {keys}decimal = ','"
            if read.decimal
            else f"but '{commas[0].column}' with a comma, such as '{commas[0].first(',')}'"
        )
        raise DataError(
            f"{source}: column '{other.column}' holds numbers with a decimal point, such as '{other.first('.')}', {why}: "
            "write all numbers of a file with one mark (data.decimal names it), or leave a column out with data.drop."
        )
    changed = {
        one.column: _written(table[one.column]) for one in found if one.comma is not None and one.comma != one.point
    }
    out = table.assign(**changed)
    out.attrs["form"] = form_of(table)._replace(decimal=",")
    return out


def _refuse_open(found: Iterable[_Readings], source: str, keys: str) -> None:
    """Raise DataError for the first cell whose value depends on the decimal mark."""
    for one in found:
        for cell in one.cells if one.comma is not None and one.comma != one.point else ():
            readings = [value for value in (_thousands(cell), value_of(cell), _with_comma(cell)) if value is not None]
            if len(two := sorted({*readings}, reverse=True)) > 1:
                raise DataError(
                    f"{source}: column '{one.column}' holds '{cell}', which may mean {two[0]:.15g} or {two[1]:.15g}: nothing in this "
                    f"file tells which, and in rows that belong to it a decimal comma was found. {set_to(keys, 'decimal', ',')} or "
                    f"{set_to(keys, 'decimal', '.')} tells."
                )


def _thousands(cell: str) -> float | None:
    with read_as(now()._replace(thousands=now().thousands or ",")):
        return value_of(cell)


def _surely(one: _Readings) -> bool:
    """Return whether a cell's comma cannot separate thousands."""
    with read_as(now()._replace(thousands=",")):
        return any(value_of(cell) is None for cell in one.cells)


def _texts(column: pd.Series) -> tuple[str, ...]:
    """Return the different texts of a column, without those of missing cells. Values of other types are skipped."""
    if column.dtype != object and str(column.dtype) not in {"str", "string"}:
        return ()
    cells = {cell.strip() for cell in column.tolist() if isinstance(cell, str)}
    return tuple(sorted(cell for cell in cells if cell != "?" and cell.lower() not in MISSING))


def _readings(column: str, cells: tuple[str, ...]) -> _Readings:
    return _Readings(column, _read(cells, value_of), _read(cells, _with_comma), cells)


def _read(cells: Iterable[str], how: Callable[[str], float | None]) -> dict[str, float] | None:
    out: dict[str, float] = {}
    for cell in cells:
        if (value := how(cell)) is None:
            return None
        out[cell] = value
    return out


def _with_comma(cell: str) -> float | None:
    with read_as(now()._replace(thousands=now().thousands or ",")):
        return value_of(cell.translate(EXCHANGED))


def _written(column: pd.Series) -> pd.Series:
    """Return a column with its texts as numbers with a decimal point; missing cells and other values stay."""
    with read_as(now()._replace(thousands=now().thousands or ",")):
        known = {cell: bare(cell.strip().translate(EXCHANGED)) for cell in column.tolist() if isinstance(cell, str)}
    return column.map(lambda cell: known[cell] if isinstance(cell, str) else cell)

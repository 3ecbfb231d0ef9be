"""Excel workbooks: one sheet as a table, by the types of its cells."""

from __future__ import annotations

import datetime
import re
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedatlas.data.cells import EXACT, LINE, now
from fedatlas.data.text_table import FileForm
from fedatlas.errors import DataError, unknown_name

if TYPE_CHECKING:
    import pandas as pd

SUFFIXES = (".xlsx", ".xlsm")
UNCOMPUTED = re.compile(
    rb"<(?:\w+:)?c\b([^>]*)>\s*<(?:\w+:)?f\b(?:[^>]*/>|[^>]*>[^<]*</(?:\w+:)?f>)"
    rb"\s*(?:<(?:\w+:)?v\s*/>|<(?:\w+:)?v>\s*</(?:\w+:)?v>)?\s*</(?:\w+:)?c>"
)  # a formula without a stored value; with t="str" it is the empty text
DAY = datetime.timedelta(days=1)


def read_workbook(path: Path, keys: str) -> pd.DataFrame:
    """Read the sheet that ``sheet`` names, or the only one with cells.

    DataError that names a cell that cannot be used.
    """
    import pandas as pd

    try:
        import openpyxl
    except ImportError as error:
        raise DataError(f"'{path}' needs openpyxl: pip install \"fedatlas[tables]\"") from error
    try:
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
    except (zipfile.BadZipFile, KeyError, openpyxl.utils.exceptions.InvalidFileException) as error:
        raise ValueError("it is no Excel workbook") from error
    try:
        sheet = _sheet(book, path, keys)
        _refuse_uncomputed(path, sheet)
        header, rows, lines = _cells(sheet)
        name = sheet.title if len(book.worksheets) > 1 else ""
    finally:
        book.close()
    table = pd.DataFrame(rows, columns=header, index=pd.Index(lines, name=LINE), dtype=object)
    table.attrs["form"] = FileForm(sheet=name)
    return table


def _sheet(book: Any, path: Path, keys: str) -> Any:
    names = [sheet.title for sheet in book.worksheets]
    for sheet in book.worksheets:
        sheet.reset_dimensions()  # the size in a file may be wrong, and would cut off rows and columns
    if wanted := now().sheet:
        if wanted not in names:
            raise unknown_name(f"sheet of '{path.name}'", wanted, names)
        return book[wanted]
    filled = [sheet for sheet in book.worksheets if any(any(row) for row in sheet.iter_rows(values_only=True))]
    if len(filled) > 1:
        named = ", ".join(f"'{sheet.title}'" for sheet in filled)
        raise DataError(f"'{path.name}' has {len(filled)} sheets, {named}: name one with {keys}sheet.")
    if not filled:
        raise ValueError("it is empty")
    return filled[0]


def _refuse_uncomputed(path: Path, sheet: Any) -> None:
    """Raise DataError for a formula without a stored value, which would be read as a missing cell."""
    with zipfile.ZipFile(path) as archive:
        content = archive.read(sheet._worksheet_path)  # noqa: SLF001  (openpyxl tells it nowhere else)
    if not re.search(rb"[<:]f\b", content):
        return
    odd = [found[1] for found in UNCOMPUTED.finditer(content) if b't="str"' not in found[1]]
    if odd:
        place = re.search(rb'\br="([A-Z]+\d+)"', odd[0])
        first = place[1].decode() if place else "one cell"
        raise DataError(
            f"'{path.name}': {len(odd)} formulas have no stored value, first in {first}: open the file in a spreadsheet program "
            "and save it, which computes them."
        )


def _cells(sheet: Any) -> tuple[list[str], list[list[Any]], list[int]]:
    """Return header, rows and their numbers. Rows and columns without any value are left out."""
    found = [(n, row) for n, row in enumerate(sheet.iter_rows(), 1) if any(_filled(cell) for cell in row)]
    if not found:
        raise ValueError("it is empty")
    (_, header), *rows = found
    names = {j: str(_value(cell)).strip() for j, cell in enumerate(header) if _filled(cell)}
    for _, row in rows:
        if nameless := [cell for j, cell in enumerate(row) if j not in names and _filled(cell)]:
            raise ValueError(
                f"cell {nameless[0].coordinate} holds a value, but its column has no name in the first row"
            )
    cells = [[_value(row[j]) if j < len(row) else None for j in names] for _, row in rows]
    columns = [_dated(list(column)) for column in zip(*cells, strict=True)]
    return list(names.values()), [list(row) for row in zip(*columns, strict=True)], [n for n, _ in rows]


def _dated(column: list[Any]) -> list[Any]:
    """Return a column with its dates as texts of one form, with the time if one of them has a time."""
    found = [cell for cell in column if isinstance(cell, datetime.datetime)]
    timed = any(cell.time() != datetime.time() for cell in found)
    return [
        (cell.isoformat(" ") if timed else cell.date().isoformat()) if isinstance(cell, datetime.datetime) else cell
        for cell in column
    ]


def _filled(cell: Any) -> bool:
    return cell.value is not None and cell.value != ""


def _value(cell: Any) -> Any:
    """Return a cell's value: numbers unchanged, whole ones without ``.0``, days in ISO 8601, times in days.

    A workbook holds 64-bit floats. A number too large for an exact last digit stays a float.
    """
    value = cell.value
    if cell.data_type == "e":
        if value == "#N/A":
            return None
        raise ValueError(f"cell {cell.coordinate} holds the error '{value}': correct it, or leave it empty")
    if isinstance(value, datetime.datetime):
        return value  # see `_dated`
    if isinstance(value, datetime.timedelta):
        return value / DAY
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, int | float) and not isinstance(value, bool):
        return int(value) if abs(value) < EXACT and value == int(value) else float(value)
    return value

"""Dates as numbers: days since 1970-01-01, by the form that ``data.dates`` gives for a column."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING

import numpy as np

from fedatlas.data.cells import missing, now, texts
from fedatlas.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

START = datetime(1970, 1, 1, tzinfo=UTC)
FORMS = (
    "%Y-%m-%d",
    "%d.%m.%Y",
    "%d/%m/%Y",
    "%m/%d/%Y",
    "%d-%m-%Y",
    "%Y/%m/%d",
    "%Y-%m-%d %H:%M:%S",
    "%Y-%m-%dT%H:%M:%S",
    "%d.%m.%Y %H:%M",
    "%Y%m%d",
)
"""Forms that a notice proposes."""
LOOKED_AT = 500  # different cells of a column that may hold dates
LIKELY = range(1850, 2151)  # years of dates that are written without marks
PARTS = re.compile(r"\d{1,4}([-./]\d{1,2}){2}[-\d:. T]*|\d{4}-\d\d-\d\d.*|\d{8}", re.ASCII)


def days(cell: str, form: str) -> float | None:
    """Return the days since 1970-01-01, with the time as a fraction; None if the cell is not a date of this form."""
    try:
        found = datetime.strptime(cell, form)  # noqa: DTZ007  (without a zone it counts as UTC)
    except ValueError:
        return None
    found = found if found.tzinfo else found.replace(tzinfo=UTC)
    return (found - START).total_seconds() / 86400


def by_type(column: pd.Series) -> pd.Series | None:
    """Return a column whose type is a date (UTC, NaT for missing ones); None for another column."""
    import pandas as pd

    plain = pd.api.types.is_datetime64_any_dtype(column.dtype)
    objects = (
        column.dtype == object and now().rules > 2 and (known := column.dropna()).map(_is_date).all() and len(known)
    )
    return pd.to_datetime(column, utc=True) if plain or objects else None


def _is_date(cell: object) -> bool:
    return isinstance(cell, date)


def with_days(table: pd.DataFrame, name: str, keys: str = "data.") -> pd.DataFrame:
    """Return the table with the columns of ``dates`` as numbers.

    DataError that names the first cell of another form.
    """
    import pandas as pd

    out, wrong = {}, list[str]()
    for column, form in now().dates:
        if column not in table.columns:  # of new rows that a model does not use, or refused with the other roles
            continue
        if (utc := by_type(table[column])) is not None:
            out[column] = (utc - pd.Timestamp(START)) / pd.Timedelta(days=1)
            continue
        cells = texts(table[column])
        known = {cell: days(cell, form) for cell in {*cells[~missing(cells)].tolist()}}
        odd = [i for i, cell in enumerate(cells.tolist()) if known.get(cell, 0.0) is None]
        if odd:
            more = f", and {len(odd) - 1} more" if len(odd) > 1 else ""
            place = table.index[odd[0]] if table.index.name else odd[0] + 1
            wrong.append(
                f"'{name}': column '{column}' holds '{cells[odd[0]]}' in line {place}{more}, which is no date of the form "
                f"'{form}' of {keys}dates."
            )
        values = [np.nan if (day := known.get(cell)) is None else day for cell in cells.tolist()]
        out[column] = pd.Series(values, table.index, np.float64)
    if wrong:
        raise DataError(" ".join(wrong))
    return table.assign(**out) if out else table


def forms_of(cells: Iterable[str]) -> list[str]:
    """Return the forms under which all these different texts are dates; [] for texts that are unlikely to be dates."""
    some = list(cells)[:LOOKED_AT]
    if not some or not all(PARTS.fullmatch(cell) for cell in some):
        return []
    if all(len(cell) == 8 and cell.isdigit() for cell in some) and not all(int(cell[:4]) in LIKELY for cell in some):
        return []
    return [form for form in FORMS if all(days(cell, form) is not None for cell in some)]


def proposed(column: str, forms: list[str], keys: str = "data.") -> str:
    """Return the key that turns a column of dates into numbers."""
    name = column if re.fullmatch(r"[A-Za-z0-9_-]+", column) else f'"{column}"'
    other = f" (or '{forms[1]}', if the month stands first)" if "%m/%d/%Y" in forms[1:] else ""
    return f"{keys}dates = {{{name} = '{forms[0]}'}}{other}"

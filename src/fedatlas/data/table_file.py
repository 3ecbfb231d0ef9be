"""Table files of all kinds: their cells, with missing cells marked and dates as numbers."""

from __future__ import annotations

import contextlib
import csv
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedatlas.data.cells import OPTION, as_text, class_text, now
from fedatlas.data.dates import with_days
from fedatlas.data.kept import CALLED, TABLE, read_kept
from fedatlas.data.text_table import read_text
from fedatlas.data.workbook import SUFFIXES, read_workbook
from fedatlas.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

WHOLE_TYPES = ("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64")
GIVEN = "as given"  # attribute of a table whose missing cells and dates follow the keys


def read_table(path: str | Path, keys: str = "data.") -> pd.DataFrame:
    """Read a .csv, .csv.gz, .tsv, .xlsx or .parquet file, or a table of `kept`. Cells of texts stay texts.

    DataError if it cannot be read. Missing cells and dates follow the keys ``na`` and ``dates``. ``keys``: prefix of a
    key in a message.
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(f"there is no file '{path}'.")
    try:
        if path.suffix in (".parquet", TABLE):
            table = read_kept(path) if path.suffix == TABLE else _read_parquet(path)
        else:
            table = (read_workbook if path.suffix in SUFFIXES else read_text)(path, keys)
    except (OSError, EOFError, ValueError, csv.Error, zlib.error) as error:
        reason = str(error).strip().split("\n")[0]
        raise DataError(f"'{path}' cannot be read as a table ({reason}).") from error
    table.columns = [str(name).strip() for name in table.columns]
    twice = sorted({name for name in table.columns if list(table.columns).count(name) > 1})
    if twice:
        raise DataError(f"'{path}' has two columns called '{twice[0]}': rename one.")
    if len(table) == 0:
        raise DataError(f"'{path}' has a header but no rows.")
    return as_given(table, CALLED[TABLE] if path.suffix == TABLE else path.name, keys)


def as_given(table: pd.DataFrame, name: str, keys: str = "data.") -> pd.DataFrame:
    """Return the table with missing cells and dates by the keys ``na`` and ``dates``, once for each table."""
    if table.attrs.get(GIVEN):
        return table
    table = with_days(with_gaps(table), name, "data." if keys == OPTION else keys).copy(deep=False)  # not the caller's
    table.attrs[GIVEN] = True
    return table


def with_gaps(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table without the cells that ``na`` names: a text exactly, a whole number also with ``.0`` or ``,0``."""
    if not (na := {*now().na}):
        return table
    gaps = {}
    for name in table.columns:
        with contextlib.suppress(TypeError):  # a column of lists is refused by its name, or left out
            found = table[name].dropna().unique()
            if wanted := [one for one in found if not na.isdisjoint({as_text(one).strip(), spelled(as_text(one))})]:
                gaps[name] = _with_room(table[name]).mask(table[name].isin(wanted))
    return table.assign(**gaps) if gaps else table


def _with_room(column: pd.Series) -> pd.Series:
    """Return a column that can hold missing cells. A column of whole numbers gets a type that keeps them whole."""
    kind = getattr(column.dtype, "kind", "")
    whole = kind in {"i", "u"} and isinstance(column.dtype, np.dtype) and now().rules > 2
    return column.astype("UInt64" if kind == "u" else "Int64") if whole else column


def spelled(cell: str) -> str:
    """Return a text in the spelling of a key: a whole number without ``.0`` or ``,0``."""
    cell = cell.strip()
    return class_text(f"{cell[:-2]}.0" if cell.endswith(",0") else cell)


def _read_parquet(path: Path) -> pd.DataFrame:
    """Return a Parquet file by its stored types.

    Whole numbers with missing cells stay whole, despite metadata from pandas.
    """
    import pandas as pd

    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise DataError(f"'{path}' needs pyarrow: pip install \"fedatlas[tables]\"") from error
    if now().rules < 2:
        return pd.read_parquet(path)
    table = pq.read_table(path)
    index = {x for x in (table.schema.pandas_metadata or {}).get("index_columns", ()) if isinstance(x, str)}
    table = table.drop_columns([name for name in table.column_names if name in index])
    plain = [
        column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
        for column in table.columns
    ]
    whole = {getattr(pa, name.lower())(): getattr(pd, f"{name}Dtype")() for name in WHOLE_TYPES}
    return pa.table(plain, names=table.column_names).to_pandas(types_mapper=whole.get)

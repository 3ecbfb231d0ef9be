"""The tables of several parties in memory, matched by their ids, in the form that scikit-learn's tools take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from fedatlas.data.kept import table_arrays, table_of
from fedatlas.data.party_ids import id_texts, refuse_twice
from fedatlas.errors import ConfigError, DataError

Names = tuple[str, ...]


class Parties:
    """Columns of several parties about the same rows, for simulations.

    It holds the tables of **all** parties in one place, which is what federations on columns exist to avoid: use it to try a method
    on tables that you have, not between real parties, for whom there is ``fedatlas run`` and a deployment.

    tables: party -> its DataFrame, in the order of the parties. on: the column of ids, or party -> its column of ids.
    The rows are those whose id every party has, in the order of the first table; they are matched here, once, and `ids` names them.
    Ids are compared as in a run: the text of the cell, without blanks at its ends.

    Rows are taken, indexed and split as those of a DataFrame whose columns are (party, column): ``len(parties)``,
    ``parties.shape``, ``parties[rows]``, ``parties.take(rows)``, ``parties.iloc``. ``parties["bank"]`` is the table of a party.

    Rows may be drawn more than once, as in a bootstrap.

    ConfigError for fewer than two tables, or without a column of ids for each. DataError for a party without rows or without its ids,
    for an id that occurs twice, and if no id is at all parties.
    """

    def __init__(self, tables: Mapping[str, pd.DataFrame], on: str | Mapping[str, str] = "id") -> None:
        given: Any = tables
        if not isinstance(given, Mapping) or len(given) < 2:
            raise ConfigError(
                'Parties takes the tables of two parties or more: Parties({"bank": table, "shop": table}, on="id").'
            )
        columns = {name: on.get(name) if isinstance(on, Mapping) else on for name in tables}
        if wrong := [name for name, column in columns.items() if not isinstance(column, str)]:
            raise ConfigError(
                f"on= names no column of ids for party '{wrong[0]}': give one name for all parties, or a mapping with one name for each; "
                "of an id in several columns make one column."
            )
        read = {str(name): _by_id(str(name), table, str(columns[name])) for name, table in tables.items()}
        first, *others = read.values()
        common = first.index[np.logical_and.reduce([first.index.isin(one.index) for one in others])]
        if not len(common):
            sizes = ", ".join(f"{len(one):,} at '{name}'" for name, one in read.items())
            raise DataError(f"no id is at all parties ({sizes}): name the columns that hold the same ids with on=.")
        self.frame = pd.concat({name: one.loc[common] for name, one in read.items()}, axis=1)

    @classmethod
    def of(cls, frame: pd.DataFrame) -> Parties:
        """Return parties of rows that are matched: ids as the index, (party, column) as the columns."""
        found = cls.__new__(cls)
        found.frame = frame
        return found

    @property
    def names(self) -> Names:
        """The parties' names, in order."""
        return tuple(dict.fromkeys(self.frame.columns.get_level_values(0)))

    @property
    def ids(self) -> np.ndarray:
        """(n,), the id of each row."""
        return np.asarray(self.frame.index)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows, and of columns of all parties."""
        rows, columns = self.frame.shape
        return rows, columns

    @property
    def columns(self) -> pd.MultiIndex:
        """(party, column) of each column."""
        return self.frame.columns

    @property
    def index(self) -> pd.Index:
        """The ids, as pandas has them."""
        return self.frame.index

    @property
    def iloc(self) -> Any:
        """Rows and columns by position, as a DataFrame or a Series."""
        return self.frame.iloc

    def __len__(self) -> int:
        return len(self.frame)

    def __repr__(self) -> str:
        held = ", ".join(f"{name} ({self[name].shape[1]} columns)" for name in self.names)
        return f"Parties: {held}; {len(self):,} common rows"

    def __getitem__(self, key: Any) -> Any:
        """Return the table of a party, the column (party, column), or rows by position or mask."""
        if isinstance(key, str) or (isinstance(key, tuple) and all(isinstance(one, str) for one in key)):
            return self.frame[key]
        return Parties.of(self.frame.iloc[np.atleast_1d(key) if np.isscalar(key) else key])

    def __setitem__(self, key: Any, values: Any) -> None:
        """Replace the column (party, column)."""
        self.frame[key] = values

    def take(self, rows: Any, axis: int = 0) -> Any:
        """Return rows by position, or with ``axis=1`` columns."""
        return Parties.of(self.frame.take(rows, axis=axis))

    def copy(self) -> Parties:
        """Return parties whose columns can be replaced without an effect on these."""
        return Parties.of(self.frame.copy())


def _by_id(name: str, table: pd.DataFrame, on: str) -> pd.DataFrame:
    """Return a party's table as a file of it would be read, with its ids as the index; rows without an id are left out."""
    what = f"party '{name}'"
    if not isinstance(table, pd.DataFrame):
        raise DataError(f"{what}: {type(table).__name__} is no table: give a DataFrame with a column of ids.")
    if not len(table):
        raise DataError(f"{what} has no rows.")
    read = table_of(table_arrays(table))
    if on not in read.columns:
        raise DataError(f"{what} has no column '{on}' of ids: name it with on=.")
    if read.shape[1] < 2:
        raise DataError(f"{what} has no column but its ids.")
    ids = id_texts(read[on], what)
    refuse_twice(ids, read.index, what, f"occurs twice in '{on}'")
    found = read.drop(columns=on).set_axis(pd.Index(ids, dtype=object), axis=0)
    return found[found.index != ""]

"""Tables of owners that hold rows of the same columns: read one by one, and brought into one form without pooling rows.

All owners' files must have the same columns and a label of the same kind. A category or a class that an owner lacks is one of all owners
all the same: its column of 0 and 1 is 0 there. No cell may be missing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedatlas.data.cells import Reading, in_order, now
from fedatlas.data.dataset import Column, Names, Split
from fedatlas.data.loaded import Loaded
from fedatlas.data.party_tables import PartyFile, PartyTable, count_rows, read_party, spread, spread_names
from fedatlas.errors import DataError


def read_owners(files: Sequence[PartyFile], drop: bool = False) -> list[PartyTable]:
    """Read the owners' files. ``drop``: leave out rows with a missing cell. DataError, naming the owner, for what cannot be used."""
    return without_holes(alike([read_party(file, drop) for file in files]), drop)


def dealt_rows(loaded: Loaded, rows: Split, parts: Sequence[np.ndarray], drop: bool = False) -> list[PartyTable]:
    """Return one table's rows as dealt to owners. ``parts``: the rows of each. DataError as in `read_owners`."""
    schema = loaded.schema or tuple(Column(str(j)) for j in range(rows.x.shape[1]))
    raw, y = rows.x.numpy(), rows.y.numpy().astype(np.float64)
    reading, bits = Reading.from_json({**now().to_json(), **loaded.facts.get("reading", {})}), 8 * raw.dtype.itemsize
    out = []
    for k, part in enumerate(parts):
        x, names = spread(schema, raw[part])
        ids = tuple(str(row) for row in part)
        found = PartyTable(
            f"party-{k}", ids, schema, x, names, y[part], task=loaded.task, class_names=loaded.class_names
        )
        out.append(found._replace(reading=reading, bits=bits))
    return without_holes(out, drop)


def alike(tables: Sequence[PartyTable]) -> list[PartyTable]:
    """Return tables with the same columns in the same order, and the same classes. DataError if they do not fit together."""
    first = tables[0]
    for one in tables:
        for its, other in ((first, one), (one, first)):
            theirs = {column.name for column in other.schema}
            if lost := [column.name for column in its.schema if column.name not in theirs]:
                raise DataError(
                    f"party '{other.name}' has no column '{lost[0]}', which '{its.name}' has: all owners need the same columns; "
                    "add it, or leave it out everywhere with drop."
                )
        if one.task != first.task:
            raise DataError(
                f"the label of '{first.name}' is of {first.task} and that of '{one.name}' of {one.task}: set the same task at both."
            )
    schema = tuple(_column(column.name, tables) for column in first.schema)
    classes = in_order({name for one in tables for name in one.class_names})
    return [_as(one, schema, tuple(classes)) for one in tables]


def _column(name: str, tables: Sequence[PartyTable]) -> Column:
    """Return a column with the categories of all owners. DataError if it is text at one owner and numbers at another."""
    held = [(one.name, next(column for column in one.schema if column.name == name)) for one in tables]
    texts = [(who, column) for who, column in held if column.categories]
    if texts and len(texts) < len(held):
        other = next(who for who, column in held if not column.categories)
        raise DataError(
            f"column '{name}' holds texts at '{texts[0][0]}' and numbers at '{other}': correct the file, or name the column in "
            "categories at both."
        )
    return Column(name, tuple(in_order({text for _, column in texts for text in column.categories})))


def _as(one: PartyTable, schema: tuple[Column, ...], classes: Names) -> PartyTable:
    """Return a table in the columns and classes of all owners."""
    parts = []
    for column in schema:
        held = spread_names(next(own for own in one.schema if own.name == column.name))
        own = {name: one.x[:, one.names.index(name)] for name in held}
        missing = np.isnan(next(iter(own.values())))
        parts += [own.get(name, np.where(missing, np.nan, 0.0)) for name in spread_names(column)]
    names = tuple(name for column in schema for name in spread_names(column))
    y = one.y
    if one.class_names and y is not None:
        y = np.array([classes.index(name) for name in one.class_names], np.float64)[y.astype(np.int64)]
    return one._replace(schema=schema, x=np.stack(parts, axis=1), names=names, y=y, class_names=classes)


def without_holes(tables: Sequence[PartyTable], drop: bool) -> list[PartyTable]:
    """Return tables without missing cells: without such rows if ``drop``. DataError if there are any, or an owner has no row."""
    out = []
    for one in tables:
        holes = ~np.isfinite(one.x)
        lost = np.asarray(holes.any(axis=1))
        if lost.any() and not drop:
            column = one.names[int(holes.any(axis=0).argmax())]
            raise DataError(
                f"party '{one.name}': {count_rows(int(lost.sum()))} without a number in some column, first '{column}': fill the cells, "
                "or set data.missing = 'drop' to leave such rows out."
            )
        if lost.all():
            raise DataError(
                f"party '{one.name}' has no rows{' without a missing cell' if len(lost) else ''}: leave it out."
            )
        kept, y = ~lost, one.y
        left = one.left_out + int(lost.sum())
        ids = tuple(np.array(one.ids, object)[kept])
        out.append(one._replace(ids=ids, x=one.x[kept], y=None if y is None else y[kept], left_out=left))
    return out

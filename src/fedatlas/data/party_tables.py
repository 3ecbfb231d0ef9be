"""One party's table, and the columns of one table dealt to parties: ids, numbers with missing values, one party's label.

A text column becomes one 0/1 column per category, at its owner ("city=Rome"). A missing cell is missing in all of them.
No party's table is read for another party.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedatlas.data.cells import OPTION, Dates, Reading, in_order, now, read_as, with_keys
from fedatlas.data.dataset import Column, Names
from fedatlas.data.decimals import with_points
from fedatlas.data.frame import (
    Roles,
    TaskChoice,
    absent,
    encode_inputs,
    encode_target,
    encode_weights,
    holes,
    lacking,
    number_columns,
    raw_rows,
    unusable,
)
from fedatlas.data.kept import located
from fedatlas.data.party_ids import IdPlan, IdSpec, Normalise, RowIds, id_plan, ids_of
from fedatlas.data.problems import Problems
from fedatlas.data.reading import of_inputs, same_classes
from fedatlas.data.table_file import read_table
from fedatlas.data.text_table import form_of
from fedatlas.errors import ConfigError, DataError, unknown_name
from fedatlas.files import OF_THE_FILE
from fedatlas.rng import numpy_stream

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]
OWN_KEY = "the party's "
"""Prefix of a key of ``[[parties]]`` in a message."""


class PartyFile(NamedTuple):
    """Place of a party's table and the roles of its columns; all others are inputs."""

    name: str
    path: str
    id: IdSpec = ""  # "": of an owner of rows, which matches none
    label: str = ""
    weight: str = ""
    task: TaskChoice = "auto"
    drop: Names = ()
    categories: Names = ()
    thousands: str = ""
    units: Names = ()
    na: Names = ()
    dates: Dates | None = None
    decimal: str = ""
    separator: str = ""
    encoding: str = ""
    sheet: str = ""
    normalise: Normalise = ()

    @property
    def ids(self) -> IdPlan:
        """How the rows get their ids."""
        return id_plan(self.id, self.normalise)


class PartyTable(NamedTuple):
    """A party's rows in the order of its file."""

    name: str
    ids: Names  # by the first key; "" = none
    schema: tuple[Column, ...]  # of the columns in the file
    x: Floats  # (rows, columns), text columns as 0/1, NaN = missing
    names: Names  # of the columns of x
    y: Floats | None = None
    weight: Floats | None = None
    task: str = ""
    class_names: Names = ()
    left_out: int = 0  # rows without a label or weight
    called: str = ""  # the file
    reading: Reading = Reading()
    bits: int = 64  # of the numbers of x
    doubts: Names = ()  # warnings about probable mistakes
    later: tuple[Names, ...] = ()  # ids by the further keys of a linkage
    linked: bool = False  # whether an id may occur in several rows, which are then left out
    shown: tuple[tuple[str, Names], ...] = ()  # the columns of ids as in the file

    @property
    def without_id(self) -> int:
        """Number of rows that cannot be matched."""
        return sum(not any(keys) for keys in zip(self.ids, *self.later, strict=True))

    def with_ids(self, found: RowIds) -> PartyTable:
        """Return the table with these ids."""
        first, *later = found.keys
        return self._replace(ids=first, later=tuple(later), linked=found.linked, shown=found.shown)


def read_party(file: PartyFile, drop_unlabelled: bool = False, *, some: bool = False) -> PartyTable:
    """Read a party's file. DataError, naming the party, for anything that cannot be used.

    ``drop_unlabelled``: leave out rows without a label or weight; else they are an error. ``some``: keep rows without a label, whose
    ``y`` is NaN; another party may have theirs.
    """
    what = f"party '{file.name}'"
    where = located(file.path)
    if not where.is_file():
        raise DataError(f"{what}: {lacking(file.path, 'file')}")
    own = {key: getattr(file, key) for key in OF_THE_FILE}
    with read_as(with_keys(file.thousands, file.units, na=file.na, dates=file.dates, **own)):
        return party_of(read_table(where, OWN_KEY), file, what, where.name, drop_unlabelled, some)


def party_of(
    table: pd.DataFrame, file: PartyFile, what: str, called: str, drop_unlabelled: bool, some: bool = False
) -> PartyTable:
    """Return a party's table from what was read. DataError as in `read_party`. ``called``: the file's name."""
    problems = Problems(what)
    plan = file.ids if file.id else None
    keys = plan.columns if plan else ()
    problems.add(absent(table.columns, {**file._asdict(), "id": keys}, f"{what}: ", f"'{called}'"))
    named = [name for name in (*keys, file.label, file.weight) if name]
    if twice := sorted({name for name in named if named.count(name) > 1}):
        raise ConfigError(f"{what}: '{twice[0]}' is named for two roles; id, label and weight need separate columns.")
    roles = Roles(file.label, "", file.weight, file.task, (*file.drop, *keys), file.categories)
    try:
        table = with_points(table, number_columns(table.columns, roles), what, OWN_KEY)
    except DataError as error:
        problems.add([error])
        problems.refuse()
    needed = {"label": "" if some else file.label, "weight": file.weight}
    lost = unusable(table, needed, what, drop_unlabelled, "data.missing = 'drop' leaves out such rows", problems)
    table = table[~lost]
    ids = None
    if plan and {*keys} <= {*table.columns}:
        with problems.noted():
            ids = ids_of(table, plan, what)
    bits = bits_of_parties()
    if not file.label or file.label in table.columns:
        with problems.noted():
            y, task, classes = target(table, file, what, bits, some)
    with problems.noted():
        weighted = bool(file.weight) and file.weight in table.columns
        weight = encode_weights(table[file.weight], what, bits).double().numpy() if weighted else None
    schema, raw = encode_inputs(table, {*named, *file.drop}, file.categories, what, OWN_KEY, bits, problems)
    x, names = spread(schema, raw)
    said = [
        same_classes(f"the label '{file.label}'", classes),
        *of_inputs(table, schema, file.categories, OWN_KEY, bits),
    ]
    found = PartyTable(file.name, (), schema, x, names, y, weight, task, classes, int(lost.sum()), called)
    reading = now()._replace(commas=form_of(table).decimal == "," and not now().decimal)
    found = found._replace(reading=reading, bits=bits, doubts=tuple(f"'{file.name}': {one}" for one in said if one))
    return found._replace(ids=tuple(map(str, range(len(x))))) if ids is None else found.with_ids(ids)


def bits_of_parties() -> int:
    """Return the bits of the numbers of parties that hold columns, by the rules of this context."""
    return 64 if now().rules > 1 else 32


def alike(tables: Sequence[PartyTable]) -> list[PartyTable]:
    """Return the tables with one list of classes, where several hold labels; a class that one lacks is in its doubts.

    ConfigError if their labels are of different kinds.
    """
    held = [one for one in tables if one.y is not None]
    if len(held) < 2:
        return list(tables)
    if len({one.task for one in held}) > 1:
        first, other = held[0], next(one for one in held if one.task != held[0].task)
        raise ConfigError(
            f"the label of '{first.name}' is of {first.task}, and that of '{other.name}' of {other.task}: set 'task' at both."
        )
    classes = in_order({name for one in held for name in one.class_names})
    return [one if one.y is None or not classes else _with_classes(one, one.y, classes) for one in tables]


def _with_classes(table: PartyTable, y: Floats, classes: Names) -> PartyTable:
    """Return a table whose labels are numbers of these classes."""
    said = [f"'{table.name}' has no row of class '{name}'." for name in classes if name not in table.class_names]
    y = renumbered(y, table.class_names, classes)
    return table._replace(y=y, class_names=classes, doubts=(*table.doubts, *said))


def renumbered(y: Floats, had: Sequence[str], classes: Sequence[str]) -> Floats:
    """Return (rows,) numbers of the classes in ``classes`` for those in ``had``; NaN, a row without a label, stays."""
    number, known, found = np.array([classes.index(name) for name in had], np.float64), ~np.isnan(y), y.copy()
    found[known] = number[y[known].astype(np.int64)]
    return found


def count_rows(n: int) -> str:
    """Return '1 row', '2 rows' and so on."""
    return f"{n:,} row{'s' if n != 1 else ''}"


def target(table: pd.DataFrame, file: PartyFile, what: str, bits: int, some: bool) -> tuple[Floats | None, str, Names]:
    """Return (the label as class numbers or as numbers, the task, the classes' names). ``some``: as `read_party` takes it."""
    if not file.label:
        return None, "", ()
    what_, column = f"{what}: the label '{file.label}'", table[file.label]
    known = ~holes(column) if some else np.ones(len(column), bool)
    if not known.any():
        raise DataError(f"{what_} is missing in every row: leave the party's key 'label' out.")
    least = 2 if file.id and not some else 1  # who is not alone with a label may lack a class that others have
    y, task, names = encode_target(column[known], file.task, what_, least, keys=OWN_KEY, bits=bits)
    found = np.full(len(column), np.nan)
    found[known] = y.double().numpy()
    return found, task, names


def spread(schema: Sequence[Column], raw: NDArray[Any]) -> tuple[Floats, Names]:
    """Return raw columns (numbers, or codes of categories) as columns of trees, and their names.

    A category is a 0/1 column.
    """
    parts: list[NDArray[Any]] = []
    for j, column in enumerate(schema):
        values = raw[:, j].astype(np.float64)
        if not column.categories:
            parts.append(values)
            continue
        parts += [np.where(np.isnan(values), np.nan, values == code) for code in range(len(column.categories))]
    names = [name for column in schema for name in spread_names(column)]
    return np.stack(parts, axis=1), tuple(names)


def spread_names(column: Column) -> list[str]:
    """Return the names of the columns of trees that a raw column becomes."""
    return [f"{column.name}={category}" for category in column.categories] or [column.name]


class TrainedTable(NamedTuple):
    """The reading of a party's table in training, as its part of the model records it."""

    name: str
    id: IdSpec
    schema: tuple[Column, ...]
    reads: frozenset[str] | None = None  # the columns of trees that the model uses; None: all
    reading: Reading = Reading(1)
    bits: int = 32
    normalise: Normalise = ()


def new_rows(file: str, trained: TrainedTable) -> PartyTable:
    """Read a party's new rows, by the columns that it was trained with.

    A column that the model does not use may be absent.
    """
    what, called = f"party '{trained.name}'", Path(file).name
    with read_as(trained.reading):
        table = read_table(file, OPTION)
        if not trained.id:
            return as_trained(table, trained, called)
        plan = id_plan(trained.id, trained.normalise)
        if lost := [name for name in plan.columns if name not in table.columns]:
            raise DataError(f"{what}: '{called}' lacks its id column '{lost[0]}'.")
        ids = ids_of(table, plan, what)
    return as_trained(table, trained, called).with_ids(ids)


def as_trained(table: pd.DataFrame, trained: TrainedTable, called: str = "") -> PartyTable:
    """Return new rows, still without ids, in the columns that a party was trained with.

    DataError, naming the party, for a column that is lacking.
    """
    what, schema = f"party '{trained.name}'", trained.schema
    with read_as(trained.reading):
        unused = {
            one.name for one in schema if trained.reads is not None and trained.reads.isdisjoint(spread_names(one))
        }
        try:
            raw = raw_rows(table, schema, trained.bits, unused, OPTION).numpy()
        except DataError as error:
            raise DataError(f"{what}: {error}") from None
    said = tuple(
        f"{count_rows(n)} of '{trained.name}' {'holds' if n == 1 else 'hold'} a category of column '{column.name}' that no "
        "training row had; the model treats them as having no category."
        for column, values in zip(schema, raw.T, strict=True)
        if column.categories and (n := int((values < 0).sum()))
    )
    x, names = spread(schema, raw)
    found = PartyTable(trained.name, (), tuple(schema), x, names, called=called)
    return found._replace(reading=trained.reading, bits=trained.bits, doubts=said)


# ------------------------------------------------------------------------------------------------ one table's columns


class Deal(NamedTuple):
    """Rules for dealing the columns of one table."""

    parties: int
    columns: Mapping[str, Sequence[str]]
    label_party: int | str
    overlap: float
    shared: float | None = (
        None  # of the columns, those that all parties have, and each has labels of its own rows; None: none
    )


def deal(
    schema: Sequence[Column],
    raw: NDArray[Any],
    y: NDArray[Any],
    weight: NDArray[Any] | None,
    target_: tuple[str, Names],
    how: Deal,
    seed: int,
    reading: Reading | None = None,
) -> list[PartyTable]:
    """Deal one table's columns to parties, each with its rows in a separate order.

    ``target_``: task and names of the classes. ``reading``: how the table was read; None: as in this context.
    """
    known = [column.name for column in schema]
    groups = dict(how.columns) or {
        f"party-{k}": known[k * len(known) // how.parties : (k + 1) * len(known) // how.parties]
        for k in range(how.parties)
    }
    if how.shared is not None:
        groups = shared_columns(known, how.parties, how.shared, seed)
    named = [name for own in groups.values() for name in own]
    for name in named if how.shared is None else ():
        if name not in known:
            raise unknown_name("column", name, known)
        if named.count(name) > 1:
            raise ConfigError(f"partition.columns: '{name}' is named twice; each column has one holder.")
    if empty := [name for name, own in groups.items() if not own]:
        raise ConfigError(
            f"partition: party '{empty[0]}' gets no column: there are {len(known)} columns for {len(groups)} parties."
        )
    holder = label_holder(how.label_party, list(groups))
    rows = shares(len(y), len(groups), how.overlap, seed, exact=how.shared is None)
    common = set.intersection(*({*mine.tolist()} for mine in rows))
    out = []
    for k, (name, own) in enumerate(groups.items()):
        at = [known.index(column) for column in own]
        mine = rows[k]
        x, names = spread([schema[j] for j in at], raw[mine][:, at])
        table = PartyTable(name, tuple(str(i) for i in mine), tuple(schema[j] for j in at), x, names)
        table = table._replace(reading=reading or now(), bits=64 if raw.dtype == np.float64 else 32)
        if k == holder or how.shared is not None:
            task, classes = target_
            own_y, own_weight = (None if one is None else one[mine].astype(np.float64) for one in (y, weight))
            if own_y is not None and k != holder:
                own_y[[i in common for i in mine.tolist()]] = np.nan
            own_weight = own_weight if k == holder else None
            table = table._replace(y=own_y, weight=own_weight, task=task, class_names=classes)
        out.append(table)
    return out


def label_holder(asked: int | str, names: Sequence[str]) -> int:
    """Return the index of the party that holds the label."""
    if isinstance(asked, str):
        if asked not in names:
            raise unknown_name("party", asked, names)
        return list(names).index(asked)
    if not 0 <= asked < len(names):
        raise ConfigError(f"partition.label_party = {asked}: the parties are 0 to {len(names) - 1}.")
    return asked


def shared_columns(known: Sequence[str], parties: int, shared: float, seed: int) -> dict[str, Sequence[str]]:
    """Return each party's columns, in the table's order: a share that all have, and every other column at one party (D12)."""
    drawn = numpy_stream(seed, "partition", "hybrid").permutation(len(known))
    common = int(shared * len(known))
    mine = [{*drawn[:common].tolist(), *drawn[common + k :: parties].tolist()} for k in range(parties)]
    return {f"party-{k}": [name for j, name in enumerate(known) if j in own] for k, own in enumerate(mine)}


def shares(n: int, parties: int, overlap: float, seed: int, exact: bool = True) -> list[NDArray[np.int64]]:
    """Return the rows of each party, each in a separate order: a share common to all, and every other row at one party.

    ``exact``: the share is rounded, else cut.
    """
    stream = numpy_stream(seed, "partition", "vertical")
    drawn = stream.permutation(n)
    common = round(overlap * n) if exact else int(overlap * n)
    rest = drawn[common:]
    return [stream.permutation(np.concatenate([drawn[:common], rest[k::parties]])) for k in range(parties)]

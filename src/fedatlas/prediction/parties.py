"""``fedatlas predict RUN NAME=FILE ...``: predict new rows with a model whose parts are held by several parties.

Each party matches its new rows with those of the active party, as in training. In a row that a party lacks, all its
columns are missing. Then the scheme predicts (`Scheme.predict`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedatlas.algorithm import State
from fedatlas.course.columns_end import MODEL, model_file
from fedatlas.data.cells import Reading
from fedatlas.data.dataset import Column
from fedatlas.data.party_tables import PartyTable, TrainedTable, new_rows
from fedatlas.errors import ConfigError, DataError, unknown_name
from fedatlas.federation.client_states import PartyState
from fedatlas.federation.columns_federation import columns_federation
from fedatlas.federation.link import Observer
from fedatlas.federation.start import RoundStart
from fedatlas.record.run_folder import RunFolder
from fedatlas.setup.consortium import align_of, columns_of
from fedatlas.setup.refusals import checked
from fedatlas.vertical import align
from fedatlas.vertical.judging import probabilities
from fedatlas.vertical.parties import Columns, Floats, order, tensor
from fedatlas.vertical.scheme import How, Scheme
from fedatlas.wording import bytes_text

if TYPE_CHECKING:
    import pandas


class Predicted(NamedTuple):
    """Predictions, and what they cost."""

    table: pandas.DataFrame  # the active party's ids, in its file's order, with the predictions
    lacking: Mapping[str, int]  # party -> rows of the active party that it does not have
    bytes: int  # up and down
    notices: tuple[str, ...]


def predict(
    path: Path, files: Mapping[str, str], observers: Iterable[Observer] = (), form: Mapping[str, str] = {}
) -> Predicted:
    """Return the predictions of a finished run for new rows. ``files``: party -> its file; of owners of rows, of one or more.

    ``form``: how these files are written, some of `OF_THE_FILE`, ``NAME=VALUE`` for one party; else each as in training, or found
    by looking.

    ConfigError if a party's file is missing, or a name is not that of a party. DataError if rows of the active party
    have no id.
    """
    folder = RunFolder.open(path)
    whole, summary = checked(folder.config()), folder.summary()
    config, scheme = whole.config, whole.of_columns()
    own, shared = scheme.keys
    names = [one["name"] for one in summary["parties"]]
    active = next(k for k, one in enumerate(summary["parties"]) if one["active"])
    for name in files:
        if name not in names:
            raise unknown_name("party", name, names)
    if scheme.layout == "rows":
        return of_owners(folder, scheme, files, form)
    if absent := [name for name in names if name not in files]:
        raise ConfigError(
            f"party '{absent[0]}' has no rows: give a file for each party, as in {' '.join(f'{n}=FILE' for n in names)}."
        )
    saved = [folder.read_json(model_file(name), "party", "id", "schema", *own) for name in names]
    common = folder.read_json(MODEL, *shared)
    tables = [read(one, files[name], scheme, form, names) for name, one in zip(names, saved, strict=True)]
    parties = [columns_of(k, one, active, tuple(names), config.seed) for k, one in enumerate(tables)]
    if without := tables[active].without_id:
        raise DataError(
            f"party '{names[active]}': {without} rows have no id and cannot be matched: give each row an id."
        )
    states, sent = PartyState(), 0
    lacking: dict[str, int] = {}
    at = np.arange(len(tables[active].ids))
    for k, data in enumerate(parties):
        found, cost = (at, 0) if k == active else matched(parties[active], data, align_of(config), observers)
        sent += cost
        if k != active:
            lacking[data.name] = int((found < 0).sum())
        exported = {"table": saved[k], "model": common if k == active else None}
        states.after.put(k, {**scheme.load(data, exported), "align": {"order": tensor(found)}})
    outputs, walked = outputs_of(parties, states, scheme, whole.how, observers)
    sent += walked
    without_match = "cannot be linked to one row of" if align_of(config).linked else "are not at"
    said = tuple(
        f"{n:,} of {len(at):,} rows {without_match} '{name}': its columns are missing there."
        for name, n in lacking.items()
        if n
    )
    said = (*(doubt for one in tables for doubt in one.doubts), *said)
    return Predicted(as_table(dict(tables[active].shown), outputs, saved[active]), lacking, sent, said)


def of_owners(folder: RunFolder, scheme: Scheme, files: Mapping[str, str], form: Mapping[str, str]) -> Predicted:
    """Return the predictions of one or more owners for rows of their own, each by its own file of the model; nothing is sent.

    DataError for a missing cell.
    """
    import pandas

    if not files:
        raise ConfigError("no owner has rows to predict: give a file for at least one, as in NAME=FILE.")
    parts, said = [], list[str]()
    for name, file in files.items():
        saved = folder.read_json(model_file(name), "party", "id", "schema", *scheme.keys[0])
        table = read(saved, file, scheme, form, [*files])
        if (holes := ~np.isfinite(table.x)).any():
            column = table.names[int(holes.any(axis=0).argmax())]
            raise DataError(
                f"party '{name}': {int(holes.any(axis=1).sum())} rows lack a number, first in '{column}': fill the cells."
            )
        data = columns_of(0, table, 0, (name,), 0)._replace(classes=len(saved["class_names"]))
        outputs = scheme.outputs(scheme.load(data, {"table": saved, "model": None}))
        found = as_table({}, outputs, saved)
        parts.append(found if len(files) == 1 else found.assign(party=name)[["party", *found.columns]])
        said += table.doubts
    return Predicted(pandas.concat(parts, ignore_index=True), {}, 0, tuple(said))


def outputs_of(
    parties: Sequence[Columns], states: PartyState, scheme: Scheme, how: How, observers: Iterable[Observer] = ()
) -> tuple[Floats, int]:
    """Return the model's outputs for aligned rows of the active party, as `Scheme.outputs`, and the bytes sent.

    ``states``: of each party, its part of the model and the order of its rows.
    """
    how, active = scheme.clear(how), parties[0].active
    server: State = {"names": [one.name for one in parties], "active": active}
    federation = columns_federation(parties, scheme.questions(how), states, observers=observers, run="predict")
    federation.drive(lambda: scheme.predict(how, server), RoundStart(1, 1.0))
    state = federation.states.get(active)
    assert state is not None
    return scheme.outputs(state), federation.cost.bytes_up + federation.cost.bytes_down


def predicted(run: Path, files: Sequence[str], form: Mapping[str, str] = {}) -> tuple[pandas.DataFrame, list[str]]:
    """Return a run's predictions, and notices, for ``NAME=FILE`` of each party. ConfigError for other arguments."""
    if odd := [text for text in files if "=" not in text]:
        raise ConfigError(f"'{odd[0]}': parties that hold columns predict together: give NAME=FILE for each of them.")
    named = [text.partition("=") for text in files]
    names = [name for name, _, _ in named]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"party '{twice[0]}' was given two files: give one.")
    found = predict(run, {name: file for name, _, file in named}, form=form)
    return found.table, [*found.notices, f"{bytes_text(found.bytes)} were sent."]


def _own(value: str, party: str, names: Collection[str]) -> str:
    """Return what a key of ``form`` says to a party: ``,`` to all of them, ``NAME=,`` to one."""
    name, _, rest = value.partition("=")
    return value if name not in names else rest if name == party else ""


def read(
    saved: Mapping[str, Any], file: str, scheme: Scheme, form: Mapping[str, str] = {}, names: Collection[str] = ()
) -> PartyTable:
    """Return a party's new rows, read as in training but for ``form``, with the columns that its part of the model uses."""
    schema = tuple(Column(one["name"], tuple(one["categories"])) for one in saved["schema"])
    how = saved.get("reading")
    wanted: dict[str, Any] = {key: own for key, value in form.items() if (own := _own(value, saved["party"], names))}
    reading = Reading.from_json(how)._replace(**wanted)
    trained = TrainedTable(saved["party"], saved["id"], schema, scheme.reads(saved), reading)
    trained = trained._replace(normalise=saved.get("normalise", ()))
    return new_rows(file, trained._replace(bits=how["bits"]) if how else trained)


def matched(
    active: Columns, other: Columns, how: align.Align, observers: Iterable[Observer]
) -> tuple[np.ndarray[Any, np.dtype[np.int64]], int]:
    """Return, for each row of the active party, the other's row or -1, and the bytes sent."""
    pair = (active.name, other.name)
    two = [one._replace(party=k, active=0, parties=pair) for k, one in enumerate((active, other))]
    federation = columns_federation(two, align.QUESTIONS, observers=observers, name="align", run="predict")
    found = np.full(len(active.ids), -1, dtype=np.int64)
    try:
        federation.drive(lambda: align.align(how, {"names": list(pair), "active": 0}), RoundStart(0, 1.0))
    except DataError:  # no common row: all take the direction for missing values
        if how.name == "none":
            raise
        return found, federation.cost.bytes_up + federation.cost.bytes_down
    mine, theirs = (federation.states.get(k) for k in range(2))
    assert mine is not None
    assert theirs is not None
    found[order(mine)] = order(theirs)
    return found, federation.cost.bytes_up + federation.cost.bytes_down


def as_table(
    ids: Mapping[str, Sequence[str]], outputs: np.ndarray[Any, Any], saved: Mapping[str, Any]
) -> pandas.DataFrame:
    """Return a table of the columns of ids with ``prediction`` and, for classes, a column ``p_NAME`` for each."""
    import pandas

    if saved["task"] == "numbers":
        return pandas.DataFrame({**ids, "prediction": outputs})
    p, names = probabilities(outputs), saved["class_names"]
    if len(names) > 2:
        said = [names[c] for c in p.argmax(axis=1)]
        each = {f"p_{name}": p[:, c] for c, name in enumerate(names)}
        return pandas.DataFrame({**ids, "prediction": said, **each})
    said = [names[int(one > 0)] for one in outputs]
    return pandas.DataFrame({**ids, "prediction": said, f"p_{names[0]}": 1 - p, f"p_{names[1]}": p})

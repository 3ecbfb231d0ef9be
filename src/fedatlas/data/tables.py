"""Loaders of the registered tables, from prepared ``tables/*.csv.gz``, or else from the original file in its layout."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedatlas.data.catalogue import Original, TableSpec
from fedatlas.data.cells import LINE, Dates, Reading, Thousands, now, read_as, with_keys
from fedatlas.data.dataset import Names, Split
from fedatlas.data.decimals import with_points
from fedatlas.data.download import Originals, obtain
from fedatlas.data.formats import member
from fedatlas.data.frame import Encoded, Roles, TaskChoice, encode_table, number_columns
from fedatlas.data.loaded import Loaded, LoadRequest
from fedatlas.data.reading import doubts, in_words
from fedatlas.data.store import Found, provenance, write_table
from fedatlas.data.table_file import read_table
from fedatlas.data.text_table import form_of
from fedatlas.errors import ConfigError, DataError
from fedatlas.registry import PlainValues

if TYPE_CHECKING:
    import pandas as pd


def load_table(
    spec: TableSpec,
    request: LoadRequest,
    *,
    label: str = "",
    client: str = "",
    weight: str = "",
    task: TaskChoice = "auto",
    drop: Names = (),
    categories: Names = (),
    same_owner: bool | None = None,
    thousands: Thousands | None = None,
    units: Names | None = None,
    na: Names | None = None,
    dates: Dates | None = None,
) -> Loaded:
    """A registered table. Columns that label, client, weight and drop do not name are inputs.

    label: column of the target; "" = the table's own.
    client: column with the owner of each row; "" = the table's own, if any, which stays an input.
    weight: column of survey weights, 0 or more; "" = all rows count equally.
    task: kind of target; auto: texts are classes; numbers are a quantity if one has a fractional part or if they have more than
        20 values, else classes.
    drop: columns that are not inputs, in addition to those that the table itself leaves out.
    categories: columns whose numbers are codes, not quantities, in addition to those that the table itself names.
    same_owner: whether owners that differ only by case, the form of Unicode or a final .0 are one.
    thousands: mark between groups of three digits, left out of numbers.
    units: signs before or behind a number, such as $ or %, left out of it.
    na: further texts of a missing cell, such as -9 or unknown.
    dates: column -> form of its dates, such as %d.%m.%Y; they become days since 1970-01-01.
    """
    roles = Roles(
        label or spec.label,
        client or spec.client,
        weight,
        task,
        tuple(d for d in (*spec.drop, *drop) if d != label),
        (*spec.categories, *categories),
        client_is_input=not client,
        same_owner=bool(same_owner),
    )
    found = None if spec.bundled and request.store.find(spec.files) is None else _find(spec, request)
    facts = {"files": provenance(found)} if found else {"files": [], "from": "scikit-learn"}
    with read_as(with_keys(thousands, units, na=na, dates=dates)):
        frames = [bundled(spec)] if found is None else [read_table(path) for path in found.paths]
        if found is None:
            roles = roles._replace(drop=tuple(d for d in roles.drop if d in frames[0].columns))
        if request.test_file:
            frames = [frames[0], read_table(request.test_file)]
        made = from_frames(frames, roles, f"table '{spec.name}'", request.drop_unusable, bits=request.bits)
    return made.with_facts(**facts)


def _find(spec: TableSpec, request: LoadRequest) -> Found:
    remotes = (spec.original.remote,) if spec.original else ()
    prepare = partial(prepare_table, spec) if spec.original else None
    return obtain(request.store, spec.name, spec.files, remotes, prepare, spec.hint)


def from_frames(
    frames: list[pd.DataFrame], roles: Roles, source: str, drop_unusable: bool, classes: int = 2, bits: int = 32
) -> Loaded:
    """Load one table, or a training and a test table with the same columns, as a source.

    They are coded together, so that codes agree. The categories that a model reads come from the training rows.
    ``classes``: the least number of classes of a target. ``bits``: of the numbers.
    """
    import pandas as pd

    for role, column in (("client", roles.client), ("weight", roles.weight)):
        if column and column == roles.label:
            raise ConfigError(f"data.{role} = '{column}' is the label: name another column.")
    frames, forms = pointed(frames, roles, source)
    table = frames[0]
    if len(frames) == 2:
        lost = [name for name in frames[0].columns if name not in frames[1].columns and name not in roles.drop]
        if lost:
            raise DataError(f"{source}: the test file has no column {', '.join(map(repr, lost))}.")
        other = frames[1][[c for c in frames[0].columns if c in frames[1].columns]]
        other = (
            other.set_axis(-other.index) if other.index.name == LINE else other
        )  # so that `where` tells training and test rows apart
        table = pd.concat([as_texts(frames[0], other), as_texts(other, frames[0])])
    encoded = encode_table(table, roles, source, drop_unusable, classes, bits)
    side = encoded.kept < len(frames[0])
    n, rows = len(frames[0]), encoded.rows._replace(row=torch.from_numpy(encoded.kept))
    train = rows.take(np.flatnonzero(side))
    test = rows.take(np.flatnonzero(~side)) if len(frames) == 2 else None
    return Loaded(
        train,
        test and test.behind(-n),
        encoded.task,
        encoded.class_names,
        schema=encoded.schema,
        client_names=encoded.client_names,
        facts={
            "label": roles.label,
            "read": "; ".join(filter(None, (in_words(roles, encoded), *forms))),
            **given_keys(any(form_of(frame).decimal for frame in frames)),
            "doubts": [*doubts(table, roles, encoded, bits), *(unseen(train, test, encoded) if test else ())],
            **({"rows_unusable": len(table) - len(encoded.kept)} if len(encoded.kept) < len(table) else {}),
        },
        train_rows=n,
    )


def unseen(train: Split, test: Split, encoded: Encoded) -> list[str]:
    """Return a sentence for each category column with test rows whose category no training row has."""
    if now().rules < 3:
        return []
    out = []
    for j, column in enumerate(encoded.schema):
        known, asked = torch.unique(train.x[:, j]), test.x[:, j]
        n = int((~torch.isnan(asked) & ~torch.isin(asked, known)).sum()) if column.categories else 0
        if n:
            out.append(
                f"{n} of {len(asked)} test rows hold a category of column '{column.name}' that no training row has; the model treats them "
                "as having no category."
            )
    return out


def pointed(frames: list[pd.DataFrame], roles: Roles, source: str) -> tuple[list[pd.DataFrame], Names]:
    """Return tables that belong together with a decimal point in all numbers, and a description of each file's format.

    A comma that is detected in one of them counts for all.
    """
    columns = [number_columns(frame.columns, roles) for frame in frames]
    named = [source, f"{source} (test file)"]
    found = [with_points(*each) for each in zip(frames, columns, named, strict=False)]
    if len(frames) > 1 and not now().commas and any(form_of(frame).decimal for frame in found):
        with read_as(now()._replace(commas=True)):
            return pointed(frames, roles, source)
    said = [form_of(frame).in_words() for frame in found]
    others = (f"the test file {one or 'read as a usual one'}" for one in said[1:] if one != said[0])
    return found, (said[0], *others)


def as_texts(table: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    """Return the table with columns as objects if their type differs in ``other``.

    So no whole number becomes a float.
    """
    if now().rules < 2:
        return table
    odd = [name for name in table.columns if name in other.columns and table[name].dtype != other[name].dtype]
    return table.astype(dict.fromkeys(odd, object)) if odd else table


def given_keys(commas: bool = False) -> PlainValues:
    """Return the keys of reading as facts, if any is given, and whether ``commas`` were detected."""
    read = now()._replace(commas=commas and not now().decimal)
    return {"reading": read.to_json()} if read != Reading(read.rules) else {}


def bundled(spec: TableSpec) -> pd.DataFrame:
    """Return scikit-learn's copy of a table, under the prepared column names."""
    import pandas as pd
    from sklearn import datasets

    cancer = spec.bundled == "breast_cancer"
    values = getattr(datasets, f"load_{spec.bundled}")(**({"scaled": False} if spec.bundled == "diabetes" else {}))
    names = [_wdbc_name(name) if cancer else name.replace("/", "_") for name in values.feature_names]
    target = np.array(["M", "B"])[values.target] if cancer else values.target
    return pd.DataFrame(values.data, columns=names).assign(**{spec.label: target})


def _wdbc_name(name: str) -> str:
    """Return the prepared name: 'mean radius' -> 'radius_mean', 'radius error' -> 'radius_se', 'worst radius' -> 'radius_worst'."""
    words = name.split()
    first, kind = (words[1:], words[0]) if words[0] in {"mean", "worst"} else (words[:-1], "se")
    return "_".join([*first, kind])


def prepare_table(spec: TableSpec, originals: Originals, home: Path) -> None:
    """Turn the original's text into the prepared csv: named columns, empty cell = missing, the source's order of rows."""
    original = spec.original
    assert original is not None
    archive = originals[original.remote.file]
    parsed = [
        parse_original(original, member(archive, name).decode("utf-8-sig"), i)
        for i, name in enumerate(original.members)
    ]
    groups = [[one] for one in parsed] if spec.split else [parsed]
    for file, group in zip(spec.files, groups, strict=True):
        header = group[0][0]
        write_table(home / file, header, (row for _, rows in group for row in rows))


def parse_original(original: Original, text: str, part: int) -> tuple[list[str], list[list[str]]]:
    """Parse header and rows of one original file: separated by ; , or blanks, cells stripped, adult.test's final dots removed."""
    cells = list(_cells(text))
    if original.header:
        found, cells = cells[0], cells[1:]
    names = list(original.names or found)
    if odd := [row for row in cells if len(row) != len(names)]:
        raise DataError(f"'{original.members[part]}' has a row with {len(odd[0])} cells instead of {len(names)}.")
    name, values = original.extra
    from_member = [values[part]] if name else []
    kept = [column for column in (original.order or names) if column]
    at = [names.index(column) for column in kept]
    rows = [["" if row[i] == original.unknown else row[i] for i in at] + from_member for row in cells]
    return [*kept, *([name] if name else [])], rows


def _cells(text: str) -> Iterator[list[str]]:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("|")]
    separator = next((s for s in (";", ",") if s in lines[0]), " ")
    if separator == " ":
        lines = [line.replace("\t", " ") for line in lines]
    for row in csv.reader(lines, delimiter=separator, skipinitialspace=True):
        stripped = [cell.strip() for cell in row]
        if separator == " ":
            stripped = [cell for cell in stripped if cell]
        stripped[-1] = stripped[-1].removesuffix(".") if not stripped[-1][:1].isdigit() else stripped[-1]
        yield stripped

"""Tables: from text cells to raw columns (numbers, or codes of categories), a target, owners and weights.

Missing values are an empty cell, "NA", "NaN" or "null" (any case), and also "?" in a column whose other cells are all
numbers. In a column of texts "?" is a category (adult: "unknown"). `cells` defines a number. pandas is imported only
when a table is read, so other runs start half a second sooner.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch

from fedatlas.data.cells import (
    LINE,
    class_text,
    coded,
    codes,
    in_order,
    marks_of,
    missing,
    no_numbers,
    now,
    numbers,
    one_owner,
    set_to,
    texts,
    values_of,
)
from fedatlas.data.dataset import Column, Names, Split, TaskKind
from fedatlas.data.dates import forms_of, proposed
from fedatlas.data.decimals import with_points
from fedatlas.data.problems import Problem, Problems
from fedatlas.data.table_file import as_given
from fedatlas.errors import ConfigError, DataError

if TYPE_CHECKING:
    import pandas as pd

MOST_CATEGORIES = 256  # a text column with more is probably a name or a date
DECIMAL_COMMA = re.compile(r"[-+]?(\d{1,3}(\.\d{3})+|\d*),\d+([eE][-+]?\d+)?")  # 1,5; also 1.234,5
THOUSANDS = re.compile(r"[-+]?\d{1,3}(,\d{3})+")  # 1,240: thousands, or a decimal comma
MOSTLY = 0.8  # share of numbers in a column's texts from which the rest look like codes for missing cells
OWNER = "client column"
MOST_CLASSES = 20  # a target of whole numbers with more values is a number

FLOATS = {32: np.float32, 64: np.float64}  # by bits

TaskChoice = Literal["auto", "classes", "numbers"]


class Roles(NamedTuple):
    """The roles of a table's columns. Every column not named here is an input."""

    label: str
    client: str = ""
    weight: str = ""
    task: TaskChoice = "auto"
    drop: Names = ()
    categories: Names = ()  # columns of numbers that are codes, not quantities
    client_is_input: bool = False  # a registered table's natural owner is an input as well
    same_owner: bool = False  # whether owners that differ only in spelling are one


class Encoded(NamedTuple):
    """A table as rows, before preprocessing: x (n, columns) with NaN = missing and category codes."""

    rows: Split
    kept: np.ndarray  # indices of the table's rows that have a target and, if requested, an owner and a weight
    task: TaskKind
    class_names: Names
    schema: tuple[Column, ...]
    client_names: Names


def lacking(path: str, what: str = "file or folder") -> str:
    """Return the message that a file is absent, with the folder where a relative path starts."""
    start = "" if Path(path).expanduser().is_absolute() else f" in '{Path.cwd()}' (relative paths start there)"
    return f"there is no {what} '{path}'{start}."


def where(column: pd.Series, bad: np.ndarray) -> str:
    """Describe the rows where ``bad`` holds (at least one), by line if they were read from a text file."""
    at, count = int(bad.argmax()), int(bad.sum())
    if column.index.name == LINE:
        line = int(column.index[at])
        first = f"line {line}" if line > 0 else f"line {-line} of the test file"
    else:
        first = f"row {at + 1}"
    return first if count == 1 else f"{count} rows, first in {first}"


def first_odd(column: pd.Series, cells: np.ndarray, odd: np.ndarray) -> str:
    """Return the end of a sentence: the first odd cell and the rows with such cells."""
    return f": found '{cells[odd][0]}' in {where(column, odd)}." if odd.any() else "."


def narrow(values: np.ndarray, column: pd.Series, what: str, bits: int = 32) -> np.ndarray:
    """Return a column's numbers with this many bits, NaN kept.

    DataError that names the first infinite or overflowing one.
    """
    with np.errstate(over="ignore"):
        out: np.ndarray = values.astype(FLOATS[bits])
    if (bad := np.isinf(out)).any():
        raise DataError(
            f"{what} is infinite as a {bits}-bit number in {where(column, bad)}, with the value {values[bad][0]:g}: "
            "correct it, leave it empty, or use a larger unit."
        )
    return out


def number_columns(columns: Collection[str], roles: Roles) -> list[str]:
    """Return the columns whose cells may be numbers: the target, the weight, and inputs that are not categories."""
    texts_ = {*roles.drop, *roles.categories, *(() if roles.client_is_input else (roles.client,))}
    texts_ |= {roles.label} if roles.task == "classes" else set()
    return [name for name in columns if name not in texts_]


def encode_table(
    table: pd.DataFrame, roles: Roles, source: str, drop_unusable: bool = False, classes: int = 2, bits: int = 32
) -> Encoded:
    """Encode a table as raw columns, target, owners and weights, in numbers with ``bits`` bits.

    The target is numeric if its cells are numbers with a fractional part or with more than 20 different values, else a
    class. ``task`` overrides this. Rows without a target, owner or weight are an error, or left out if
    ``drop_unusable``.
    """
    if not roles.label:
        raise ConfigError(f"{source}: data.label must name the target: one of {', '.join(table.columns)}.")
    problems = Problems(source)
    problems.add(absent(table.columns, {**roles._asdict(), "dates": dict(now().dates)}, "data.", source))
    needed = {"target": roles.label, OWNER: roles.client, "weight column": roles.weight}
    advice = "data.missing = 'drop' or 'median' leaves out such rows"
    kept = np.flatnonzero(~unusable(table, needed, source, drop_unusable, advice, problems))
    labels = table if problems.found else table.iloc[kept]  # other missing cells of a row say nothing about its class
    table = table.iloc[kept]
    what = f"{source}: the target '{roles.label}'"
    if roles.label in table.columns:
        with problems.noted():
            known = labels[roles.label]
            known = known[~missing(texts(known))] if problems.found else known
            y, task, class_names = encode_target(known, roles.task, what, classes, bits=bits)
    outside = {roles.label, roles.weight, *roles.drop, *(() if roles.client_is_input else (roles.client,))}
    weighted = bool(roles.weight) and roles.weight in table.columns
    with problems.noted():
        weight = encode_weights(table[roles.weight], source, bits) if weighted else None
    schema, x = encode_inputs(table, outside, roles.categories, source, bits=bits, problems=problems)
    client, client_names = encode_clients(table[roles.client], roles.same_owner) if roles.client else (None, ())
    return Encoded(Split(torch.from_numpy(x), y, client, weight), kept, task, class_names, schema, client_names)


def unusable(
    table: pd.DataFrame, needed: Mapping[str, str], source: str, drop: bool, advice: str, problems: Problems
) -> np.ndarray:
    """Return a mask, bool (rows,), of rows that lack a value no rule can fill. They are a problem unless ``drop``.

    ``needed``: purpose of a column -> its name, "" for none; an absent column lacks nothing. DataError if no row is left.
    """
    out = np.zeros(len(table), bool)
    for what, name in needed.items():
        if not name or name not in table.columns:
            continue
        gone = holes(table[name], named=what == OWNER)
        if gone.any() and not drop:
            said = f"{source}: the {what} '{name}' is missing in {where(table[name], gone)}: {advice}."
            problems.add([DataError(said)])
        out |= gone
    if out.all():
        problems.add([DataError(f"{source}: no row has all of {', '.join(filter(None, needed.values()))}.")])
        problems.refuse()
    return out


def holes(column: pd.Series, *, named: bool = False) -> np.ndarray:
    """Return a mask, bool (rows,), of the missing cells. ``named``: numbers are names, as an owner's is."""
    values = None if named else numbers(column)
    return missing(texts(column)) if values is None else np.asarray(np.isnan(values))


def absent(columns: Collection[str], roles: Mapping[str, Any], prefix: str, source: str) -> list[Problem]:
    """Return an error for each role that names an absent column. ``prefix`` precedes the role's key in the message."""
    out = dict[str, Problem]()
    for key in ("id", "label", "client", "weight", "image", "drop", "categories", "dates"):
        named = roles.get(key) or ""
        for name in (named,) if isinstance(named, str) else named:
            if name and name not in columns:
                listed = f"its columns are {', '.join(columns)}" if not out else "see above"
                said = f"{prefix}{key} = '{name}': {source} has no such column; {listed}."
                out.setdefault(name, ConfigError(said))
    return [*out.values()]


def check_roles(columns: Collection[str], roles: Mapping[str, Any], prefix: str, source: str) -> None:
    """Raise ConfigError if roles name absent columns."""
    problems = Problems(source)
    problems.add(absent(columns, roles, prefix, source))
    problems.refuse()


def encode_inputs(
    table: pd.DataFrame,
    outside: Collection[str],
    categories: Collection[str],
    source: str,
    keys: str = "data.",
    bits: int = 32,
    problems: Problems | None = None,
) -> tuple[tuple[Column, ...], np.ndarray]:
    """Return the raw columns except those ``outside``, and their values (rows, columns).

    ``keys``: prefix of a key in a message.

    All ``problems`` noted so far are raised here with those of the columns.
    """
    problems, encoded = problems or Problems(source), []
    inputs = [name for name in table.columns if name not in outside and (name or now().rules < 3)]
    if not inputs:
        problems.add([DataError(f"{source}: no column is left as an input; name fewer in {keys}drop.")])
    for name in inputs:
        with problems.noted():
            encoded.append(encode_column(table[name], name in categories, source, keys, bits))
    problems.refuse()
    return tuple(column for column, _ in encoded), np.stack([values for _, values in encoded], axis=1)


def encode_column(
    column: pd.Series, as_category: bool, source: str, keys: str = "data.", bits: int = 32
) -> tuple[Column, np.ndarray]:
    """Return a raw column and its values with ``bits`` bits: numbers, or codes into the sorted texts; NaN = missing."""
    name = str(column.name)
    values = None if as_category else numbers(column)
    if values is not None:
        return Column(name), narrow(values, column, f"{source}: column '{name}'", bits)
    cells = codes(column)
    gone = missing(cells)
    if not as_category:
        codes_ = f"; if the column holds codes, list it in {keys}categories"
        refuse_commas(column, f"{source}: column '{name}'", codes_, keys)
    categories, places = np.unique(cells[~gone], return_inverse=True)
    if len(categories) > MOST_CATEGORIES:
        marks = no_numbers(categories)
        advice = f"leave it out with {keys}drop"
        if 0 < len(marks) <= (1 - MOSTLY) * len(categories):
            place = where(column, cells == marks[0])
            advice = f"most are numbers, but '{marks[0]}' in {place} is not: leave such cells empty"
        elif forms := forms_of(categories.tolist()):
            advice = f"they look like dates: {proposed(name, forms, keys)} reads them as days, or {advice}"
        elif said := marked(categories, keys):
            advice = said
        raise DataError(
            f"{source}: column '{name}' has {len(categories)} different texts, too many for categories; {advice}."
        )
    out = np.full(len(cells), np.nan, FLOATS[bits])
    out[~gone] = places
    return Column(name, tuple(str(c) for c in categories)), out


def marked(cells: np.ndarray, keys: str) -> str:
    """Return which keys would turn most of these texts (all different) into numbers; "" for none."""
    odd = no_numbers(cells.tolist()) if now().rules > 1 else []
    found = [one for cell in odd if (one := marks_of(cell))]
    if not found or len(odd) - len(found) > (1 - MOSTLY) * len(cells):
        return ""
    units = sorted({unit for one in found for unit in one.units})
    apart = next((one.thousands for one in found if one.thousands), "")
    wanted = [f"{keys}units = [{', '.join(map(repr, units))}]"] if units else []
    wanted += [f'{keys}thousands = "{apart}"'] if apart else []
    return f"{' and '.join(wanted)} would read such cells as numbers"


def refuse_commas(column: pd.Series, what: str, otherwise: str = "", keys: str = "data.") -> None:
    """Raise DataError if most of a column's cells are numbers, some with a comma, which would be read as texts.

    A comma may be a decimal mark or separate thousands. Before three digits it is not known which.
    """
    cells = texts(column)
    commas = np.char.find(cells, ",") >= 0
    forms = (DECIMAL_COMMA, THOUSANDS) if now().rules > 1 else (DECIMAL_COMMA,)
    commas[commas] = [any(form.fullmatch(cell) for form in forms) for cell in cells[commas]]
    if not commas.any():
        return
    known = ~missing(cells) & (cells != "?")
    marks = known & ~commas & np.isin(cells, no_numbers(np.unique(cells)))
    if marks.sum() > (1 - MOSTLY) * known.sum():
        return
    if now().rules > 1 and all(THOUSANDS.fullmatch(cell) for cell in cells[commas]):
        one = min(cells[commas].tolist(), key=lambda cell: cell.count(","))  # 1,240 before 1,240,000
        first = f"such as '{one}' in {where(column, cells == one)}"
        whole, point = one.replace(",", ""), one.replace(",", ".")
        several = one.count(",") > 1
        readings = f"this means {whole}" if several else f"this may mean {whole} or {point}"
        decimal = "" if several or now().rules < 3 else f", {keys}decimal = ',' to read {point}"
        raise DataError(
            f"{what} holds numbers with commas before three digits, {first}: {readings}; set {keys}thousands = ',' to read {whole}"
            f"{decimal}, or write a decimal point{otherwise}."
        )
    first = f"such as '{cells[commas][0]}' in {where(column, commas)}"
    advice = "write them with a decimal point"
    if now().rules > 2 and not now().decimal and marks.any():
        advice = f"they can be read without '{cells[marks][0]}', which {keys}na would name as missing"
    raise DataError(f"{what} holds numbers with a decimal comma, {first}: {advice}{otherwise}.")


def encode_target(
    column: pd.Series, choice: TaskChoice, what: str, least: int = 2, keys: str = "data.", bits: int = 32
) -> tuple[torch.Tensor, TaskKind, Names]:
    """Return the target as numbers with ``bits`` bits, or as class ids. A class is a cell's text (`class_codes`)."""
    values = numbers(column)
    if choice != "classes" and values is None:
        refuse_commas(column, what, f"; {keys}task = 'classes' reads them as texts", keys)
    if choice == "numbers" and values is None:
        raise DataError(f"{what} holds texts, so it cannot be a number; {keys}task = 'classes' reads them as classes.")
    if values is not None and (choice == "numbers" or (choice == "auto" and is_quantity(values))):
        return torch.from_numpy(narrow(values, column, what, bits)), "numbers", ()
    codes, names = class_codes(texts(column) if values is None or now().rules > 1 else values, what, least)
    return codes, "classes", names


def class_codes(values: np.ndarray, what: str, least: int) -> tuple[torch.Tensor, Names]:
    """Return class ids and the classes' names, in order; DataError for fewer than ``least`` classes.

    Classes of texts are the texts, except for a whole number's ``.0``. Stored numbers are sorted by value.
    """
    if values.dtype.kind not in "fiub" and now().rules > 1:
        cells = [class_text(cell) for cell in values.astype(str).tolist()]
        names = in_order({*cells})
        codes = coded(cells, names)
    else:
        classes, codes = np.unique(values, return_inverse=True)
        number = values.dtype.kind in "fiub"
        names = tuple(str(int(c)) if number and c == int(c) else str(c) for c in classes)
    if len(names) < least:
        raise DataError(f"{what} has only one class ('{names[0]}'): there is nothing to learn.")
    return torch.from_numpy(codes.astype(np.int64)), names


def is_quantity(values: np.ndarray) -> bool:
    """Return whether a numeric target is a quantity rather than a class: a fractional part, or more than 20 values."""
    present = values[np.isfinite(values)]
    return bool((present != np.rint(present)).any()) or len(np.unique(present)) > MOST_CLASSES


def encode_clients(column: pd.Series, same: bool = False) -> tuple[torch.Tensor, Names]:
    """Return owner codes and names, sorted: by value if all are numbers, as in an array.

    ``same``: see `joined_owners`.
    """
    names, codes = joined_owners(*np.unique(texts(column), return_inverse=True), same=same)
    values = values_of(names)
    if values is not None and not missing(names).any():
        order = np.argsort(values, kind="stable")
        names, codes = names[order], np.argsort(order)[codes]
    return torch.from_numpy(codes.astype(np.int64)), tuple(str(name) for name in names)


def joined_owners(names: np.ndarray, codes: np.ndarray, same: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the different names of owners and each row's code.

    With ``same``, names that are alike become the first of them.
    """
    if not same:
        return names, codes
    first: dict[str, int] = {}
    places = np.array([first.setdefault(one_owner(name), i) for i, name in enumerate(names.tolist())], np.int64)
    kept, places = np.unique(places, return_inverse=True)
    return names[kept], places[codes]


def encode_weights(column: pd.Series, source: str, bits: int = 32) -> torch.Tensor:
    """Return survey weights: finite numbers of 0 or more, not all zero, with a finite sum."""
    values = numbers(column)
    if values is None or not np.isfinite(values).all() or (values < 0).any() or not values.any():
        cells = texts(column)
        odd = np.isin(cells, no_numbers(cells)) if values is None else ~(values >= 0) | np.isinf(values)
        found = first_odd(column, cells, odd)
        raise DataError(
            f"{source}: the weight column '{column.name}' must hold numbers of 0 or more, not all of them 0{found}"
        )
    with np.errstate(over="ignore"):
        whole = values.sum()
    if np.isinf(whole):
        raise DataError(
            f"{source}: the weights in '{column.name}' add up to more than a 64-bit number holds: use a larger unit."
        )
    return torch.from_numpy(narrow(values, column, f"{source}: the weight column '{column.name}'", bits))


def raw_rows(
    table: pd.DataFrame | Mapping[str, Sequence[Any]],
    schema: Sequence[Column],
    bits: int = 32,
    unused: Collection[str] = (),
    keys: str = "data.",
) -> torch.Tensor:
    """Return new rows in the raw form of ``schema``: (n, columns) with ``bits`` bits, NaN = missing, -1 = an unseen category.

    A column that is ``unused`` may be absent. All its cells are then missing.
    """
    import pandas as pd

    frame = table if isinstance(table, pd.DataFrame) else pd.DataFrame(dict(table))
    frame = frame.set_axis([str(name).strip() for name in frame.columns], axis=1)
    if twice := sorted({name for name in frame.columns if list(frame.columns).count(name) > 1}):
        raise DataError(f"the new rows have two columns called '{twice[0]}': rename one.")
    frame = as_given(frame, "the new rows")
    frame = with_points(frame, [column.name for column in schema if not column.categories], "the new rows", keys)
    out, problems = np.full((len(frame), len(schema)), np.nan, FLOATS[bits]), Problems("the new rows")
    for j, column in enumerate(schema):
        if column.name not in frame.columns and column.name in unused:
            continue
        if column.name not in frame.columns:
            problems.add([DataError(f"the rows lack column '{column.name}', which the model reads.")])
            continue
        if not column.categories:
            values = numbers(frame[column.name])
            if values is None:
                cells = texts(frame[column.name])
                odd = np.isin(cells, no_numbers(cells)) & ~missing(cells) & (cells != "?")
                said = f"column '{column.name}' must hold numbers{first_odd(frame[column.name], cells, odd)}"
                if now().rules > 2 and not now().decimal and any(map(DECIMAL_COMMA.fullmatch, cells[odd].tolist())):
                    said += f" {set_to(keys, 'decimal', ',')} reads decimal commas."
                problems.add([DataError(said)])
                continue
            with np.errstate(over="ignore"):  # too large a value becomes infinite, which a prediction treats as missing
                out[:, j] = values
            continue
        cells = codes(frame[column.name])
        code = {name: i for i, name in enumerate(column.categories)}
        out[:, j] = [
            np.nan if gone else code.get(str(cell), -1) for cell, gone in zip(cells, missing(cells), strict=True)
        ]
    problems.refuse()
    return torch.from_numpy(out)

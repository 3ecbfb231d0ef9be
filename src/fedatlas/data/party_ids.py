"""Ids of a party's rows: of one column or several, normalised as the experiment declares, one key or several in turn.

    id = "customer"                                           one column
    id = ["surname", "born"]                                  both together
    id = [["surname", "born"], [{ sound = "surname" }, "born"]]   linkage: two keys in turn

Values of several columns are joined with their lengths, so "ab" + "c" and "a" + "bc" are two ids. A row that lacks a value
of a key cannot be matched by that key. An exact id may occur once. A key of a linkage may occur in several rows; these are
left out where it is used.
"""

from __future__ import annotations

import string
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from fedatlas.data.cells import EXACT, LINE, exact, missing, now, texts
from fedatlas.data.dataset import Names
from fedatlas.errors import ConfigError, DataError, unknown_name

if TYPE_CHECKING:
    import pandas as pd

Rule = Literal["lower", "strip accents", "digits", "sound"]
Part = str | Mapping[Any, str]
"""A column of an id, or {rule: column}."""
IdSpec = str | Sequence[Part | Sequence[Part]]
"""``id`` of ``[[parties]]``."""
Normalise = Sequence[str] | Mapping[str, Sequence[Any]]
"""``normalise`` of ``[[parties]]``: rules of all columns of the id, or column -> rules."""
Rules = tuple[str, ...]

MOST_KEYS = 8
APART = "\x1f"  # between the joined values of several columns and their lengths
LETTERS = str.maketrans(
    {"\u00df": "ss", "\u00f8": "o", "\u00d8": "O", "\u00e6": "ae", "\u00c6": "AE", "\u0153": "oe", "\u0152": "OE"}
    | {"\u0142": "l", "\u0141": "L", "\u0111": "d", "\u0110": "D"}
)
"""Letters that Unicode does not take apart into a letter and a mark."""
SOUNDS = {
    letter: str(digit) for digit, group in enumerate(("BFPV", "CGJKQSXZ", "DT", "L", "MN", "R"), 1) for letter in group
}


def without_accents(text: str) -> str:
    """Return a text without marks on letters."""
    apart = unicodedata.normalize("NFKD", text.translate(LETTERS))
    return "".join(c for c in apart if not unicodedata.combining(c))


def soundex(text: str) -> str:
    """Return a word's American Soundex code, a letter and three digits, or "" for a text without letters from A to Z.

    Source: US National Archives, "The Soundex Indexing System".
    """
    letters = [c for c in without_accents(text).upper() if c in string.ascii_uppercase]
    if not letters:
        return ""
    out, last = letters[0], SOUNDS.get(letters[0], "")
    for letter in letters[1:]:
        code = SOUNDS.get(letter, "")
        out += code if code != last else ""
        last = last if letter in "HW" else code
    return f"{out}000"[:4]


RULES: Mapping[str, Callable[[str], str]] = {
    "lower": str.lower,
    "strip accents": without_accents,
    "digits": lambda text: "".join(c for c in text if c in string.digits),
    "sound": soundex,
}
"""Normalisation -> its function. A value without anything left is missing."""
assert {*RULES} == {*get_args(Rule)}


class IdColumn(NamedTuple):
    """A column of a key, and the rules by which its values are normalised, in order."""

    name: str
    rules: Rules = ()

    def __str__(self) -> str:
        return f"{self.name} ({', '.join(self.rules)})" if self.rules else self.name


class IdPlan(NamedTuple):
    """How a party's rows get their ids."""

    keys: tuple[tuple[IdColumn, ...], ...]
    linked: bool = False  # several keys in turn, each of which may occur in several rows

    @property
    def columns(self) -> Names:
        """The columns that hold parts of ids, each once."""
        return tuple(dict.fromkeys(column.name for key in self.keys for column in key))

    @property
    def rules(self) -> tuple[tuple[Rules, ...], ...]:
        """Key -> column -> rules, without the columns' names. All parties must have the same."""
        return tuple(tuple(column.rules for column in key) for key in self.keys)

    def __str__(self) -> str:
        return ", then ".join(" + ".join(map(str, key)) for key in self.keys)


def id_plan(spec: IdSpec, normalise: Normalise = ()) -> IdPlan:
    """Return how ids are made. ConfigError, without the party's name, for a declaration that has no meaning."""
    parts: Sequence[Any] = [spec] if isinstance(spec, str) else spec
    linked = any(_is_list(one) for one in parts)
    if linked and not all(_is_list(one) for one in parts):
        raise ConfigError("id: give columns, or a list of columns for each key, not both.")
    given: Sequence[Sequence[Part]] = parts if linked else [parts]
    if not given or not all(given):
        raise ConfigError("id: name at least one column.")
    if len(given) > MOST_KEYS:
        raise ConfigError(f"id: at most {MOST_KEYS} keys can be tried in turn, not {len(given)}.")
    names = {_column(part)[0] for key in given for part in key}
    if isinstance(normalise, Mapping) and (odd := [name for name in normalise if name not in names]):
        raise ConfigError(f"normalise: '{odd[0]}' is not a column of the id.")
    keys = tuple(tuple(_with_rules(part, normalise) for part in key) for key in given)
    for key in keys:
        if twice := [one.name for one in key if [each.name for each in key].count(one.name) > 1]:
            raise ConfigError(f"id: '{twice[0]}' occurs twice in one key.")
    if len({*keys}) < len(keys):
        raise ConfigError("id: two keys are the same; each key must differ from those before it.")
    return IdPlan(keys, linked)


def _is_list(part: object) -> bool:
    return isinstance(part, Sequence) and not isinstance(part, str)


def _column(part: Part) -> tuple[str, Rules]:
    """Return a part's column and its own rule."""
    if isinstance(part, str):
        return part, ()
    if len(part) != 1:
        raise ConfigError('id: write a rule and its column, such as { sound = "surname" }.')
    rule, name = next(iter(part.items()))
    return name, (rule,)


def _with_rules(part: Part, normalise: Normalise) -> IdColumn:
    name, own = _column(part)
    rules = (*(normalise.get(name, ()) if isinstance(normalise, Mapping) else normalise), *own)
    for rule in rules:
        if rule not in RULES:
            raise unknown_name("normalisation of ids", rule, RULES)
    return IdColumn(name, rules)


def check_alike(plans: Mapping[str, IdPlan]) -> None:
    """Raise ConfigError if parties declare their ids differently: then equal ids would become different texts."""
    (first, one), *others = plans.items()
    for name, other in others:
        why = ""
        if one.linked != other.linked or len(one.keys) != len(other.keys):
            why = f"'{first}' has {_count(one)} and '{name}' {_count(other)}"
        for k, (mine, theirs) in enumerate(zip(one.keys, other.keys, strict=False), 1):
            at = f" in key {k}" if one.linked else ""
            if len(mine) != len(theirs):
                why = why or f"'{first}' has {len(mine)} columns{at} and '{name}' {len(theirs)}"
            for a, b in zip(mine, theirs, strict=False):
                if a.rules != b.rules:
                    why = why or f"'{first}' has {a}{at}, and '{name}' has {b}"
        if why:
            raise ConfigError(f"[[parties]]: ids must be normalised alike, but {why}: declare the same at all parties.")


def _count(plan: IdPlan) -> str:
    return f"{len(plan.keys)} keys in turn" if plan.linked else "one exact id"


# ------------------------------------------------------------------------------------------------ a party's table


class RowIds(NamedTuple):
    """The ids of a table's rows."""

    keys: tuple[Names, ...]  # of each key, a text for each row; "" = none
    shown: tuple[tuple[str, Names], ...]  # the columns of ids as in the file
    linked: bool


def ids_of(table: pd.DataFrame, plan: IdPlan, what: str) -> RowIds:
    """Return the ids of a table's rows.

    DataError for a column that cannot hold ids, and for an exact id that two rows have.
    """
    raw = {name: id_texts(table[name], what) for name in plan.columns}
    keys = tuple(_joined([_normalised(raw[one.name], one.rules) for one in key]) for key in plan.keys)
    if not plan.linked:
        columns = plan.keys[0]
        named = " + ".join(f"'{one.name}'" for one in columns)
        refuse_twice(_joined([raw[one.name] for one in columns]), table.index, what, f"occurs twice in {named}")
        refuse_twice(keys[0], table.index, what, f"results from two ids in {named}, which the normalisation makes one")
    return RowIds(keys, tuple(raw.items()), plan.linked)


def _normalised(values: Names, rules: Rules) -> Names:
    for rule in rules:
        values = tuple(map(RULES[rule], values))
    return tuple(one.strip() for one in values) if rules else values


def _joined(columns: Sequence[Names]) -> Names:
    """Return one text for each row: the values and then their lengths; a single column's as they are."""
    if len(columns) == 1:
        return columns[0]
    return tuple(
        "".join(values) + APART + ",".join(str(len(one)) for one in values) if all(values) else ""
        for values in zip(*columns, strict=True)
    )


def id_texts(column: pd.Series, what: str) -> Names:
    """Return ids as compared texts: the file's text, stripped, integers in decimal, days as 1980-01-02; "" for a missing one."""
    import pandas as pd

    if pd.api.types.is_float_dtype(column.dtype):  # a Parquet column of whole numbers with holes
        values = column.to_numpy(dtype=np.float64, na_value=np.nan)
        there = ~np.isnan(values)
        if (values[there] != np.rint(values[there])).any():
            raise DataError(
                f"{what}: the ids in '{column.name}' are numbers with a fractional part: use another column."
            )
        _refuse_large(values[there], column, what, exact(column) if now().rules > 2 else EXACT)
        return tuple(str(int(v)) if ok else "" for v, ok in zip(values, there, strict=True))
    if column.dtype == object:  # of a workbook, where numbers are floats
        _refuse_large(np.array([cell for cell in column if isinstance(cell, float)]), column, what)
    if pd.api.types.is_datetime64_any_dtype(column.dtype) and _without_time(column.dropna()):
        column = column.dt.strftime("%Y-%m-%d")
    cells = texts(column)
    gone = missing(cells)
    return tuple("" if none else str(cell) for cell, none in zip(cells, gone, strict=True))


def _without_time(times: pd.Series) -> bool:
    """Return whether all are midnights: a table that stores days as points in time (of a workbook, see `workbook`)."""
    return bool((times == times.dt.normalize()).all())


def _refuse_large(ids: NDArray[np.float64], column: pd.Series, what: str, limit: int = EXACT) -> None:
    """Raise DataError for floats so large that several whole numbers become one."""
    if now().rules > 1 and (np.abs(ids) >= limit).any():
        raise DataError(
            f"{what}: the ids in '{column.name}' are stored as floating-point numbers of 2^{limit.bit_length() - 1} or more, which "
            "cannot tell them apart: write them as texts or whole numbers."
        )


def refuse_twice(ids: Sequence[str], index: pd.Index, what: str, why: str) -> None:
    """Raise DataError if an id occurs in two rows. It names their lines, so that no message holds an id."""
    seen: dict[str, int] = {}
    twice = []
    for i, one in enumerate(ids):
        if one and one in seen:
            twice.append((seen[one], i))
        seen.setdefault(one, i)
    if not twice:
        return
    lines = index if index.name == LINE else range(1, len(ids) + 1)
    kind = "lines" if index.name == LINE else "rows"
    a, b = twice[0]
    more = f", and {len(twice) - 1:,} more" if len(twice) > 1 else ""
    raise DataError(f"{what}: the same id {why}, in {kind} {lines[a]} and {lines[b]}{more}: keep one row per id.")

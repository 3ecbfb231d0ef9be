"""The text of a cell, and the one grammar of a number: of inputs, targets, owners, ids and weights, in every file.

A cell is its text without blanks at its ends. docs/data.md defines a number: an optional sign (also U+2212), ASCII
digits with at most one decimal point, an optional exponent. It never holds an underscore or a comma. Two keys allow
more: ``thousands``, a mark between groups of three digits, and ``units``, signs next to the number.

`Reading` holds the number of the rules and these keys. The rules in force belong to the context (`read_as`). A run
keeps them in its record, so later readers of the run use the same rules.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from fedatlas.data.dataset import Names
from fedatlas.errors import DataError
from fedatlas.files import OF_THE_FILE

if TYPE_CHECKING:
    import pandas as pd

NEWEST = 3
"""Number of the rules of new runs.

1: numbers are read by Python's ``float``, classes are ordered by value, pictures stay as stored. 2: the form of a text
file is not detected: UTF-8, the most frequent separator of the first line, a decimal point.
"""
LINE = "line of the file"  # index name of a table whose cells have lines; those of a test file are negative
EXACT = 1 << 53  # from here on, floats skip some whole numbers
MISSING = ("", "na", "nan", "null")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?inf(inity)?", re.IGNORECASE | re.ASCII)
WHOLE = re.compile(r"[+-]?\d+", re.ASCII)
MINUS = "\N{MINUS SIGN}"
APART = {",": ",", "'": "'\N{RIGHT SINGLE QUOTATION MARK}", " ": " \N{NO-BREAK SPACE}\N{NARROW NO-BREAK SPACE}"}
"""`Reading.thousands` -> the characters that it accepts."""
UNITS = "$%\N{EURO SIGN}\N{POUND SIGN}\N{YEN SIGN}\N{PER MILLE SIGN}"
"""Signs that a notice proposes for `Reading.units`."""

Thousands = Literal[",", " ", "'"]
Background = Literal["white", "black"]
Decimal = Literal[".", ","]
Dates = Mapping[str, str]
"""Column -> the form of its dates, in the notation of ``strptime``."""


class Reading(NamedTuple):
    """The rules and keys for reading cells and pictures."""

    rules: int = NEWEST
    thousands: str = ""  # mark between groups of three digits; "" = none
    units: Names = ()  # signs before or behind a number, left out of it
    background: str = "white"  # of transparent pictures
    na: Names = ()  # further texts of a missing cell
    dates: tuple[tuple[str, str], ...] = ()  # (column, form of its dates)
    decimal: str = ""  # mark; for this and the next three, "" = detected
    separator: str = ""  # between columns
    encoding: str = ""
    sheet: str = ""  # of a workbook
    commas: bool = False  # whether a decimal comma was detected in rows that belong to those read now

    def to_json(self) -> dict[str, Any]:
        """Return plain values. Keys that came with the third rules are included only if they are given."""
        later = {"na": list(self.na), "dates": dict(self.dates)}
        later |= {key: getattr(self, key) for key in (*OF_THE_FILE, "commas")}
        first = {key: getattr(self, key) for key in ("rules", "thousands", "units", "background")}
        return {**first, "units": list(self.units), **{key: value for key, value in later.items() if value}}

    def shared(self) -> Reading:
        """Return the part that all parties know, without the form of a single file."""
        return self._replace(decimal="", separator="", encoding="", sheet="", commas=False)

    @classmethod
    def from_json(cls, values: Mapping[str, Any] | None) -> Reading:
        """Invert `to_json`. A record without an entry is of the first rules."""
        if values is None:
            return OLDEST
        known = {key: values[key] for key in cls._fields if key in values}
        lists = {key: tuple(known.get(key, ())) for key in ("units", "na")}
        return cls(**{**known, **lists, "dates": tuple(dict(known.get("dates", {})).items())})


OPTION = "--"
"""Prefix of a key in a message, if the key is an option of a command."""
OLDEST = Reading(1)
_NOW: ContextVar[Reading | None] = ContextVar("reading", default=None)


def now() -> Reading:
    """Return the reading of this context."""
    return _NOW.get() or Reading()


def with_keys(
    thousands: str | None = None,
    units: Sequence[str] | None = None,
    background: str | None = None,
    na: Sequence[str] | None = None,
    dates: Dates | None = None,
    **of_the_file: str | None,
) -> Reading:
    """Return the rules of this context with these keys; None: the default. ``of_the_file``: some of `OF_THE_FILE`."""
    given: dict[str, Any] = {key: value for key, value in of_the_file.items() if value}
    read = Reading(now().rules, thousands or "", tuple(units or ()), background or "white", tuple(na or ()))
    return read._replace(dates=tuple((dates or {}).items()), **given)


@contextmanager
def read_as(reading: Reading) -> Iterator[None]:
    """Read cells and pictures by this reading inside the block."""
    token = _NOW.set(reading)
    try:
        yield
    finally:
        _NOW.reset(token)


def set_to(keys: str, key: str, value: str) -> str:
    """Return a key with its value as the reader would write it; ``keys``: prefix of a key."""
    between = " " if keys == OPTION else " = "
    return f'{keys}{key}{between}"{value}"'


def missing(cells: np.ndarray) -> np.ndarray:
    """Return a mask of the missing cells of a text column."""
    out: np.ndarray = np.isin(np.char.lower(cells), MISSING)
    return out


def texts(column: pd.Series) -> np.ndarray:
    """Return cells as stripped texts. Missing cells of any kind become "". DataError for a column of lists."""
    objects = column.astype(object)
    if column.dtype == object and (kinds := {*map(type, objects)} & {list, tuple, dict, set, np.ndarray}):
        several = "tables" if kinds == {dict} else "lists"
        raise DataError(f"column '{column.name}' holds {several}, not one value in each row: leave the column out.")
    filled = objects.where(column.notna(), "")
    try:
        return np.char.strip(filled.map(as_text).to_numpy(dtype=str))
    except UnicodeDecodeError:
        raise DataError(f"column '{column.name}' holds bytes that are no UTF-8 text: leave the column out.") from None


def as_text(cell: Any) -> str:
    """Return a value as text.

    Bytes, in which some Parquet files hold texts, are UTF-8. UnicodeDecodeError if they are not.
    """
    return cell.decode() if isinstance(cell, bytes) and now().rules > 2 else str(cell)


def codes(column: pd.Series) -> np.ndarray:
    """Return the texts of a column of codes.

    Whole numbers stay whole, even if missing cells made them floating-point numbers.
    """
    cells = texts(column)
    if now().rules < 3 or getattr(column.dtype, "kind", "") != "f":
        return cells
    values = column.to_numpy(dtype=np.float64, na_value=np.nan)
    there = ~np.isnan(values)
    if (values[there] != np.rint(values[there])).any() or (np.abs(values[there]) >= exact(column)).any():
        return cells
    return np.array([class_text(cell) for cell in cells.tolist()], dtype=str)


def exact(column: pd.Series) -> int:
    """Return the least number from which a column's floating-point type skips some whole numbers."""
    kept = getattr(column.dtype, "numpy_dtype", column.dtype)
    return 1 << (int(np.finfo(kept).nmant) + 1)


def numbers(column: pd.Series) -> np.ndarray | None:
    """Return a column as float64 with NaN for missing cells; None if a cell is not a number."""
    import pandas as pd

    if pd.api.types.is_bool_dtype(column.dtype):
        return None
    if pd.api.types.is_numeric_dtype(column.dtype):
        values: np.ndarray = column.to_numpy(dtype=np.float64, na_value=np.nan)
        return values
    cells = texts(column)
    gone = missing(cells) | (cells == "?")
    found = values_of(cells[~gone])
    if found is None:
        return None
    out = np.full(len(cells), np.nan)
    out[~gone] = found
    return out


def values_of(cells: np.ndarray) -> np.ndarray | None:
    """Return texts as float64; None if one is not a number."""
    if not len(cells):
        return np.zeros(0)
    read = now()
    if read.rules > 1:
        signs = np.ascontiguousarray(cells).view(np.uint32)  # code points
        if read.thousands or read.units or (signs > 127).any():
            cells = np.array([bare(cell) for cell in cells.tolist()])
            signs = cells.view(np.uint32)
        if (signs > 127).any() or (signs == ord("_")).any():
            return None
    try:
        found: np.ndarray = cells.astype(np.float64)
    except ValueError:
        return None
    return None if read.rules > 1 and np.isnan(found).any() else found  # "-nan" is not a number


def value_of(cell: str) -> float | None:
    """Return a text as a number; None if it is not one."""
    if now().rules > 1:
        cell = bare(cell)
        return float(cell) if NUMBER.fullmatch(cell) else None
    try:
        return float(cell)
    except ValueError:
        return None


def bare(cell: str) -> str:
    """Return a text without the marks that the keys allow, and with an ASCII minus. The result may be a number."""
    read, cell = now(), cell.replace(MINUS, "-")
    sign, rest = (cell[:1], cell[1:]) if cell[:1] in {"-", "+"} else ("", cell)
    rest = rest.strip() if read.rules < 3 else rest  # a blank behind the sign counts, except before a unit
    for unit in read.units:
        beside = rest.strip()
        if (left := beside.removeprefix(unit)) != beside or (left := beside.removesuffix(unit)) != beside:
            rest = left.strip()
            break
    if not sign and rest[:1] in {"-", "+"}:  # $-5
        sign, rest = rest[0], rest[1:]
    first = "(?!0)" if read.rules > 2 else ""  # 0,240 is not 240
    if (apart := APART.get(read.thousands)) and (
        found := re.fullmatch(rf"({first}\d{{1,3}}(?:([{apart}])\d{{3}})(?:\2\d{{3}})*)(\.\d+)?", rest, re.ASCII)
    ):
        rest = found[1].replace(found[2], "") + (found[3] or "")
    return sign + rest if NUMBER.fullmatch(sign + rest) else cell


def no_numbers(cells: Iterable[str]) -> list[str]:
    """Return the texts that are not numbers."""
    return [cell for cell in cells if value_of(cell) is None]


def marks_of(cell: str) -> Reading | None:
    """Return the keys that would turn a text into a number; None without any."""
    tried = [Reading(thousands=apart, units=units) for units in ((), tuple(UNITS)) for apart in ("", *APART)]
    for one in tried[1:]:
        with read_as(one):
            if value_of(cell) is not None:
                return one._replace(units=tuple(unit for unit in one.units if unit in cell))
    return None


# ------------------------------------------------------------------------------------------------ names


def class_text(cell: str) -> str:
    """Return the name of a class: the cell's text, without the ``.0`` of a whole number."""
    return cell[:-2] if cell.endswith(".0") and WHOLE.fullmatch(cell[:-2]) else cell


def in_order(names: Iterable[str]) -> Names:
    """Return names in the order of all classes: numbers by value, then texts.

    Equal numbers are ordered by text. Keys are ignored.
    """

    def place(name: str) -> tuple[bool, float | int, str]:
        value = int(name) if len(name) < 400 and WHOLE.fullmatch(name) else value_of(name)
        return (value is None, value or 0, name)

    with read_as(Reading(now().rules)):
        return tuple(sorted(names, key=place))


def coded(cells: Sequence[str], names: Sequence[str]) -> np.ndarray:
    """Return the place of each cell among the names, int64."""
    place = {name: i for i, name in enumerate(names)}
    return np.array([place[cell] for cell in cells], np.int64)


def one_owner(name: str) -> str:
    """Return the common form of all spellings of an owner's name: composed Unicode, folded case, no ``.0``."""
    composed = unicodedata.normalize("NFC", class_text(name))
    return unicodedata.normalize("NFC", composed.casefold())


def difference(a: str, b: str) -> str:
    """Return how two names differ that may mean the same."""
    if unicodedata.normalize("NFC", a) == unicodedata.normalize("NFC", b):
        return "by the form of their Unicode (NFC and NFD)"
    return "by upper and lower case" if a.casefold() == b.casefold() else "by how the same number is written"

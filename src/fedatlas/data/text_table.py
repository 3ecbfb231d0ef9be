"""Text files of tables: from bytes to cells. What a file does not say is found by looking, where one reading fits all of it."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fedatlas.data.cells import LINE, now
from fedatlas.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

SEPARATOR = re.compile(r"sep=(.)", re.IGNORECASE)  # a first line that a spreadsheet writes
FOUND = ",;\t"  # separators that are looked for; "|" only where a first line has none of them
NAMES = {"\t": "tabs", ",": "commas"}
BOMS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
MARKS = bytes(set(range(0x80, 0xA0)) - set(b"\x83\x8a\x8c\x8e\x91\x92\x96\x97\x9a\x9c\x9e\x9f"))
"""Bytes that cp1252 has signs for which stand in no word: neither letters nor apostrophes nor dashes."""
IN_A_WORD = re.compile(rb"[A-Za-z]+[" + re.escape(MARKS) + rb"][A-Za-z]+")
BEFORE = "\N{ZERO WIDTH NO-BREAK SPACE}"  # a byte order mark that a named encoding leaves


class FileForm(NamedTuple):
    """How one file is written, as it was found or said."""

    separator: str = ""
    encoding: str = ""
    decimal: str = ""
    sheet: str = ""

    def in_words(self) -> str:
        """Return what is not usual, as the end of a sentence; "" for a file with commas, UTF-8 and decimal points."""
        between = "" if self.separator in {"", ","} else f"{NAMES.get(self.separator, self.separator)} between columns"
        encoding = "" if self.encoding in {"", "utf-8", "utf-8-sig"} else f"the encoding {self.encoding}"
        decimal = "a decimal comma" if self.decimal == "," else ""
        said = [f"the sheet '{self.sheet}'" if self.sheet else "", between, decimal, encoding]
        *first, last = [one for one in said if one] or [""]
        return f"read with {', '.join(first)}{' and ' if first else ''}{last}" if last else ""


class _Rows(NamedTuple):
    """Cells by row, with the first line of each."""

    header: list[str]
    rows: list[list[str]]
    lines: list[int]


def form_of(table: pd.DataFrame) -> FileForm:
    """Return how the file of a table was written."""
    found: FileForm = table.attrs.get("form", FileForm())
    return found


def read_text(path: Path, keys: str) -> pd.DataFrame:
    """Read a text file; ValueError, ConfigError for one that cannot be read. ``keys``: what a message calls a key."""
    import pandas as pd

    raw = path.read_bytes()
    text, encoding = decoded(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw, keys)
    if not text.strip():
        raise ValueError("it is empty")
    found, separator = divided(text, keys)
    table = pd.DataFrame(found.rows, columns=found.header, index=pd.Index(found.lines, name=LINE))
    table.attrs["form"] = FileForm("" if separator == "\t" and ".tsv" in path.name else separator, encoding)
    return table


def decoded(raw: bytes, keys: str = "data.") -> tuple[str, str]:
    """Return the text, and the name of its encoding: the key's, or UTF-8, UTF-16 or cp1252, whichever fits."""
    wanted = now().encoding or ("utf-8-sig" if now().rules < 3 else _encoding(raw, keys))
    try:
        return raw.decode("utf-8-sig" if wanted.lower() == "utf-8" else wanted).removeprefix(BEFORE), wanted
    except UnicodeDecodeError as error:
        if not now().encoding:
            raise ValueError("it is not UTF-8 text: save it as UTF-8, or convert it with iconv") from error
        raise ValueError(f"it is not {wanted} text, as {keys}encoding says") from error
    except LookupError:
        raise ConfigError(f"{keys}encoding = '{wanted}': Python knows no encoding of texts with this name.") from None


def _encoding(raw: bytes, keys: str) -> str:
    if found := next((name for mark, name in BOMS.items() if raw.startswith(mark)), ""):
        return found
    if b"\0" in raw:  # every second byte of UTF-16 in most languages
        fits = [name for name in ("utf-16-le", "utf-16-be") if _fits(raw, name)]
        return fits[0] if len(fits) == 1 else "utf-8-sig"
    try:
        raw.decode("utf-8")
        return "utf-8"
    except UnicodeDecodeError as error:
        return _of_one_byte(raw, error.start, keys)


def _fits(raw: bytes, encoding: str) -> bool:
    try:
        text = raw.decode(encoding)
    except UnicodeDecodeError:
        return False
    return "\0" not in text and not {"\n", "\r"}.isdisjoint(text)


def _of_one_byte(raw: bytes, first: int, keys: str) -> str:
    """Return cp1252, of which latin-1 is a part in texts; ValueError where it does not fit, or its words look wrong."""
    line = raw.count(b"\n", 0, first) + 1
    try:
        raw.decode("cp1252")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"it is neither UTF-8 nor cp1252 text (byte {raw[error.start]:#x} in line {line}): save it as UTF-8, or name its "
            f'encoding, such as {keys}encoding = "cp850"'
        ) from None
    if odd := IN_A_WORD.search(raw):
        line, readings = raw.count(b"\n", 0, odd.start()) + 1, [odd[0].decode(name) for name in ("cp1252", "cp850")]
        raise ValueError(
            f"a word in line {line} may be '{readings[0]}' or '{readings[1]}': it is not UTF-8 text; set {keys}encoding = "
            f'"cp1252" or "cp850", or save it as UTF-8'
        )
    return "cp1252"


def divided(text: str, keys: str = "data.") -> tuple[_Rows, str]:
    """Return the cells and the separator: the key's, that of a first line ``sep=;``, or the only one that fits all rows."""
    first = text.partition("\n")[0]
    named = SEPARATOR.fullmatch(first.rstrip("\r")) if now().rules > 1 else None
    if len(now().separator) > 1:
        raise ConfigError(f"{keys}separator = '{now().separator}': name one character.")
    if given := now().separator or (named and named[1]):
        return _cells(text, given, bool(named)), given
    usual = max(FOUND, key=first.count)
    there = [mark for mark in FOUND if mark in first]
    if now().rules < 3 or (len(there) == 1 and there[0] == usual):
        return _cells(text, usual), usual
    if not there:
        usual = "|" if "|" in first else usual
        return _cells(text, usual), usual
    fits: dict[str, _Rows] = {}
    for mark in there:
        try:
            found = _cells(text, mark)
        except ValueError:
            continue
        if len(found.header) > 1:
            fits[mark] = found
    if len(fits) > 1:
        said = " or with ".join(f"{mark!r} ({_columns(found.header)})" for mark, found in fits.items())
        raise ValueError(f"all its lines can be read with {said} between columns: say which with {keys}separator")
    return next(((found, mark) for mark, found in fits.items()), None) or (_cells(text, usual), usual)


def _columns(header: list[str]) -> str:
    return (
        f"{len(header)} columns: {', '.join(repr(name.strip()) for name in header[:3])}{' ...' if header[3:] else ''}"
    )


def _cells(text: str, separator: str, skip: bool = False) -> _Rows:
    """Return the cells; ValueError that counts the rows whose number of cells is not that of the header."""
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    if skip:
        next(lines)
    header = next(lines, [])
    found, at, wrong = _Rows(header, [], []), lines.line_num, list[str]()
    for row in lines:
        if len(row) == len(header):
            found.rows.append(row)
            found.lines.append(at + 1)
        elif row:  # an empty line is no row
            until = f" to {lines.line_num} (one quoted cell)" if lines.line_num > at + 1 else ""
            wrong.append(f"line {at + 1}{until} has {len(row)} cells, but the header has {len(header)}")
        at = lines.line_num
    if wrong:
        more = f"; {len(wrong) - 1} more lines are as wrong" if len(wrong) > 2 else "; one more line is as wrong"
        raise ValueError(wrong[0] + (more if len(wrong) > 1 else ""))
    return found

"""Text files of tables: from bytes to cells. The format is detected if exactly one reading fits the whole file."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedatlas.data.cells import LINE, now, set_to
from fedatlas.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

SEPARATOR = re.compile(r"sep=(.)", re.IGNORECASE)  # a first line that spreadsheets write
FOUND = ",;\t"  # separators that are tried; "|" only if a first line has none of them
NAMES = {"\t": "tabs", ",": "commas"}
BOMS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
WORD = re.compile(rb"[A-Za-z\x80-\xff]*[\x80-\xbf][A-Za-z\x80-\xff]*")
OTHERS = ("cp850", "mac_roman")  # encodings that have letters where cp1252 has signs
BETWEEN = b"\x91\x92\x96\x97"  # apostrophes and dashes between letters
BEGINS = b"\x80\x82\x84\x85\x86\x87\x8b\x93\x94\x95\xa0\xa1\xab\xb5\xbb\xbf"  # cp1252 before a word: quotes, bullets
ENDS = b"\x85\x86\x87\x8b\x93\x94\x99\x9b\xa0\xab\xbb"  # and behind one
SHORT = 3  # words with fewer letters: a sign next to them is not a letter: \N{POUND SIGN}m, \N{DEGREE SIGN}C
BEFORE = "\N{ZERO WIDTH NO-BREAK SPACE}"  # a byte order mark that a named encoding leaves


class FileForm(NamedTuple):
    """The format of one file, detected or given."""

    separator: str = ""
    encoding: str = ""
    decimal: str = ""
    sheet: str = ""

    def in_words(self) -> str:
        """Return the unusual parts, as the end of a sentence; "" for a file with commas, UTF-8 and decimal points."""
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
    """Return the format of a table's file."""
    found: FileForm = table.attrs.get("form", FileForm())
    return found


def read_text(path: Path, keys: str) -> pd.DataFrame:
    """Read a text file. ValueError or ConfigError if it cannot be read. ``keys``: prefix of a key in a message."""
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
    """Return the text, and the name of its encoding: the key's, or the one that fits of UTF-8, UTF-16 and cp1252."""
    wanted = now().encoding or ("utf-8-sig" if now().rules < 3 else _encoding(raw, keys))
    try:
        return raw.decode("utf-8-sig" if wanted.lower() == "utf-8" else wanted).removeprefix(BEFORE), wanted
    except UnicodeDecodeError as error:
        if not now().encoding:
            raise ValueError("it is not UTF-8 text: save it as UTF-8, or convert it with iconv") from error
        raise ValueError(f"it is not {wanted} text, as {keys}encoding says") from error
    except LookupError:
        raise ConfigError(
            f"{set_to(keys, 'encoding', wanted)}: Python knows no encoding of texts with this name."
        ) from None


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


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _of_one_byte(raw: bytes, first: int, keys: str) -> str:
    """Return cp1252, which includes latin-1 for texts. ValueError if it does not fit, or its words look wrong."""
    line = raw.count(b"\n", 0, first) + 1
    beyond = [one for one in raw.split(b"\n") if not one.isascii()]
    if 2 * sum(map(_is_utf8, beyond)) >= len(beyond):
        raise ValueError(
            f"its encodings are mixed: line {line} is not UTF-8, but other lines are; save all of it as UTF-8"
        )
    try:
        raw.decode("cp1252")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"it is neither UTF-8 nor cp1252 text (byte {raw[error.start]:#x} in line {line}): save it as UTF-8, or name its "
            f"encoding, such as {set_to(keys, 'encoding', 'cp850')}"
        ) from None
    seen = set[bytes]()
    for word in WORD.finditer(raw):
        if word[0] in seen:
            continue
        seen.add(word[0])
        if others := _others(word[0]):
            line, names = raw.count(b"\n", 0, word.start()) + 1, ["cp1252", *others]
            readings = " or ".join(f"'{word[0].decode(name)}'" for name in names)
            wanted = set_to(keys, "encoding", '" or "'.join(names))
            raise ValueError(
                f"a word in line {line} may be {readings}: it is not UTF-8 text; set {wanted}, or save it as UTF-8"
            )
    return "cp1252"


def _others(word: bytes) -> list[str]:
    """Return the encodings that have letters for the sign bytes of a word, where cp1252 has signs."""
    signs = word.decode("cp1252")
    return [
        name
        for name in OTHERS
        if any(0x80 <= byte < 0xC0 and _is_letter(signs, i, byte, name) for i, byte in enumerate(word))
    ]


def _is_letter(signs: str, i: int, byte: int, name: str) -> bool:
    """Return whether a byte of a word looks like a letter of another encoding, by its neighbours and their case."""
    before, sign, after = signs[:i][-1:], signs[i], signs[i + 1 :][:1]
    inside = before.isalpha() and after.isalpha()
    other, letters = bytes([byte]).decode(name), "".join(one for one in signs[:i] + signs[i + 1 :] if one.isalpha())
    if (
        not other.isalpha()
        or other in "\N{MASCULINE ORDINAL INDICATOR}\N{FEMININE ORDINAL INDICATOR}"
        or byte in BETWEEN
    ):
        return False
    if (
        sign.isalpha() and byte != 0xB5
    ):  # S with caron, OE, Y with diaeresis inside a word of small letters; the florin sign
        small = other.islower() and before.isalpha() and (before.islower() or after.islower())
        return small if sign.isupper() else inside and byte == 0x83
    if not inside and (len(letters) < SHORT or byte in (ENDS if before.isalpha() else BEGINS)):
        return False
    if other.islower():
        return not after.isupper() and (len(letters) == 1 or not letters.isupper())
    return name == OTHERS[0] and not before.islower()


def divided(text: str, keys: str = "data.") -> tuple[_Rows, str]:
    """Return the cells and the separator: the key's, that of a first line ``sep=;``, or the only one that fits all rows."""
    first = text.partition("\n")[0]
    named = SEPARATOR.fullmatch(first.rstrip("\r")) if now().rules > 1 else None
    if len(now().separator) > 1:
        raise ConfigError(f"{set_to(keys, 'separator', now().separator)}: name one character.")
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
        except (ValueError, csv.Error):
            continue
        if len(found.header) > 1:
            fits[mark] = found
    if len(fits) > 1:
        said = " or with ".join(f"{mark!r} ({_columns(found.header)})" for mark, found in fits.items())
        raise ValueError(f"all its lines can be read with {said} between columns: say which with {keys}separator")
    return next(((found, mark) for mark, found in fits.items()), None) or (_cells(text, usual), usual)


def _whole(lines: Any) -> Iterator[list[str]]:
    """Yield the rows. ValueError for a quotation mark that would hide the following rows in its cell."""
    while True:
        at = lines.line_num
        try:
            row = next(lines, None)
        except csv.Error as error:
            if not (now().rules > 2 and (" expected after " in str(error) or "unexpected end" in str(error))):
                raise
            raise ValueError(
                f"a quotation mark in line {at + 1} opens a cell that does not end where a cell can end: write a quotation mark inside a "
                'cell twice, as in "a ""b"" c"'
            ) from None
        if row is None:
            return
        yield row


def _columns(header: list[str]) -> str:
    return (
        f"{len(header)} columns: {', '.join(repr(name.strip()) for name in header[:3])}{' ...' if header[3:] else ''}"
    )


def _cells(text: str, separator: str, skip: bool = False) -> _Rows:
    """Return the cells. ValueError that counts the rows whose number of cells differs from the header's."""
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=now().rules > 2)
    if skip:
        next(lines)
    header = next(lines, [])
    found, at, wrong = _Rows(header, [], []), lines.line_num, list[str]()
    for row in _whole(lines):
        if len(row) == len(header):
            found.rows.append(row)
            found.lines.append(at + 1)
        elif row:  # an empty line is not a row
            until = f" to {lines.line_num} (one quoted cell)" if lines.line_num > at + 1 else ""
            wrong.append(f"line {at + 1}{until} has {len(row)} cells, but the header has {len(header)}")
        at = lines.line_num
    if wrong:
        more = f"; {len(wrong) - 1} more lines are as wrong" if len(wrong) > 2 else "; one more line is as wrong"
        raise ValueError(wrong[0] + (more if len(wrong) > 1 else ""))
    return found

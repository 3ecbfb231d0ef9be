"""The exceptions that fedatlas raises on purpose.

    FedatlasError
    ├── ConfigError       the experiment asks for something unknown, impossible or unsound
    │   └── ValueMistake  a value in the file is wrong, regardless of the rest of the file
    ├── DataError         the data cannot be used as they are
    ├── ProtocolError     a party, or a worker acting as one, broke the rules of a round
    ├── PrivacyError      a privacy mechanism would not keep its promise
    ├── TransportError    a message did not arrive, or arrived incomplete
    ├── CheckpointError   a checkpoint is missing, cut short or altered
    ├── DiskError         a file of the run could not be written
    └── DivergedError     training produced NaN or infinity

The command line prints the message of each as one sentence and ends with exit code 2.
"""

from __future__ import annotations

import re
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path


class FedatlasError(Exception):
    """Base of the tree; catch this to catch everything fedatlas raises on purpose."""


class ConfigError(FedatlasError):
    """The experiment asks for something unknown, impossible or unsound."""


class ValueMistake(ConfigError):
    """A value in the file is of a wrong type or outside its bounds, regardless of the rest of the file."""


class DataError(FedatlasError):
    """The data cannot be used as they are."""


class ProtocolError(FedatlasError):
    """A party, or a worker acting as one, broke the rules of a round."""


class PrivacyError(FedatlasError):
    """A privacy mechanism would not keep its promise."""


class TransportError(FedatlasError):
    """A message did not arrive, or arrived incomplete."""


class CheckpointError(FedatlasError):
    """A checkpoint is missing, cut short or altered."""


class DiskError(FedatlasError):
    """A file of the run could not be written."""


class DivergedError(FedatlasError):
    """Training produced NaN or infinity."""


def not_utf8(error: UnicodeEncodeError) -> ConfigError:
    """Return the error for a text with a file name that is not UTF-8, which no record can hold."""
    before, after = error.object[: error.start], error.object[error.start :]
    name = re.split(r"[\s'\"<>,;]", before)[-1] + re.split(r"[\s'\"<>,;]", after)[0]
    return ConfigError(f"{name!a} is not UTF-8: give that file or folder another name.")


def as_utf8(text: str, where: str = "") -> bytes:
    """Encode a text as UTF-8; if that is impossible, raise the ConfigError of `not_utf8`, preceded by ``where``."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{where}{not_utf8(error)}") from None


def first_line(error: BaseException) -> str:
    """Return the first line of another library's error, as part of a sentence."""
    if lacks_memory(error):
        wanted = re.search(r"tried to allocate ([\d.]+) (bytes|[KMG]iB)", str(error), re.IGNORECASE)
        units = {"bytes": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30}
        of = f" of {float(wanted[1]) * units[wanted[2].lower()] / 1e9:,.1f} GB" if wanted else ""
        return f"there is not enough memory for a piece{of}"
    return str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__


def named(error: BaseException) -> str:
    """Return the type of an exception and the first line of its message."""
    return f"{type(error).__name__}: {first_line(error)}" if str(error).strip() else type(error).__name__


def raised(error: BaseException) -> str:
    """Return, as part of a sentence, an exception from a user's code and the line in which it was raised."""
    frame = own_frame(error)
    return f"{named(error)} ({frame.filename}, line {frame.lineno}: {frame.line})" if frame else named(error)


def own_frame(error: BaseException) -> traceback.FrameSummary | None:
    """Return the last place of a traceback that lies neither in fedatlas nor in Python's or other installed libraries.

    None if there is none.
    """
    places = [(place, Path(place.filename)) for place in traceback.extract_tb(error.__traceback__)]
    own = [
        place for place, path in places if path.is_file() and not any(map(path.absolute().is_relative_to, _LIBRARIES))
    ]
    return own[-1] if own else None


def lacks_memory(error: BaseException) -> bool:
    """Return whether an allocator of torch or NumPy gave up, on the processor or on a GPU."""
    gave_up = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return gave_up or "can't allocate memory" in str(error)


_LIBRARIES = (Path(__file__).parent, *{Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")})

SHORT = 2  # names of at most this many letters are not completed
MANY = 20  # with more names, only the nearest are listed


def unknown_name(kind: str, name: str, known: Iterable[str], table: str = "") -> ConfigError:
    """Return the error for an unknown name. It suggests the nearest known name, or lists all, or the nearest of many.

    ``table``: text before each listed name, such as ``"local."``.
    """
    names = sorted(set(known), key=lambda each: (edits(name.lower(), each.lower()), each))
    if near := nearest(name, names):
        hint = f"did you mean '{table}{near}'?"
    elif len(names) > MANY:
        hint = f"the nearest of {len(names)} names are {', '.join(table + each for each in names[:3])}."
    else:
        hint = f"known: {', '.join(table + each for each in sorted(names))}."
    return ConfigError(f"unknown {kind} '{table}{name}': {hint}")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name that begins with ``name``, else the one with the fewest typing errors, or "".

    Two names are near if at most half of the letters differ.
    """
    lower = name.lower()
    names = sorted(known, key=lambda each: (edits(lower, each.lower()), each))
    begin = [each for each in names if len(name) > SHORT and each.lower().startswith(lower)]
    near = [each for each in names if 2 * edits(lower, each.lower()) <= max(len(name), SHORT)]
    return next(iter(begin or near), "")


def edits(one: str, other: str) -> int:
    """Return the edit distance of two texts: letters inserted, left out, replaced or swapped with their neighbour."""
    before, above, row = list[int](), list[int](), list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        before, above, row = above, row, [i]
        for j, wanted in enumerate(other, 1):
            cost = min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (letter != wanted))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == wanted:
                cost = min(cost, before[j - 2] + 1)
            row.append(cost)
    return row[-1]

"""Write files completely or not at all: to a temporary name, flushed to the disk, then renamed."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
from functools import partial
from pathlib import Path
from typing import Any

from fedatlas.errors import DiskError, as_utf8

OWN_FILES = "each node's own"
"""Text in place of a path in the configuration of a deployed run, in which each node names its rows with --data."""
OF_THE_FILE = ("decimal", "separator", "encoding", "sheet")
"""Keys for the format of one file. In a deployment each node has its own, and no other party learns them."""


def write_bytes(path: Path, data: bytes | bytearray, *, private: bool = False) -> str:
    """Replace ``path`` atomically, and return the SHA-256 of ``data``. DiskError if it cannot be written.

    ``private``: only its owner may read the file (mode 0600).
    """
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if private:
            part.unlink(missing_ok=True)  # left by a process that died, it would keep its mode
        with open(part, "wb", opener=partial(os.open, mode=0o600) if private else None) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise disk_error(path, error) from error
    return hashlib.sha256(data).hexdigest()


def write_secret(path: Path, data: bytes) -> None:
    """Replace ``path`` by a file that only its owner can read, from its first byte on. DiskError if it cannot be written."""
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.unlink(missing_ok=True)
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        raise disk_error(path, error) from error


def lacks_room(error: BaseException | None) -> bool:
    """Whether an error, or one of its causes, says that a disk or a quota is full."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}:
            return True
        error = error.__cause__ or error.__context__
    return False


def disk_error(path: Path, error: OSError) -> DiskError:
    """Return the error for a file that could not be written."""
    if error.errno == errno.ENAMETOOLONG:
        return DiskError(name_too_long(path))
    full = error.errno in {errno.ENOSPC, errno.EFBIG, errno.EDQUOT}
    why = "the disk is full or a size limit was reached" if full else (error.strerror or str(error))
    advice = "earlier files are intact; make room and use --resume" if full else "name a place that you may write to"
    return DiskError(f"'{path}' could not be written: {why}; {advice}.")


def name_too_long(path: Path | str) -> str:
    """Return the sentence for a name too long for a file or folder. It does not repeat the whole name."""
    name = max(Path(path).parts, key=len)
    return f"the name '{name[:20]}...' of {len(name)} letters is too long for a file or folder: choose a shorter one."


def write_text(path: Path, text: str) -> str:
    """Write UTF-8 text with `write_bytes`; ConfigError if it contains a file name that is not UTF-8."""
    return write_bytes(path, as_utf8(text))


def write_json(path: Path, value: Any) -> str:
    """Write indented JSON with `write_bytes`."""
    return write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")

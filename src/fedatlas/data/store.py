"""The folders of data files: prepared files are searched under ``FEDATLAS_DATA``, then in the user's cache folder."""

from __future__ import annotations

import contextlib
import csv
import gzip
import hashlib
import json
import lzma
import os
import shutil
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import platformdirs

from fedatlas.errors import DataError
from fedatlas.registry import PlainValues

ENVIRONMENT = "FEDATLAS_DATA"
LARGE = 4_000_000  # bytes of a prepared file above which unpacking takes a second or more


Arrays = dict[str, np.ndarray]


class Found(NamedTuple):
    """Prepared files, in the order requested, and the folder that holds them."""

    root: Path
    paths: tuple[Path, ...]


@dataclass(frozen=True)
class Store:
    """Folders that may hold prepared files, in search order."""

    roots: tuple[Path, ...]

    @classmethod
    def default(cls) -> Store:
        """Return ``FEDATLAS_DATA`` if it is set, then the cache folder of this user."""
        named = os.environ.get(ENVIRONMENT, "")
        return cls(((Path(named).expanduser(),) if named else ()) + (cache("data"),))

    def find(self, files: Sequence[str]) -> Found | None:
        """Return ``files`` under the first folder that has them all; None for no such folder."""
        for root in self.roots:
            paths = tuple(root / file for file in files)
            if all(path.exists() for path in paths):
                return Found(root, paths)
        return None

    def home(self) -> Path:
        """Return the folder for downloads: the first writable one."""
        for root in self.roots:
            if _writable(root):
                root.mkdir(parents=True, exist_ok=True)
                return root
        places = ", ".join(str(root) for root in self.roots)
        raise DataError(f"no folder for downloaded data is writable ({places}): set {ENVIRONMENT} to one that is.")

    def __str__(self) -> str:
        return " or ".join(str(root) for root in self.roots)


def cache(what: str) -> Path:
    """Return a folder in this user's cache."""
    return Path(platformdirs.user_cache_dir("fedatlas")) / what


def _writable(folder: Path) -> bool:
    """Return whether files may be created there.

    Mode bits count for root too, although the system lets root write anywhere.
    """
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return os.access(folder, os.W_OK) and bool(stat.S_IMODE(folder.stat().st_mode) & stat.S_IWUSR)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path to write to.

    It becomes ``path`` if the block ends without error, with the permissions of the user's umask.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield part
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file completely or not at all."""
    with replacing(path) as part:
        part.write_bytes(content)


def write_npz(path: Path, write: Callable[..., None] = np.savez_compressed, /, **arrays: np.ndarray) -> None:
    """Write a prepared ``.npz`` completely or not at all: compressed members, no pickles."""
    with replacing(path) as part, open(part, "wb") as file:
        write(file, allow_pickle=False, **arrays)


def read_prepared(path: Path, names: Iterable[str]) -> Arrays:
    """Return `read_npz` of a public set's prepared file. A large file is also kept unpacked in the cache folder.

    CIFAR-10, for example, takes 15 s to unpack. The copy is found by the file's SHA-256. If no copy can be written, the
    next run unpacks again.
    """
    if path.stat().st_size < LARGE:
        return read_npz(path, names)
    copy = cache("unpacked") / f"{sha256(path)}.npz"
    with contextlib.suppress(DataError):  # none yet, or cut short
        return read_npz(copy, names)
    arrays = read_npz(path, names, whole=True)
    with contextlib.suppress(OSError):
        write_npz(copy, np.savez, **arrays)
    return arrays


def read_npz(path: Path, names: Iterable[str], *, whole: bool = False) -> Arrays:
    """Return arrays of a ``.npz`` by name, or all of them.

    DataError if the file cannot be read or lacks one of the names.
    """
    with _archive(path) as file:
        names = list(names)
        missing = [name for name in names if name not in file]
        if missing:
            raise DataError(f"'{path}' has no array '{missing[0]}': it holds {', '.join(file.files)}.")
        return {name: file[name] for name in (file.files if whole else names)}


def members_of(path: Path) -> set[str]:
    """Return the names of a ``.npz``'s arrays. DataError if the file cannot be read."""
    with _archive(path) as file:
        return set(file.files)


@contextlib.contextmanager
def _archive(path: Path) -> Iterator[Any]:
    """Open a ``.npz``. DataError if it is damaged, also when its arrays are read."""
    try:
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            yield file
    # TypeError: a single array instead of an archive
    except (
        OSError,
        ValueError,
        EOFError,
        KeyError,
        TypeError,
        zipfile.BadZipFile,
        zlib.error,
        lzma.LZMAError,
    ) as error:
        raise DataError(f"'{path}' cannot be read as .npz ({error}).") from error


def write_table(path: Path, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write a prepared ``.csv.gz``: one header line, an empty cell = missing."""
    with replacing(path) as part, gzip.open(part, "wt", encoding="utf-8", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def read_tsv(path: Path, header: Sequence[str]) -> list[list[str]]:
    """Return the rows of a prepared ``.tsv.xz``. DataError if its header differs."""
    with lzma.open(path, "rt", encoding="utf-8", newline="\n") as file:
        first, *rows = [line.rstrip("\n").split("\t", len(header) - 1) for line in file] or [[]]
    if first != [*header]:
        raise DataError(f"'{path}' is not the prepared table: its header should be {' '.join(header)}.")
    return rows


def write_tsv(path: Path, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write a prepared ``.tsv.xz``."""
    write_atomically(path, lzma.compress("".join("\t".join(row) + "\n" for row in (header, *rows)).encode()))


def unpack_file(packed: Path, to: Path) -> None:
    """Write the content of an xz or lzma file to another."""
    with lzma.open(packed) as source, open(to, "wb") as out:
        shutil.copyfileobj(source, out, 1 << 20)


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def provenance(found: Found) -> list[PlainValues]:
    """Return the name and SHA-256 of each prepared file for the record of a run, checked against ``SHA256SUMS``.

    The list is in the same folder. DataError if it gives a file another sum: the file was altered or cut short.
    """
    root = found.root
    sums = _sums(root / "SHA256SUMS")
    records = []
    for path in found.paths:
        name = path.relative_to(root).as_posix()
        digest = sha256(path)
        if name in sums and sums[name] != digest:
            raise DataError(
                f"'{path}' was altered or cut short: its SHA-256 is not the one in '{root / 'SHA256SUMS'}'."
            )
        records.append({"file": name, "sha256": digest, "listed": name in sums})
    return records


def _sums(path: Path) -> dict[str, str]:
    """Return file -> SHA-256 from the format of ``sha256sum``."""
    if not path.exists():
        return {}
    lines = (line.split(maxsplit=1) for line in path.read_text(encoding="utf-8").splitlines() if line.strip())
    return {name.strip().removeprefix("*").removeprefix("./"): digest for digest, name in lines}


def read_json(path: Path) -> PlainValues:
    """Return a JSON object, or {} for a missing file."""
    values: PlainValues = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return values

"""Readers of the original formats: idx, CIFAR binary, archives in archives, TensorFlow examples, LEAF's JSON."""

from __future__ import annotations

import gzip
import io
import json
import struct
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedatlas.errors import DataError

IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: Path) -> np.ndarray:
    """Read an idx file, gzipped or not: two zero bytes, type, number of dimensions, sizes, values; big-endian."""
    raw = path.read_bytes()
    return parse_idx(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw, str(path))


def parse_idx(raw: bytes, name: str = "the file") -> np.ndarray:
    """Return the array in the bytes of an idx file, in the machine's byte order.

    DataError if the format differs or it is cut short.
    """
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] not in IDX_TYPES:
        raise DataError(f"'{name}' is not an idx file: it does not begin with two zero bytes and a known type.")
    dtype, dims = np.dtype(IDX_TYPES[raw[2]]), raw[3]
    shape = struct.unpack_from(f">{dims}I", raw, 4)
    start, count = 4 + 4 * dims, int(np.prod(shape, dtype=np.int64))
    if len(raw) != start + count * dtype.itemsize:
        raise DataError(f"'{name}' is cut short: its header announces {count} values of {dtype.itemsize} bytes.")
    return np.frombuffer(raw, dtype, count, start).reshape(shape).astype(dtype.newbyteorder("="))


def parse_cifar(raw: bytes, labels: int, name: str = "the file") -> tuple[np.ndarray, np.ndarray]:
    """Parse CIFAR's binary format: a record is ``labels`` label bytes, then 3,072 of the red, green and blue planes, row by row.

    Returns labels (n, labels) and pixels (n, 3, 32, 32), uint8. Source: the format section of the CIFAR page, Krizhevsky 2009.
    """
    record = labels + 3072
    if not raw or len(raw) % record:
        raise DataError(
            f"'{name}' is not a CIFAR binary file: {len(raw)} bytes are not a whole number of {record}-byte records."
        )
    table = np.frombuffer(raw, np.uint8).reshape(-1, record)
    return table[:, :labels].copy(), table[:, labels:].reshape(-1, 3, 32, 32).copy()


def encode_pixels(x: np.ndarray) -> np.ndarray:
    """Encode uint8 (n, 3, 32, 32) for compression. The inverse is `decode_pixels`.

    Green is subtracted from red and blue. Then differences are taken down and across (mod 256).
    """
    d = x.copy()
    d[:, 0] -= x[:, 1]
    d[:, 2] -= x[:, 1]
    d[:, :, :, 1:] -= d[:, :, :, :-1].copy()
    d[:, :, 1:] -= d[:, :, :-1].copy()
    return d


def decode_pixels(d: np.ndarray) -> np.ndarray:
    """Invert `encode_pixels`: sum across and down, then add green back."""
    x = d.copy()
    for i in range(1, x.shape[2]):
        x[:, :, i] += x[:, :, i - 1]
    for j in range(1, x.shape[3]):
        x[:, :, :, j] += x[:, :, :, j - 1]
    x[:, 0] += x[:, 1]
    x[:, 2] += x[:, 1]
    return x


def member(path: Path, name: str) -> bytes:
    """Return the bytes of the file called ``name`` (its last parts) in a zip or tar archive, also inside a nested zip.

    A file that is not an archive is returned whole. DataError if the archive has no such file.
    """
    raw = path.read_bytes()
    found = _member(raw, name)
    if found is None:
        raise DataError(f"'{path.name}' contains no file '{name}': the archive at its source was changed.")
    return found


def _member(raw: bytes, name: str) -> bytes | None:
    if zipfile.is_zipfile(io.BytesIO(raw)):
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            for entry in archive.namelist():
                if f"/{entry}".endswith(f"/{name}"):
                    return archive.read(entry)
            inner = (archive.read(entry) for entry in archive.namelist() if entry.endswith(".zip"))
            return next((found for content in inner if (found := _member(content, name)) is not None), None)
    try:
        with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
            entries = (e for e in tar if f"/{e.name}".endswith(f"/{name}"))
            files = (tar.extractfile(entry) for entry in entries)
            return next((file.read() for file in files if file is not None), None)
    except tarfile.ReadError:
        return raw


class LeafUser(NamedTuple):
    """One user of a LEAF data set."""

    name: str
    x: list[Any]
    y: list[Any]


def read_leaf(folder: Path) -> Iterator[LeafUser]:
    """Yield the users of a folder of LEAF's JSON files (``users``, ``user_data`` with ``x`` and ``y``), file by file.

    Caldas et al. 2018, *LEAF: A Benchmark for Federated Settings*.
    """
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise DataError(
            f"'{folder}' holds no .json file: it should be the train or test folder that LEAF's preprocess.sh writes."
        )
    for path in paths:
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            for user in values["users"]:
                data = values["user_data"][user]
                yield LeafUser(user, data["x"], data["y"])
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise DataError(f"'{path}' is not a LEAF file ({type(error).__name__}: {error}).") from error


def parse_example(raw: bytes) -> dict[str, list[bytes] | np.ndarray]:
    """Parse a serialised ``tf.train.Example``: name -> byte strings, float32 or int64 values.

    The protocol-buffer messages are Example{1: Features{1: map entry{1: name, 2: Feature}}} and
    Feature{1: bytes list | 2: float list | 3: int64 list}, each list{1: values, packed if they are numbers}.
    """
    features: dict[str, list[bytes] | np.ndarray] = {}
    for _, block in _fields(raw):
        for _, entry in _fields(block):
            parts = dict(_fields(entry))
            for kind, content in _fields(parts[2]):
                features[parts[1].decode()] = _VALUES[kind](content)
    return features


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """Return a base-128 number and its end. Low groups come first, and the high bit marks that more follow."""
    value, shift = 0, 0
    while raw[at] & 0x80:
        value |= (raw[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return value | raw[at] << shift, at + 1


def _fields(raw: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (field number, content) of a message; the content of a number is its raw bytes."""
    at = 0
    while at < len(raw):
        key, at = _varint(raw, at)
        if (kind := key & 7) == 2:
            size, at = _varint(raw, at)
            end = at + size
        else:
            end = _varint(raw, at)[1] if kind == 0 else at + (8 if kind == 1 else 4)
        yield key >> 3, raw[at:end]
        at = end


def _int64_list(raw: bytes) -> np.ndarray:
    values = []
    for _, content in _fields(raw):
        at = 0
        while at < len(content):
            value, at = _varint(content, at)
            values.append(value)
    return np.array(values, np.uint64).astype(np.int64)  # negative numbers are stored as their two's complement


_VALUES: dict[int, Any] = {
    1: lambda raw: [content for _, content in _fields(raw)],
    2: lambda raw: np.frombuffer(b"".join(content for _, content in _fields(raw)), "<f4"),
    3: _int64_list,
}

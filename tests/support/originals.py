"""Writes small files in the formats in which data sets are given out."""

from __future__ import annotations

import io
import json
import sqlite3
import struct
import tarfile
import zipfile

import numpy as np


def idx(a: np.ndarray) -> bytes:
    kind = {"u1": 0x08, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D}[a.dtype.str[1:]]
    return struct.pack(f">4B{a.ndim}I", 0, 0, kind, a.ndim, *a.shape) + a.astype(a.dtype.newbyteorder(">")).tobytes()


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = b""
    while True:
        value, low = value >> 7, value & 0x7F
        out += bytes([low | (0x80 if value else 0)])
        if not value:
            return out


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def example(**features) -> bytes:
    """A tf.train.Example, fields in the numbers of its .proto file."""
    entries = b""
    for name, values in features.items():
        if isinstance(values[0], bytes):
            feature = field(1, b"".join(field(1, v) for v in values))
        elif isinstance(values[0], float):
            feature = field(2, field(1, struct.pack(f"<{len(values)}f", *values)))
        else:
            feature = field(3, field(1, b"".join(varint(v) for v in values)))
        entries += field(1, field(1, name.encode()) + field(2, feature))
    return field(1, entries)


def zipped(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()


def tarred(files: dict[str, bytes], mode: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def leaf(folder, users: dict[str, tuple[list, list]]) -> None:
    folder.mkdir(parents=True)
    data = {u: {"x": x, "y": y} for u, (x, y) in users.items()}
    (folder / "all_data.json").write_text(
        json.dumps({"users": list(users), "num_samples": [len(y) for _, y in users.values()], "user_data": data})
    )


def database(path, rows: list[tuple[str, str, bytes]]) -> bytes:
    link = sqlite3.connect(path)
    link.execute("CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB)")
    link.execute("CREATE TABLE client_metadata (client_id TEXT, split_name TEXT, num_examples INTEGER)")
    link.executemany("INSERT INTO examples VALUES (?, ?, ?)", rows)
    link.executemany(
        "INSERT INTO client_metadata VALUES (?, ?, 1)", sorted({(client, split) for split, client, _ in rows})
    )
    link.commit()
    link.close()
    return path.read_bytes()

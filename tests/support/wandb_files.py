"""Reads what Weights & Biases wrote offline: protocol buffers in LevelDB's log format, which no module of it reads for others."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

BLOCK, HEAD = 32768, 7  # bytes; the file's own head is as long as a record's
PATIENCE = 120.0  # seconds


class WandbFile(NamedTuple):
    """One run's record."""

    name: str
    group: str
    settings: dict[str, str]
    rows: dict[int, dict[str, Any]]
    files: set[str]


def records(data: bytes) -> Iterator[bytes]:
    """Yield the records of a log; a long one lies in several pieces (kind 2 the first, 4 the last, 1 the only one)."""
    at, whole = HEAD, b""
    while at + HEAD <= len(data):
        if BLOCK - at % BLOCK < HEAD:  # the rest of a block is padding
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        whole += data[at + HEAD : at + HEAD + length]
        at += HEAD + length
        if kind in (1, 4):
            yield whole
            whole = b""


def ends(data: bytes) -> bool:
    """Whether a record says that its run has ended."""
    from wandb.proto import wandb_internal_pb2

    record = wandb_internal_pb2.Record()
    record.ParseFromString(data)
    return bool(record.WhichOneof("record_type") == "exit")


def wandb_run(folder: Path) -> WandbFile:
    """Read the one offline run below a folder's ``wandb``, once it is written to its end: that is done by another process."""
    from wandb.proto import wandb_internal_pb2

    (file,) = (folder / "wandb").glob("offline-run-*/*.wandb")
    until = time.monotonic() + PATIENCE
    while not any(ends(data) for data in records(file.read_bytes())) and time.monotonic() < until:
        time.sleep(0.1)
    found = WandbFile("", "", {}, {}, set())
    for data in records(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            found = found._replace(name=record.run.run_id, group=record.run.run_group)
            found.settings.update({one.key: json.loads(one.value_json) for one in record.run.config.update})
        elif kind == "config":
            found.settings.update({one.key: json.loads(one.value_json) for one in record.config.update})
        elif kind == "history":
            items = {(one.key or ".".join(one.nested_key)): json.loads(one.value_json) for one in record.history.item}
            if "accuracy" in items:
                found.rows[items["_step"]] = items
        elif kind == "files":
            found.files.update(one.path for one in record.files.files)
    return found

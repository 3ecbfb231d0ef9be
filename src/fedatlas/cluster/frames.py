"""Frames between an agent and its worker: a number, a length and whether the call failed, then the bytes."""

from __future__ import annotations

import contextlib
import fcntl
import json
import struct
from typing import IO, Any, NamedTuple

HEAD = struct.Struct("<QQ?")
FACTS = 0  # number of the frame that a worker sends first, without a call


class Failed(NamedTuple):
    """A call that failed at a node: the name of an error of `fedatlas.errors` or of Python, and its sentence."""

    kind: str
    reason: str


def frame(number: int, data: bytes, *, failed: bool = False) -> list[bytes]:
    """Return the parts of a frame, to be written one after the other."""
    return [HEAD.pack(number, len(data), failed), data]


def widened(pipe: IO[bytes]) -> None:
    """Let a pipe hold a mebibyte where the system allows it; what it holds without a reader is 64 KiB."""
    with contextlib.suppress(OSError, AttributeError):
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 1 << 20)


def failure(kind: str, reason: str) -> bytes:
    """Return the bytes of a failed call."""
    return json.dumps([kind, reason]).encode()


def answer_of(failed: bool, data: Any) -> Any:
    """Return the answer to a call: its bytes as an array, or why it failed."""
    return Failed(*json.loads(bytes(data))) if failed else data


def with_head(head: Any, body: bytes = b"") -> bytes:
    """Return a message of plain values and bytes."""
    text = json.dumps(head).encode()
    return len(text).to_bytes(8, "little") + text + body


def head_and_body(message: bytes) -> tuple[Any, memoryview]:
    """Invert `with_head`."""
    end = 8 + int.from_bytes(message[:8], "little")
    return json.loads(message[8:end]), memoryview(message)[end:]

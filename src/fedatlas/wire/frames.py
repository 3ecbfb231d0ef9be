"""Messages between processes as frames: a head of plain values and a body of bytes, in pieces, with the size checked first.

A message is the length of its head (four bytes, little-endian), the head (JSON) and the body (the codec's bytes, or a file's).
Over a network it travels in frames of at most 4 MiB. The first byte of a frame gives its kind:

        BEAT    only a sign of life
        BEGIN   the length of the message (eight bytes, little-endian), then its first piece
    MORE    a further piece

Through a pipe between two processes of one machine it travels whole, after the same eight bytes. Nothing here needs torch.
"""

from __future__ import annotations

import json
import queue
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, Any, NamedTuple

from fedatlas.errors import TransportError
from fedatlas.wire.heads import read_head

FRAME = 4 << 20  # most bytes of a frame
BEAT, BEGIN, MORE = b"\x00", b"\x01", b"\x02"
LIMIT = 4 << 30  # most bytes of a message, unless a bundle sets another limit
HEAD = 24 << 20  # most bytes of a message's head
EVERY = 1.0  # seconds between two signs of life
SILENT = 4.0  # seconds without one after which the other end counts as lost

Body = bytes | bytearray | memoryview


class RawMessage(NamedTuple):
    """A message as it crosses: plain values, and bytes that only its receiver reads."""

    head: Mapping[str, Any]
    body: Body = b""

    @property
    def kind(self) -> str:
        """The message's name in the tables of `wire.messages`."""
        return str(self.head.get("kind", ""))


def _parts(message: RawMessage) -> tuple[bytes, memoryview]:
    head = json.dumps(dict(message.head), separators=(",", ":")).encode()
    return len(head).to_bytes(4, "little") + head, memoryview(message.body).cast("B")


def frames(message: RawMessage) -> Iterator[bytes]:
    """Yield the frames of a message."""
    head, body = _parts(message)
    first = FRAME - 9 - len(head)
    kind = BEGIN + (len(head) + len(body)).to_bytes(8, "little")
    if first < 0:  # a head longer than a frame
        head, body, first = b"", memoryview(head + body), FRAME - 9
    yield b"".join((kind, head, body[:first]))
    for at in range(first, len(body), FRAME - 1):
        yield b"".join((MORE, body[at : at + FRAME - 1]))


def parsed(data: bytearray) -> RawMessage:
    """Return the message in these bytes. TransportError if they do not hold one."""
    length, view = int.from_bytes(data[:4], "little"), memoryview(data)
    if len(data) < 4 + length or length > HEAD:
        raise TransportError("a message is shorter than it says.")
    try:
        head = read_head(view[4 : 4 + length], len(data), pairs=_table)
    except ValueError as error:
        raise TransportError(f"a message's head is not JSON ({error}).") from None
    if not isinstance(head, dict) or not isinstance(head.get("kind"), str):
        raise TransportError("a message's head has no kind.")
    return RawMessage(head, view[4 + length :])


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("it names a field twice")
    return table


class Assembler:
    """Puts messages together from frames. Memory is taken only for bytes that arrived, never for an announced length."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit, self.total = limit, 0
        self.data: bytearray | None = None

    def feed(self, frame: bytes) -> RawMessage | None:
        """Return the message that a frame completes, or None. TransportError for a frame that cannot come here."""
        kind, at = frame[:1], 1
        if kind == BEAT and len(frame) == 1:
            return None
        if kind == BEGIN and self.data is None and len(frame) >= 9:
            self.total, at = int.from_bytes(frame[1:9], "little"), 9
            if self.total > self.limit:
                raise TransportError(f"a message of {self.total} bytes is announced; {self.limit} are the most.")
            self.data = bytearray()
        elif kind != MORE or self.data is None:
            raise TransportError("a frame came that belongs to no message.")
        if len(self.data) + len(frame) - at > self.total:
            raise TransportError("a message is longer than it says.")
        self.data += memoryview(frame)[at:]
        if len(self.data) < self.total:
            return None
        whole, self.data = self.data, None
        return parsed(whole)


def outgoing(
    messages: queue.SimpleQueue[RawMessage | None], beats: Callable[[], bool] = lambda: True
) -> Iterator[bytes]:
    """Yield the frames of queued messages until None comes. For each second without a message yield a sign of life if ``beats``."""
    while True:
        try:
            message = messages.get(timeout=EVERY)
        except queue.Empty:
            if beats():
                yield BEAT
            continue
        if message is None:
            return
        yield from frames(message)


def incoming(pieces: Iterable[bytes], assembler: Assembler | None = None) -> Iterator[RawMessage | None]:
    """Yield, for each frame, the message that it completes, or None. TransportError for a frame that cannot come here."""
    assembler = assembler or Assembler()
    for frame in pieces:
        yield assembler.feed(frame)


def write(pipe: IO[bytes], message: RawMessage) -> None:
    """Write a message into a pipe."""
    head, body = _parts(message)
    pipe.write((len(head) + len(body)).to_bytes(8, "little") + head)
    pipe.write(body)
    pipe.flush()


def read(pipe: IO[bytes]) -> RawMessage | None:
    """Read the next message of a pipe; None if the other end is closed."""
    size = pipe.read(8)
    if len(size) < 8:
        return None
    if (total := int.from_bytes(size, "little")) > LIMIT:
        raise TransportError(f"a message of {total} bytes is announced; {LIMIT} are the most.")
    data = bytearray(total)
    view, at = memoryview(data), 0
    while at < total:
        more = pipe.readinto(view[at:])  # type: ignore[attr-defined]
        if not more:
            return None
        at += more
    return parsed(data)

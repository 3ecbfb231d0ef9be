"""Bytes that nobody wrote, into the codec, the frame reader and the reader of messages: a sentence comes out, and no memory is taken.

Each input is a function of its number, so that one that fails can be made again, and a long search be taken up or split:

    FEDATLAS_FUZZ         how many inputs the slow test tries (default a million)
    FEDATLAS_FUZZ_FROM    the first of their numbers (default 0)
"""

from __future__ import annotations

import contextlib
import json
import os
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedatlas.errors import ProtocolError, TransportError
from fedatlas.tree import Tree
from fedatlas.wire import codec, messages
from fedatlas.wire.frames import BEAT, BEGIN, MORE, Assembler, RawMessage, frames
from fedatlas.wire.messages import NodeFacts, NodeHello, Signed, Submission, TaskReply, TaskRequest, written

TABLES = (messages.TO_NODE, messages.FROM_NODE, messages.FROM_TRAINER, messages.FROM_OPERATOR, messages.TO_OPERATOR)
PLACE, DIGEST = (1, 0, 0), "0" * 32
BODY = bytes(
    codec.encode(
        {"model": Tree({"w": torch.ones(3, 4), "b": torch.zeros(0, 2)}), "on": torch.tensor([True]), "n": [1, None]}
    )
)
VALUES = [
    BODY,
    bytes(codec.encode([])),
    bytes(codec.encode({"a": [1.5, "text", {"b": torch.arange(9)}]})),
    bytes(codec.encode([torch.zeros(2, dtype=torch.float16)] * 5)),
]
RECORDS = [
    NodeHello(messages.PROTOCOL, "1", "0", ready=True, runs={"r": 3}),
    NodeFacts("r", {"schema": [["a", ["x", "y"]]], "rows": [1, 2]}),
    TaskReply("r", PLACE, DIGEST, 1, (1, 2, 3, 0.5, None), BODY),
    TaskRequest("r", PLACE, DIGEST, DIGEST, ((1, True, -1),), BODY),
    Submission(Signed("{}", "", "")),
]
STREAMS = [b"".join(frames(written(one))) for one in RECORDS]
EXTREMES = [
    b"null", b"-1", b"1e999", b"NaN", b"9223372036854775808", b"true", b'"x"', b"[]", b"{}", b"[[[[[[", b'"\\ud800"', b"{}," * 99,
    b"0" * 99, b'{"$tensor":["f32",[9],0]}', b'{"$tree":{}}', b"\xff\xfe", b"\0" * 64, b"[]," * 2000,
]  # fmt: skip


def changed(draw: np.random.Generator, data: bytes) -> bytes:
    """A few changes of bytes: turned over, cut, doubled, moved, or an extreme in their place."""
    out = bytearray(data)
    for _ in range(int(draw.integers(1, 5))):
        at, other = (int(draw.integers(0, len(out) + 1)) for _ in range(2))
        first, last = min(at, other), min(max(at, other), min(at, other) + int(draw.integers(0, 65)))
        how = draw.integers(0, 6)
        if how == 0 and out:
            out[at % len(out)] ^= 1 << int(draw.integers(0, 8))
        elif how == 1:
            del out[first:last]
        elif how == 2:
            out[at:at] = out[first:last]
        elif how == 3:
            out[first:last] = EXTREMES[int(draw.integers(0, len(EXTREMES)))]
        elif how == 4:
            out[: min(8, len(out))] = int(draw.integers(0, 1 << 62)).to_bytes(8, "little")[: len(out)]
        else:
            out = out[:at]
    return bytes(out)


def mended(data: bytes) -> bytes:
    """The same with a length of the head that fits: so that what follows is read."""
    head = data[8:].split(b"\0")[0]
    return len(head).to_bytes(8, "little") + data[8:]


def read_value(data: bytes) -> None:
    codec.decode(bytearray(data))


def read_stream(data: bytes) -> list[Any]:
    """As frames of several sizes, then as the record of a message from anybody; return the records."""
    assembler, found = Assembler(1 << 20), []
    for frame in pieces(data):
        if (message := assembler.feed(frame)) is not None:
            for table in TABLES:
                with contextlib.suppress(ProtocolError):
                    found.append(messages.read(message, table))
    return found


def pieces(data: bytes) -> Iterator[bytes]:
    if len(data) % 3 == 0:
        yield data
        return
    cut = len(data) // 2 + 9
    yield data[:cut]
    yield MORE + data[cut:]
    yield BEAT


def refused(read: Callable[[bytes], Any], data: bytes) -> None:
    """No error but the two that are expected."""
    try:
        read(data)
    except (TransportError, ProtocolError):
        return


def taken(read: Callable[[bytes], Any], data: bytes) -> int:
    """Bytes that Python takes at most while it reads."""
    tracemalloc.start()
    try:
        refused(read, data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def one(number: int) -> tuple[Callable[[bytes], Any], bytes]:
    """The input of a number, and its reader."""
    draw = np.random.default_rng(number)
    if number % 2:
        data = changed(draw, STREAMS[int(draw.integers(0, len(STREAMS)))])
        return read_stream, BEGIN + (len(data) - 9).to_bytes(8, "little") + data[9:] if number % 3 and len(
            data
        ) > 9 else data
    data = changed(draw, VALUES[int(draw.integers(0, len(VALUES)))])
    return read_value, mended(data) if number % 3 else data


def tried(first: int, count: int, each: int) -> None:
    """So many inputs; every ``each``-th with an eye on memory."""
    for number in range(first, first + count):
        read, data = one(number)
        try:
            if number % each:
                refused(read, data)
            else:
                assert taken(read, data) <= 4 * len(data) + (1 << 20), "memory"
        except Exception as error:
            raise AssertionError(f"input {number} of {read.__name__}: {error!r}") from error


def test_two_thousand_inputs():
    tried(0, 2000, 10)


@pytest.mark.slow
def test_a_million_inputs():
    tried(int(os.environ.get("FEDATLAS_FUZZ_FROM", "0")), int(os.environ.get("FEDATLAS_FUZZ", "1000000")), 1000)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5)
    | st.fixed_dictionaries({"$tensor": st.tuples(st.sampled_from([*codec.DTYPES, "x"]), st.lists(st.integers()), st.integers())})
    | st.fixed_dictionaries({"$tree": inner}),
    max_leaves=20,
)  # fmt: skip


@settings(max_examples=500)
@given(value=PLAIN, body=st.binary(max_size=300))
def test_values_that_no_writer_writes(value: Any, body: bytes):
    head = json.dumps(value).encode()
    data = len(head).to_bytes(8, "little") + head
    data = data.ljust(-(-len(data) // 64) * 64, b"\0") + body
    refused(read_value, data)


@settings(max_examples=2000)
@given(data=st.binary(max_size=400))
def test_bytes_of_any_kind(data: bytes):
    refused(read_value, data)
    refused(read_stream, data)


@settings(max_examples=150)
@given(
    kind=st.sampled_from([kind for table in TABLES for kind in table]),
    fields=st.dictionaries(
        st.sampled_from(["run", "runs", "place", "work", "why", "facts", "agreement", "to", "x"]), PLAIN
    ),
    body=st.binary(max_size=50),
)
def test_fields_of_any_kind(kind: str, fields: dict[str, Any], body: bytes):
    for frame in frames(RawMessage({**fields, "kind": kind}, body)):
        refused(read_stream, frame)


def test_what_was_written_is_read():
    """The generator begins at messages that are whole: else nothing would be reached."""
    for value in VALUES:
        codec.decode(bytearray(value))
    for stream, record in zip(STREAMS, RECORDS, strict=True):
        assert record in read_stream(stream)

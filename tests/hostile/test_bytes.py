"""Bytes that would take the server's memory: heads that no writer writes, whose tensors overlap, or that are nested without end."""

from __future__ import annotations

import contextlib
import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
import torch

from fedatlas.errors import ProtocolError, TransportError
from fedatlas.tree import Tree
from fedatlas.wire import codec, messages
from fedatlas.wire.frames import Assembler, RawMessage, frames, parsed


def message_of(head: Any, body: bytes = b"") -> bytes:
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    start = -(-(8 + len(text)) // 64) * 64
    return (len(text).to_bytes(8, "little") + text).ljust(start, b"\0") + body


def peak_of(work: Callable[[], Any]) -> int:
    """Bytes that Python takes at most meanwhile."""
    tracemalloc.start()
    try:
        with contextlib.suppress(TransportError, ProtocolError):
            work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def tensor(shape: Any, at: Any = 0, dtype: Any = "f32") -> Any:
    return {"$tensor": [dtype, shape, at]}


ODD_HEADS: dict[str, Any] = {
    "the same bytes 400 times": [tensor([64, 256])] * 400,
    "bytes that overlap": [tensor([32]), tensor([32], 64)],
    "a side below 0": tensor([-1]),
    "two sides below 0": tensor([-2, -8]),
    "an empty tensor of endless sides": tensor([0, 1 << 62]),
    "an empty tensor of many endless sides": tensor([0, *[1 << 40] * 30]),
    "a size that overflows": tensor([1 << 32, 1 << 32]),
    "many sides": tensor([1] * 1000),
    "a large number for a side": tensor([10**4000]),
    "no list for a shape": tensor(7),
    "a text for a side": tensor(["8"]),
    "True for a side": tensor([True]),
    "a place that is none": tensor([8], None),
    "a place before it": tensor([8], -64),
    "a place behind the end": tensor([8], 1 << 62),
    "no known type": tensor([8], 0, "c64"),
    "a list for a type": tensor([8], 0, ["f32"]),
    "a tensor of two entries": {"$tensor": ["f32", [8]]},
    "a tensor and more": {**tensor([8]), "more": 1},
    "a tree that is none": {"$tree": 5},
    "a tree of numbers": {"$tree": {"w": 5}},
    "a tree of texts": {"$tree": {"w": "none"}},
    "a tree and more": {"$tree": {}, "more": 1},
    "True that is neither": tensor([64], 0, "bool"),
    "deep nesting": b"[" * 100 + b"]" * 100,
    "endless nesting": b"[" * 100_000,
    "lists and nothing else": b"[" + b"[]," * 20_000 + b"[]]",
    "tables and nothing else": b"[" + b"{}," * 20_000 + b"{}]",
    "wide letters": b'["\\ud83d\\ude00' + b"a" * 400_000 + b'"]',
    "letters that are not ASCII": b'["\xc3\xa9"]',
    "half a head": b'{"a": [1, 2',
}


@pytest.mark.parametrize("odd", ODD_HEADS)
def test_a_head_that_no_writer_writes_is_refused_without_taking_memory(odd: str):
    data = bytearray(message_of(ODD_HEADS[odd], b"\x07" * 65536))
    with pytest.raises(TransportError, match="not a whole message"):
        codec.decode(data)
    assert peak_of(lambda: codec.decode(data)) <= 4 * len(data) + (1 << 20)


def test_a_head_that_is_longer_than_its_message_is_refused():
    for data in (b"", b"1234567", (1 << 62).to_bytes(8, "little"), (9).to_bytes(8, "little") + b"{}"):
        with pytest.raises(TransportError):
            codec.decode(bytearray(data))


def test_tensors_are_views_of_what_came():
    data = codec.encode(
        {"model": Tree({"w": torch.zeros(1 << 20), "b": torch.zeros(0, 7)}), "on": torch.tensor([True])}
    )
    assert peak_of(lambda: codec.decode(data)) < 64 << 10
    found = codec.decode(data)
    data[-(64 + 4) :] = bytes([0, 0, 128, 63]) + data[-64:]  # the last number of "w" in the bytes
    assert float(found["model"]["w"][-1]) == 1.0
    assert found["model"]["b"].shape == (0, 7)


@pytest.mark.parametrize(
    "head", [b"[" + b"[]," * 30_000 + b"0]", b'{"a":' * 900 + b"0" + b"}" * 900, b"[" * 90 + b"]" * 90]
)
def test_a_frames_head_is_bounded_by_its_message(head: bytes):
    text = b'{"kind":"facts","run":"r","facts":{"x":' + head + b"}}"
    data = bytearray(len(text).to_bytes(4, "little") + text)
    with pytest.raises(TransportError, match="not JSON"):
        parsed(data)
    assert peak_of(lambda: parsed(data)) <= 4 * len(data) + (1 << 20)


def test_facts_of_thousands_of_categories_come_through():
    facts = {"schema": [["column", [f"category {i}" for i in range(5000)]]] * 2, "rows": [1, 2]}
    (frame,) = frames(RawMessage({"kind": "facts", "run": "r", "facts": facts}))
    assert messages.read(Assembler().feed(frame) or RawMessage({}), messages.FROM_TRAINER).facts == facts

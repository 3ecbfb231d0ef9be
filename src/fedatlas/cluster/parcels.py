"""Jobs and results between the process that runs a federation and the nodes' workers: plain fields pickled, tensors by the codec.

A parcel is an 8-byte length, the pickled head, zeros up to a multiple of 64, then the codec's bytes of each value. All
its readers belong to one run: Ray itself hands pickles to its workers, so a parcel adds nothing that a stranger could use.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedatlas.wire import codec

BENCH, DATA, TELL, WORK = "bench", "data", "tell", "work"
"""Heads of parcels for a node: the run's order, copies of data files, a message that many jobs share, jobs."""
NEED, ERROR, DONE = "need", "error", "done"
"""Heads of its answers: it needs the data files, ..."""


def packed(head: Any, values: Sequence[Any] = ()) -> Any:
    """Return a parcel as an array of bytes, which Ray stores without pickling it."""
    sizes = [codec.size(value) for value in values]
    first = pickle.dumps((head, sizes))
    at = up(8 + len(first))
    out = np.empty(at + sum(sizes), np.uint8)
    view = out.data
    view[:at] = len(first).to_bytes(8, "little") + first + bytes(at - 8 - len(first))
    for value, size in zip(values, sizes, strict=True):
        codec.encode_into(value, view[at : at + size])
        at += size
    return out


def unpacked(parcel: Any) -> tuple[Any, list[Any]]:
    """Return the head and the values of a parcel. Tensors share its memory where that is writable, and are copies otherwise."""
    view = memoryview(parcel)
    length = int.from_bytes(view[:8], "little")
    head, sizes = pickle.loads(view[8 : 8 + length])  # noqa: S301  (written by this run)
    at, values = up(8 + length), []
    for size in sizes:
        values.append(codec.decode(view[at : at + size], own=True))
        at += size
    return head, values


def up(n: int) -> int:
    """Return the next multiple of the codec's alignment."""
    return -(-n // codec.ALIGN) * codec.ALIGN

"""The node of each row in the tree that is grown: the root is 1, the children of v are 2 v and 2 v + 1.

All rows move through the tree, validation and test rows included. Of a node that was split, parties that sum up one of
its children are told which of its rows go left: one bit per row, in ascending order of their places.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedatlas.errors import ProtocolError
from fedatlas.vertical.parties import Whole, tensor

Told = Mapping[str, Any]
"""{"nodes": [2, 3], "left": [bits, bits]}"""


def bits(left: NDArray[np.bool_]) -> Any:
    """Pack which rows go left, eight rows per byte."""
    return tensor(np.packbits(left))


def unpacked(packed: Any, count: int) -> NDArray[np.bool_]:
    """Unpack which of ``count`` rows go left. ProtocolError if the length does not match."""
    if len(packed) != -(-count // 8):
        raise ProtocolError(
            f"a split of {count} rows arrived in {len(packed)} bytes: a different set of rows was divided."
        )
    return np.unpackbits(packed.numpy(), count=count).astype(bool)


def moved(at: Whole, told: Iterable[Told]) -> Whole:
    """Return the node of each row after these splits."""
    after = at.copy()
    for one in told:
        for v, packed in zip(one["nodes"], one["left"], strict=True):
            rows = np.flatnonzero(at == v)
            after[rows] = 2 * v + ~unpacked(packed, len(rows))
    return after


def some_of(told: Told, nodes: Collection[int]) -> dict[str, Any]:
    """Return the part of a message that is about these nodes."""
    pairs = [(v, packed) for v, packed in zip(told["nodes"], told["left"], strict=True) if v in nodes]
    return {"nodes": [v for v, _ in pairs], "left": [packed for _, packed in pairs]}


def smaller(at: Whole, parent: int) -> int:
    """Return the child of a node that has fewer of these rows; the left one if they have the same number."""
    left, right = (int(np.count_nonzero(at == child)) for child in (2 * parent, 2 * parent + 1))
    return 2 * parent if left <= right else 2 * parent + 1


def parents(nodes: Sequence[int]) -> list[int]:
    """Return the parents of these nodes, ascending."""
    return sorted({v // 2 for v in nodes})

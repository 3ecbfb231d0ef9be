"""Which rows stand at which node of the tree that is grown: the root is 1, the children of v are 2 v and 2 v + 1.

All rows walk, those that are held out and those that test, too. Told is, of each node that was split, which of its rows in ascending order
of their places go left: one bit a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedatlas.errors import ProtocolError
from fedatlas.vertical.parties import Whole, tensor

Told = Mapping[str, Any]
"""{"nodes": [2, 3], "left": [bits, bits]}"""


def bits(left: NDArray[np.bool_]) -> Any:
    """Which rows go left, eight a byte."""
    return tensor(np.packbits(left))


def unpacked(packed: Any, count: int) -> NDArray[np.bool_]:
    """The opposite; ProtocolError where it is about another number of rows."""
    if len(packed) != -(-count // 8):
        raise ProtocolError(
            f"a split of {count} rows was told in {len(packed)} bytes: another set of rows was divided."
        )
    return np.unpackbits(packed.numpy(), count=count).astype(bool)


def moved(at: Whole, told: Iterable[Told]) -> Whole:
    """Where the rows stand after these splits."""
    after = at.copy()
    for one in told:
        for v, packed in zip(one["nodes"], one["left"], strict=True):
            rows = np.flatnonzero(at == v)
            after[rows] = 2 * v + ~unpacked(packed, len(rows))
    return after


def smaller(at: Whole, parent: int) -> int:
    """The child of a node with fewer of these rows; of equals the left one."""
    left, right = (int(np.count_nonzero(at == child)) for child in (2 * parent, 2 * parent + 1))
    return 2 * parent if left <= right else 2 * parent + 1


def parents(nodes: Sequence[int]) -> list[int]:
    """The nodes that these hang on, ascending."""
    return sorted({v // 2 for v in nodes})

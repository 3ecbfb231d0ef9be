"""The node of each row in the trees that are grown: a single root is 1, the children of v are 2 v and 2 v + 1.

Of T trees that grow together, tree t begins at R + t, where R is the first power of two from T on. So the nodes of a level
are consecutive numbers, those of one tree after those of another, and all of them the numbers of one large tree. Where each row
is stands in an array (trees, rows).

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


def first_root(trees: int) -> int:
    """Return the number of the first of so many trees' roots."""
    return 1 << (trees - 1).bit_length()


def roots(trees: int) -> list[int]:
    """Return the roots of so many trees."""
    return [first_root(trees) + t for t in range(trees)]


def tree_of(v: int, trees: int) -> int:
    """Return the place, from 0, of a node's tree among so many."""
    return (v >> (level_of(v, trees) - 1)) - first_root(trees)


def level_of(v: int, trees: int) -> int:
    """Return the level of a node of so many trees; a root is on level 1."""
    return v.bit_length() - first_root(trees).bit_length() + 1


def begun(trees: int, rows: int) -> Whole:
    """Return (trees, rows), all rows at the roots."""
    return np.repeat(np.array(roots(trees), np.int64)[:, None], rows, axis=1)


def own_tree(at: Whole, v: int) -> Whole:
    """Return (rows,), the node of each row in the tree of a node."""
    found: Whole = at[tree_of(v, len(at))]
    return found


def moved(at: Whole, told: Iterable[Told]) -> Whole:
    """Return the nodes (trees, rows) after these splits."""
    after = at.copy()
    for one in told:
        for v, packed in zip(one["nodes"], one["left"], strict=True):
            rows = np.flatnonzero(own_tree(at, v) == v)
            own_tree(after, v)[rows] = 2 * v + ~unpacked(packed, len(rows))
    return after


def some_of(told: Told, nodes: Collection[int]) -> dict[str, Any]:
    """Return the part of a message that is about these nodes."""
    pairs = [(v, packed) for v, packed in zip(told["nodes"], told["left"], strict=True) if v in nodes]
    return {"nodes": [v for v, _ in pairs], "left": [packed for _, packed in pairs]}


def smaller(at: Whole, parent: int) -> int:
    """Return the child of a node that has fewer of these rows (rows,) of its tree; the left one if they have the same number."""
    left, right = (int(np.count_nonzero(at == child)) for child in (2 * parent, 2 * parent + 1))
    return 2 * parent if left <= right else 2 * parent + 1


def parents(nodes: Sequence[int]) -> list[int]:
    """Return the parents of these nodes, ascending."""
    return sorted({v // 2 for v in nodes})


def passed(nodes: Collection[int], open_: Collection[int]) -> list[int]:
    """Return the split nodes with an open child. Whoever sums up the child must be told how their rows divide."""
    return [v for v in nodes if 2 * v in open_ or 2 * v + 1 in open_]

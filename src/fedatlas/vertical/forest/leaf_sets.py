"""Prediction in one round: each party says which leaves its own splits leave open to each row, and one leaf is in all sets.

A set is told by the party's own nodes, ascending: of the rows that the party's splits above a node let get there, those that go
left. At the nodes of others it follows both branches. This says as much as the set, in a bit a row and node. So all parties together
tell a bit a row and inner node, however many they are. Rows are packed, eight in a byte.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedatlas.vertical.parties import Floats, Whole
from fedatlas.vertical.trees.records import ways

Packed = NDArray[np.uint8]
"""(nodes, bytes), which rows; bits behind the last row mean nothing."""


def leaves_of(inner: Collection[int]) -> list[int]:
    """Return the leaves of a tree with these inner nodes, ascending."""
    return sorted({1, *(child for v in inner for child in (2 * v, 2 * v + 1))} - {*inner})


def inner_of(leaves: Iterable[int]) -> list[int]:
    """Return the inner nodes of a tree with these leaves, ascending."""
    return sorted({v >> k for v in leaves for k in range(1, v.bit_length())})


def told(x: Floats, leaves: Iterable[int], table: Mapping[str, Any], own: Mapping[int, int]) -> Packed:
    """Return which of the rows x (rows, columns) go left at each own node. ``own``: node -> record in the table."""
    at, found = {1: np.packbits(np.ones(len(x), bool))}, []
    for v in inner_of(leaves):
        left = right = at.pop(v)
        if v in own:
            here, left = left, left & np.packbits(ways(table, own[v], x))
            right = here ^ left
            found.append(left)
        at[2 * v], at[2 * v + 1] = left, right
    return np.array(found, np.uint8).reshape(len(found), -(-len(x) // 8))


def reached(rows: int, leaves: list[int], left: Mapping[int, Packed]) -> Whole:
    """Return (rows,), the place among the leaves of the one that is in all sets. ``left``: inner node -> its line of `told`."""
    at, found = {1: np.packbits(np.ones(rows, bool))}, np.empty(rows, np.int64)
    for v in inner_of(leaves):
        here = at.pop(v)
        at[2 * v] = here & left[v]
        at[2 * v + 1] = here ^ at[2 * v]
    for place, v in enumerate(leaves):
        found[np.unpackbits(at[v], count=rows).view(bool)] = place
    return found

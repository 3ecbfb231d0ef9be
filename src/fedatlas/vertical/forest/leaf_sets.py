"""Prediction in one round: each party says which leaves its own splits leave open to a row, and one leaf is in all sets.

At the nodes of others a party follows both branches. Leaves are in the order of their node numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedatlas.errors import ProtocolError
from fedatlas.vertical.parties import Floats, Whole
from fedatlas.vertical.trees.records import ways

Sets = NDArray[np.bool_]


def leaves_of(inner: Collection[int]) -> list[int]:
    """Return the leaves of a tree with these inner nodes, ascending."""
    return sorted({1, *(child for v in inner for child in (2 * v, 2 * v + 1))} - {*inner})


def inner_of(leaves: Iterable[int]) -> list[int]:
    """Return the inner nodes of a tree with these leaves, ascending."""
    return sorted({v >> k for v in leaves for k in range(1, v.bit_length())})


def possible(x: Floats, leaves: list[int], table: Mapping[str, Any], own: Mapping[int, int]) -> Sets:
    """Return (rows, leaves), which leaves the rows x (rows, columns) can reach. ``own``: node -> record in the table."""
    at: dict[int, Sets] = {1: np.ones(len(x), bool)}
    for v in inner_of(leaves):
        left = ways(table, own[v], x) if v in own else None
        at[2 * v] = at[v] if left is None else at[v] & left
        at[2 * v + 1] = at[v] if left is None else at[v] & ~left
    return np.stack([at[v] for v in leaves], axis=1)


def check(sets: Sets, leaves: list[int], own: Collection[int]) -> None:
    """Compare a party's sets with the tree: at its own nodes one branch, elsewhere both. ProtocolError if they differ."""
    below = dict(zip(leaves, sets.T, strict=True))
    inner = inner_of(leaves)
    for v in reversed(inner):
        below[v] = below[2 * v] | below[2 * v + 1]
    at: dict[int, Sets] = {1: np.ones(len(sets), bool)}
    for v in inner:
        for child in (2 * v, 2 * v + 1):
            at[child] = at[v] & below[child] if v in own else at[v]
        if v in own and ((at[2 * v] ^ at[2 * v + 1]) != at[v]).any():
            raise ProtocolError("a row takes no branch of a split, or both")
    if any((at[v] != below[v]).any() for v in leaves):
        raise ProtocolError("a row's leaves are not those of the tree")


def reached(every: Iterable[Sets]) -> Whole:
    """Return (rows,), the place among the leaves of the one that is in all sets."""
    found: Whole = np.logical_and.reduce([*every]).argmax(axis=1)
    return found

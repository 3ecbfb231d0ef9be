"""The trees of a forest as a party keeps them: its own splits with their nodes, and of every tree the leaves' numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedatlas.algorithm import State
from fedatlas.vertical.forest.leaf_sets import leaves_of
from fedatlas.vertical.trees import records

TABLE = {**records.TABLE, "node": np.int64}
SHAPE = {"tree": np.int64, "leaf": np.int64}
"""The leaves of all trees: the tree, from 0, and the node's number."""


def shapes(state: State) -> list[list[int]]:
    """Return the leaves of each tree, ascending."""
    shape = state["boost"]["shape"]
    found: list[list[int]] = [[] for _ in range(int(shape["tree"].max()) + 1 if len(shape["tree"]) else 0)]
    for tree, leaf in zip(shape["tree"].tolist(), shape["leaf"].tolist(), strict=True):
        found[tree].append(leaf)
    return found


def own_records(table: Mapping[str, Any], tree: int) -> dict[int, int]:
    """Return the party's nodes in a tree, from 0, with their records."""
    mine = np.flatnonzero(table["tree"].numpy() == tree)
    return {int(table["node"][r]): int(r) for r in mine}


def kept_tree(state: State, now: Mapping[str, Any], inner: Sequence[int]) -> State:
    """Return the party's state with the tree that was grown; ``inner``: its nodes that are left after pruning.

    The party's own splits among them become records, by the order of their nodes.
    """
    tree = now["tree"] - 1
    own = {v: one for v, one in sorted(now["own"].items()) if v in inner}
    more = [
        {"tree": tree, "node": v, "column": one.column, "cut": one.cut, "left": one.left, "gain": np.nan}
        for v, one in own.items()
    ]
    after, _ = records.with_lines(state, more, TABLE)
    leaves = [{"tree": tree, "leaf": v} for v in leaves_of(inner)]
    shape = records.appended(after["boost"]["shape"], leaves, SHAPE)
    return {**after, "boost": {**after["boost"], "shape": shape}}

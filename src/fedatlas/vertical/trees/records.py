"""The parts of the trees that a party keeps: its splits, and at the active party the skeleton and leaves.

A node names (party, record). The record is a line of that party's table, which never leaves the party: column,
threshold, direction of missing values. All of it is stored as tensors under "boost" in the party's state, whatever grew
the trees: stored runs have it there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedatlas.algorithm import State
from fedatlas.vertical.parties import Floats, Whole, tensor

Boost = Mapping[str, Any]

TABLE = {"tree": np.int64, "column": np.int64, "cut": np.float64, "left": np.bool_, "gain": np.float64}
"""Each split of a party: its tree (from 0), column, threshold, whether missing values go left, gain (NaN: not told)."""

SKELETON = {
    "tree": np.int64,
    "party": np.int64,  # -1: a leaf
    "record": np.int64,
    "left": np.int64,  # index of the child within its tree
    "right": np.int64,
    "gain": np.float64,
    "value": np.float64,  # of a leaf; a vector, if a tree is of several classes
    "rows": np.int64,  # rows of the node, among those that the tree was grown on
}
"""Fields of each node of all trees."""


def empty(form: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return a table of this form without lines."""
    return {name: tensor(np.empty(0, kind)) for name, kind in form.items()}


def appended(
    lines: Mapping[str, torch.Tensor], more: Sequence[Mapping[str, Any]], form: Mapping[str, Any]
) -> dict[str, torch.Tensor]:
    """Return a table with further lines appended. Of a table without lines, a field may become a vector for each line."""
    if not more:
        return {name: lines[name] for name in form}
    new = {name: tensor(np.array([one[name] for one in more], kind)) for name, kind in form.items()}
    return {name: torch.cat([lines[name], new[name]]) if len(lines[name]) else new[name] for name in form}


def column_cuts(boost: Boost) -> list[Floats]:
    """Return the cuts of each column."""
    ends = np.cumsum(boost["lengths"].numpy())
    return np.split(boost["cuts"].numpy(), ends[:-1]) if len(ends) else []


def ways(table: Mapping[str, torch.Tensor], record: int, x: Floats) -> NDArray[np.bool_]:
    """Return (rows,), which rows of x (rows, columns) a split sends left."""
    values = x[:, int(table["column"][record])]
    found: NDArray[np.bool_] = np.where(
        np.isnan(values), bool(table["left"][record]), values <= float(table["cut"][record])
    )
    return found


def with_lines(
    state: State, more: Sequence[Mapping[str, Any]], form: Mapping[str, Any] = TABLE
) -> tuple[State, list[int]]:
    """Return the party's state with further lines in its table, and the lines' numbers."""
    table = state["boost"]["table"]
    first = len(table["tree"])
    boost = {**state["boost"], "table": appended(table, more, form)}
    return {**state, "boost": boost}, list(range(first, first + len(more)))


def midpoints(values: Floats) -> Floats:
    """Return (k - 1,), a threshold between each two of k ascending different values: the middle, or the lower one."""
    with np.errstate(invalid="ignore", over="ignore"):  # between infinities: the lower one will do
        between = values[:-1] + np.diff(values) / 2
    found: Floats = np.where(between < values[1:], between, values[:-1])
    return found


def by_column(table: Mapping[str, torch.Tensor], columns: int) -> Floats:
    """Return (columns,), the total gain of a party's splits on each of its columns."""
    found: Floats = np.bincount(table["column"].numpy(), np.nan_to_num(table["gain"].numpy()), columns).astype(float)
    return found


def margins(skeleton: Mapping[str, Any], at: Whole, outputs: int) -> Floats:
    """Return (rows,), or (rows, outputs) of several: the sums of leaves. ``at`` (trees, rows): each row's leaf."""
    value, found = skeleton["value"], np.zeros((at.shape[1], outputs))
    for tree, each in enumerate(at):  # tree after tree, as they were grown
        if value.ndim > 1:
            found += value[each]
        else:
            found[:, tree % outputs] += value[each]
    return found if outputs > 1 else found[:, 0]


def first_of(ties: Sequence[int] | Whole) -> int:
    """Return, of candidates with equal gain, the first by column, bin and direction (V2)."""
    return int(np.min(ties))

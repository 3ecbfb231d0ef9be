"""What the row sets of trees tell a party without the label: attacks that rank rows by a class, and their AUC.

The party follows the protocol, and uses only what it was told (`told`). Three rules, each strong for its simplicity:

first tree   ranks the rows by the share of the class at their node of the first tree of which it was told rows. The
             shares are the true ones, so this bounds what any outside knowledge of these nodes can give.
rows         knows the labels of a few rows. A row's score is how much oftener it is at a node with known rows of the
             class than with the other known rows, over all trees and levels.
draws        knows the labels of the same few rows, and counts in how many trees a row was drawn (GOSS). The known rows
             tell whether many draws speak for the class.

The AUC is over the training rows whose labels the party does not know; 0.5 is chance.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedatlas.metrics.quality import auc
from fedatlas.vertical.boosting.told import Told
from fedatlas.vertical.parties import Floats, Whole

KNOWN = 20  # rows whose labels the party knows
TIMES = 10  # draws of them; figures are means


def first_tree(trees: Sequence[Told], y: NDArray[np.bool_], train: Whole) -> float:
    """Return the AUC of the shares of the class at the nodes of the first tree with any; 0.5 if there is none.

    ``y`` (training rows,): whether a row is of the class; ``train``: their places.
    """
    for one in trees:
        nodes, at = np.unique(one.at[train], return_inverse=True)
        if len(nodes) > 1:
            return measured(np.bincount(at, y)[at] / np.bincount(at)[at], y)
    return 0.5


def by_rows(trees: Sequence[Told], y: NDArray[np.bool_], train: Whole, known: Whole) -> Floats:
    """Return (training rows,), how much oftener a row is with known rows of the class than with the others.

    ``known``: positions in ``train`` of the rows with known labels.
    """
    score = np.zeros(len(train))
    sides = [known[y[known]], known[~y[known]]]
    for one in trees:
        for nodes in levels(one.at[train]):
            for sign, some in zip((1, -1), sides, strict=True):
                score += sign * np.bincount(nodes[some], minlength=int(nodes.max()) + 1)[nodes] / max(len(some), 1)
    return score


def levels(at: Whole) -> list[Whole]:
    """Return the nodes of rows at each level below the root, numbered from 0; rows stay where their branch ends."""
    depth = np.frexp(at.astype(np.float64))[1]  # 1: the root
    return [
        np.unique(at >> np.maximum(depth - level, 0), return_inverse=True)[1] for level in range(2, int(depth.max()) + 1)
    ]


def by_draws(trees: Sequence[Told], y: NDArray[np.bool_], train: Whole, known: Whole) -> Floats:
    """Return (training rows,), in how many trees a row was drawn, with the sign that the known rows speak for."""
    count = np.zeros(int(train.max(initial=-1)) + 1)
    for one in trees:
        if one.rows is not None:
            count[one.rows] += 1
    found: Floats = count[train]
    up, down = (found[known[side]].mean() if side.any() else 0.0 for side in (y[known], ~y[known]))
    return found if up >= down else -found


def measured(score: Floats, y: NDArray[np.bool_]) -> float:
    """Return the AUC of a score; 0.5 if all rows are of one class."""
    found = auc(score, y.astype(np.int64))
    return 0.5 if found is None else float(found)

"""Additions that columns share: rows with the same bins in several columns are added up once, as one cell.

A bin's sum is a product of ciphertexts. Let n be the rows of a node, and c(S) the cells of a group S of columns, which are the
combinations of their bins that occur. Each bin of a column is then a sum of cells. Multiplications:

    A and B apart      n - c(A)  +  n - c(B)
    A and B joined     n - c(AB) +  c(AB) - c(A) + c(AB) - c(B)      n - c(AB) fewer

So joining never costs more. 0/1 columns gain most (V3 (5)): those of one text column have a cell per category, so that a row is added
once for all of them. Groups are joined while that saves more than the cells cost on their way between processes.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from fedatlas.vertical.parties import Whole

ENOUGH = 0.75  # most cells of a joined group, as a share of the rows


class SumLayer(NamedTuple):
    """Sums of entries of the layer before; those of the first layer are of rows."""

    members: list[list[int]]  # places that each sum adds up
    sums: list[int]  # those of its sums that are bins
    bins: list[int]  # and their places in the histogram


class JointColumns(NamedTuple):
    """Columns whose rows are added up together."""

    cells: int
    number: int  # breaks ties between groups of one size
    of: Whole  # (rows,) each row's cell
    spots: Whole | None  # (cells,) places in the histogram, of a single column
    parts: tuple[tuple[JointColumns, Whole], ...]  # the groups joined in it, and (cells,) their cells


def layers(members: Whole, spots: Whole) -> list[SumLayer]:
    """Return how to add up the bins of some rows, layer by layer; ``spots`` (rows, columns): the place of each row's bins."""
    found = []
    level = [
        (group, members, group.of) for group in joined(spots)
    ]  # groups, their entries of the layer before, the cell of each
    while level:
        layer, after = SumLayer([], [], []), list[tuple[JointColumns, Whole, Whole]]()
        for group, entries, cell in level:
            here = np.arange(group.cells) + len(layer.members)
            layer.members.extend(_by_cell(entries, cell, group.cells))
            if group.spots is not None:
                layer.sums.extend(here.tolist())
                layer.bins.extend(group.spots.tolist())
            after += [(part, here, its) for part, its in group.parts]
        found.append(layer)
        level = after
    return found


def multiplications(found: Sequence[SumLayer]) -> int:
    """Return how many multiplications these sums take."""
    return sum(max(len(one) - 1, 0) for layer in found for one in layer.members)


def joined(spots: Whole) -> list[JointColumns]:
    """Return groups of all columns: the two with the fewest cells are joined as long as that pays."""
    rows, columns = spots.shape
    waiting = []
    for f in range(columns if rows else 0):
        places, of = np.unique(spots[:, f], return_inverse=True)
        waiting.append(JointColumns(len(places), f, of, places, ()))
    heapq.heapify(waiting)
    while len(waiting) > 1:
        a, b = heapq.nsmallest(2, waiting)
        pairs, of = np.unique(a.of * b.cells + b.of, return_inverse=True)
        if len(pairs) > ENOUGH * rows:
            break
        heapq.heappop(waiting)
        parts = ((a, pairs // b.cells), (b, pairs % b.cells))
        columns += 1
        heapq.heapreplace(waiting, JointColumns(len(pairs), columns, of, None, parts))
    return waiting


def _by_cell(entries: Whole, cell: Whole, cells: int) -> list[list[int]]:
    sorted_by = entries[np.argsort(cell, kind="stable")].tolist()
    ends = [0, *np.cumsum(np.bincount(cell, minlength=cells)).tolist()]
    return [sorted_by[begin:end] for begin, end in pairwise(ends)]

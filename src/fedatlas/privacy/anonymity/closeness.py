"""Distances between the values of a class and of the whole table, for t-closeness (P9).

Source: N. Li, T. Li, S. Venkatasubramanian, t-closeness: privacy beyond k-anonymity and l-diversity, ICDE 2007. Each is the earth
mover's distance for another distance between two values, all between 0 and 1: by rank, 1 for any two, or by the height of the
smallest common group. A class is given by its values and their counts; the table by a share for each value.
"""

from __future__ import annotations

import numpy as np

from fedatlas.privacy.anonymity.hierarchy import Hierarchy


def ordered(values: np.ndarray, counts: np.ndarray, below: np.ndarray, sums: np.ndarray) -> float:
    """Return the distance for ordered values: the mean over m - 1 steps of |F_class - F_table|.

    values: codes in the class, ascending; counts: rows of each. below: F_table at each of the m codes; sums: its running sums, from
    0, (m + 1,). The class's distribution function is constant between two of its values, so that a class of n rows takes
    O(n log m), not O(m).
    """
    m = len(below)
    if m < 2:
        return 0.0
    height = np.concatenate(([0.0], np.cumsum(counts) / counts.sum()))
    edges = np.concatenate(([0], values, [m]))
    start, end = edges[:-1], edges[1:]
    cross = np.clip(np.searchsorted(below, height), start, end)  # F_table is less than the class's before it
    less = height * (cross - start) - (sums[cross] - sums[start])
    more = (sums[end] - sums[cross]) - height * (end - cross)
    return float((less + more).sum()) / (m - 1)


def equal(values: np.ndarray, counts: np.ndarray, shares: np.ndarray) -> float:
    """Return the distance for values that are all equally far apart: half the sum of |p - q|."""
    known = shares[values]
    return float(np.abs(counts / counts.sum() - known).sum() + 1.0 - known.sum()) / 2


def hierarchical(values: np.ndarray, counts: np.ndarray, shares: np.ndarray, tree: Hierarchy) -> float:
    """Return the distance by a tree of height H: moving within a group of height h costs h / H.

    In each group what is too much below it meets what is too little: the smaller of the two moves within the group.
    """
    rest = -shares.astype(np.float64)
    rest[values] += counts / counts.sum()
    height, total = len(tree.levels) - 1, 0.0
    for depth in range(height - 1, -1, -1):
        below = tree.levels[depth + 1]
        _, first, inverse = np.unique(below, return_index=True, return_inverse=True)
        child = np.bincount(inverse, rest)
        parent = tree.levels[depth][first]
        much = np.bincount(parent, np.maximum(child, 0.0))
        little = np.bincount(parent, np.maximum(-child, 0.0))
        total += (height - depth) / height * float(np.minimum(much, little).sum())
    return total

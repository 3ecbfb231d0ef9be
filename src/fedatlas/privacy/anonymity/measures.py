"""How much a table loses by generalisation, and how easily its rows can still be re-identified.

Loss: the normalised certainty penalty (Xu et al., Utility-based anonymization using local recoding, KDD 2006). Of a number it is
the range of its class as a share of the table's; of a category the share of all categories that the class's set, or its group in
a hierarchy, holds, and 0 if it is a single one; 1 for a row that is left out. Discernibility (Bayardo and Agrawal, ICDE 2005) is
the sum of squared class sizes; a row that is left out counts as many as there are rows.

Risk: that of somebody who knows the quasi-identifiers of a person, and knows that the person is in the table ("prosecutor"): 1
divided by the rows that look alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedatlas.privacy.anonymity.mondrian import MISSING, Quasi


class Risk(NamedTuple):
    """The chance of re-identification: the highest of all rows, the mean, the share of rows that look like no other."""

    highest: float
    mean: float
    unique: float


def sizes(of: np.ndarray) -> np.ndarray:
    """Return the rows of each class, int64 (classes,), without rows that are left out."""
    out: np.ndarray = np.bincount(of[of >= 0])
    return out


def risk(rows_alike: np.ndarray) -> Risk:
    """Return the risk under classes of these sizes, each at least 1."""
    rows = int(rows_alike.sum())
    unique = float((rows_alike == 1).sum()) / rows
    return Risk(1.0 / int(rows_alike.min()), len(rows_alike) / rows, unique)


def alike(columns: Sequence[Quasi]) -> np.ndarray:
    """Return the class of each row if rows with equal values in all columns are one, int64 (rows,)."""
    x = np.stack([column.values for column in columns], axis=1)
    found: np.ndarray = np.unique(x, axis=0, return_inverse=True)[1].reshape(-1)
    return found


def discernibility(of: np.ndarray) -> int:
    """Return the sum of squared class sizes, with rows times rows for those left out."""
    return int((sizes(of).astype(np.int64) ** 2).sum()) + int((of < 0).sum()) * len(of)


def losses(columns: Sequence[Quasi], of: np.ndarray) -> list[float]:
    """Return the mean loss of each column over all rows, from 0 to 1."""
    rows = sizes(of)
    return [float((_loss(column, of, len(rows)) * rows).sum() + (of < 0).sum()) / len(of) for column in columns]


def _loss(column: Quasi, of: np.ndarray, classes: int) -> np.ndarray:
    """Return the loss of a column in each class, float64 (classes,)."""
    there = of >= 0
    low, high = extremes(column.values[there], of[there], classes)
    if column.tree is not None:
        values = len(column.tree.members)
        at = zip(low.astype(int), high.astype(int), strict=True)
        return np.array([0.0 if a == b else column.tree.leaves(a, b) / values for a, b in at])
    if column.categories:
        codes = column.values[there].astype(np.int64)
        different = np.unique(of[there] * len(column.categories) + codes) // len(column.categories)
        held = np.bincount(different, minlength=classes)
        return np.where(held > 1, held / len(column.categories), 0.0)
    known = column.values[column.values != MISSING]
    span = float(known.max() - known.min()) if len(known) else 0.0
    differ = high > low
    mixed = differ & (low == MISSING)
    width = np.where(differ & ~mixed, high, 0.0) - np.where(differ & ~mixed, low, 0.0)
    return np.where(mixed, 1.0, width / (span or 1.0))


def extremes(values: np.ndarray, of: np.ndarray, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the least and the largest value of each class, float64 (classes,)."""
    low, high = np.full(classes, np.inf), np.full(classes, -np.inf)
    np.minimum.at(low, of, values)
    np.maximum.at(high, of, values)
    return low, high

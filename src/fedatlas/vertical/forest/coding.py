"""Labels in whole numbers, and the code in which other parties get them.

A class is its number. A number is a multiple of the unit, 2^-24 of the range of the training rows' labels. The code of a
class is its place in a secret permutation, and that of a number q is a q + b with secret whole a > 0 and b. Sums of codes
are exact, so every code leads to the same trees, bit for bit.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fedatlas import secret
from fedatlas.errors import DataError, ProtocolError
from fedatlas.vertical.parties import Floats, Whole

PRECISION = 24
FACTOR, SHIFT = 1 << 16, 1 << 40  # above a; above the size of b
LIMIT = 1 << 42  # above the size of every code of a number


class Scale(NamedTuple):
    """The first value and the unit of whole numbers that stand for numbers."""

    low: float
    unit: float


def scale_of(y: Floats) -> Scale:
    """Return the scale of the labels (rows,) of training rows. DataError if sums of their squares are above all doubles."""
    low, span = float(y.min()), float(y.max()) - float(y.min())
    if not math.isfinite(len(y) * span * span):
        raise DataError(
            f"the label has a range of {span:.3g}, too large for sums of squares: give it in a larger unit."
        )
    return Scale(low, span / (1 << PRECISION) if span > 0 else 1.0)


def whole_numbers(y: Floats, scale: Scale | None) -> Whole:
    """Return (rows,), labels as whole numbers; ``scale``: None for classes."""
    found = y if scale is None else np.rint((y - scale.low) / scale.unit)
    return found.astype(np.int64)


def mask(classes: int) -> Whole:
    """Draw a secret code: (classes,), the code of each class, or for a number (2,), a and b. No result depends on it."""
    if not classes:
        return np.array([1 + secret.integer_below(FACTOR - 1), secret.integer_below(2 * SHIFT) - SHIFT], np.int64)
    left, found = list(range(classes)), []
    while left:
        found.append(left.pop(secret.integer_below(len(left))))
    return np.array(found, np.int64)


def coded(labels: Whole, key: Whole, classes: int) -> Whole:
    """Return (rows,), the codes of labels."""
    found: Whole = key[labels] if classes else key[0] * labels + key[1]
    return found


def decoded(sums: Whole, key: Whole, classes: int) -> Whole:
    """Return (nodes, 1 + width) sums of labels from sums of codes. ProtocolError if no labels have these sums."""
    if classes:
        return sums[:, [0, *(1 + key)]]
    count, over = sums[:, 0], sums[:, 1] - key[1] * sums[:, 0]
    if (over % key[0]).any():
        raise ProtocolError("its sums are those of no labels")
    return np.stack([count, over // key[0]], axis=1)

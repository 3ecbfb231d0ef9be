"""The draws of a tree, from the run's seed: its rows with repetition, and its columns. They depend on no label."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from fedatlas.rng import numpy_stream
from fedatlas.vertical.forest.settings import FederatedForest
from fedatlas.vertical.parties import Whole


def bag(seed: int, tree: int, rows: int) -> Whole:
    """Return (rows,), how often each training row is drawn for a tree, as many times in all as there are rows."""
    found: Whole = np.bincount(numpy_stream(seed, "forest", "rows", tree).integers(0, rows, rows), minlength=rows)
    return found.astype(np.int64)


def columns(how: FederatedForest, seed: int, tree: int, widths: list[int]) -> list[list[int]]:
    """Return the columns of a tree by party, ascending; ``widths``: how many columns each party has."""
    total = sum(widths)
    some = math.isqrt(total) if how.features == "sqrt" else round(how.features * total)
    drawn = numpy_stream(seed, "forest", "columns", tree).choice(total, max(1, some), replace=False)
    firsts = np.cumsum([0, *widths])
    return [sorted(f - first for f in drawn.tolist() if first <= f < last) for first, last in pairwise(firsts.tolist())]

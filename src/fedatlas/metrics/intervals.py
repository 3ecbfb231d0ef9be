"""How sure a figure is: bootstrap intervals over test rows, spread over seeds, means over the last rounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedatlas.rng import numpy_stream

TOGETHER = 50  # draws that are in memory at once


class Interval(NamedTuple):
    """A figure and the interval it may lie in."""

    estimate: float | None
    low: float | None
    high: float | None
    level: float


class Spread(NamedTuple):
    """A figure over several seeds."""

    mean: float | None
    sd: float | None  # with n - 1; None for a single seed
    n: int


def bootstrap(
    figure: Callable[[NDArray[np.float64]], float | None],
    rows: int,
    seed: int,
    *key: int | str,
    draws: int = 1000,
    level: float = 0.95,
) -> Interval:
    """Percentile interval of a figure of ``rows`` test rows (Efron 1979).

    ``figure`` maps row weights (rows,) to the figure: drawing rows with replacement is weighting each by how often it
    was drawn. Rows with weights of their own multiply the two. Draws in which the figure is None (a class missing)
    are left out. The draws come from the stream (seed, ``bootstrap``, key).
    """
    if rows == 0:
        return Interval(None, None, None, level)
    stream = numpy_stream(seed, "bootstrap", *key)
    found = []
    for _ in range(draws):
        value = figure(np.bincount(stream.integers(rows, size=rows), minlength=rows).astype(np.float64))
        if value is not None:
            found.append(value)
    estimate = figure(np.ones(rows))
    if not found:
        return Interval(estimate, None, None, level)
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2])
    return Interval(estimate, float(low), float(high), level)


def differences(
    one: NDArray[np.floating[Any]],
    other: NDArray[np.floating[Any]],
    weight: NDArray[np.floating[Any]],
    seed: int,
    *key: int | str,
    root: bool = False,
    draws: int = 1000,
    level: float = 0.95,
) -> NDArray[np.float64]:
    """Percentile intervals of how much larger a weighted mean of ``one`` is than that of ``other``, (2, columns): low, high.

    ``one``, ``other`` (columns, n): scores of the same n rows, drawn alike for both (paired bootstrap); one column stands for all.
    ``weight`` (n,); ``root``: of the roots of the means (errors). The draws come from the stream (seed, ``bootstrap``, key).
    """
    n, stream, found = len(weight), numpy_stream(seed, "bootstrap", *key), []
    for start in range(0, draws, TOGETHER):
        many = range(min(TOGETHER, draws - start))
        drawn = np.stack([np.bincount(stream.integers(n, size=n), minlength=n) for _ in many]) * weight
        total = drawn.sum(1, keepdims=True)
        means = [drawn @ scores.T.astype(np.float64) / np.where(total, total, np.nan) for scores in (one, other)]
        found.append(np.sqrt(means[0]) - np.sqrt(means[1]) if root else means[0] - means[1])
    ends = np.nanquantile(np.concatenate(found), [(1 - level) / 2, (1 + level) / 2], axis=0)
    return np.asarray(ends, dtype=np.float64)


def over_seeds(values: Sequence[float | None]) -> Spread:
    """Mean and standard deviation (n - 1) over seeds; a seed without the figure is not counted."""
    known = [v for v in values if v is not None]
    if not known:
        return Spread(None, None, 0)
    mean = math.fsum(known) / len(known)
    sd = math.sqrt(math.fsum((v - mean) ** 2 for v in known) / (len(known) - 1)) if len(known) > 1 else None
    return Spread(mean, sd, len(known))


def mean_last(values: Sequence[float | None]) -> float | None:
    """Mean over the last max(1, round(R / 100)) of R rounds (ALGORITHMS.md C12).

    ``values`` are the rows 0 ... R of a run, row 0 the initial model, None where nothing was evaluated; a half is
    rounded to even, as Python does.
    """
    window = max(1, round((len(values) - 1) / 100))
    known = [v for v in values[-window:] if v is not None]
    return math.fsum(known) / len(known) if known else None

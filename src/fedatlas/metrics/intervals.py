"""Uncertainty of figures: bootstrap intervals over test rows, spread over seeds, means over the last rounds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedatlas.metrics.quality import Floats
from fedatlas.metrics.resampling import Weighted
from fedatlas.rng import numpy_stream

ScoreColumns = NDArray[np.floating[Any]]
DRAWS, FEWEST, LARGE = 1000, 200, 100_000  # draws: fewer for more labels than ``LARGE``, down to ``FEWEST``
TOGETHER, NUMBERS = 50, 1_000_000  # draws in memory at once, and the largest count of their numbers


class Interval(NamedTuple):
    """A figure and its interval."""

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
    figures: Weighted, rows: int, seed: int, *key: int | str, draws: int | None = None, level: float = 0.95
) -> dict[str, Interval]:
    """Return percentile intervals of figures of ``rows`` test rows (Efron 1979), all from the same draws.

    Drawing rows with replacement equals weighting each by how often it was drawn, (draws, rows). Draws in which a figure
    is undefined (nan: a class is missing) or infinite are left out of its interval. A single row has no interval. The draws come from
    the stream (seed, ``bootstrap``, key).
    """
    estimates = {name: float(x[0]) for name, x in figures(np.ones((1, rows))).items()}
    found: dict[str, list[Floats]] = {name: [] for name in estimates}
    for weights in drawings(rows, seed, *key, draws=draws) if rows > 1 else ():
        for name, x in figures(weights).items():
            found[name].append(x)
    return {name: interval(each, np.concatenate([*found[name], []]), level) for name, each in estimates.items()}


def usual_draws(labels: int) -> int:
    """Return the default number of draws for rows with ``labels`` labels: 1,000, or fewer for very many labels."""
    return max(FEWEST, min(DRAWS, DRAWS * LARGE // max(labels, 1)))


def drawings(rows: int, seed: int, *key: int | str, draws: int | None = None) -> Iterator[Floats]:
    """Yield all draws of a stream, as many at a time as fit in memory: (some, rows) each."""
    stream, left = numpy_stream(seed, "bootstrap", *key), usual_draws(rows) if draws is None else draws
    many = max(min(TOGETHER, NUMBERS // rows), 1)
    while left > 0:
        yield drawn(stream, rows, min(many, left))
        left -= many


def drawn(stream: np.random.Generator, rows: int, draws: int) -> Floats:
    """Return how often each row is drawn, (draws, rows): as many as there are, with replacement."""
    # rows are numbered through over the draws: one count for all of them
    row = stream.integers(rows, size=(draws, rows)) + rows * np.arange(draws)[:, None]
    return np.bincount(row.ravel(), minlength=draws * rows).reshape(draws, rows).astype(np.float64)


def interval(estimate: float, values: Floats, level: float = 0.95) -> Interval:
    """Return a figure with the central interval of its values over the draws."""
    known = values[np.isfinite(values)]
    low, high = np.quantile(known, [(1 - level) / 2, (1 + level) / 2]) if len(known) else (np.nan, np.nan)
    one, left, right = (float(x) if math.isfinite(x) else None for x in (estimate, low, high))
    return Interval(one, left, right, level)


def differences(
    one: ScoreColumns,
    other: ScoreColumns,
    weight: ScoreColumns,
    seed: int,
    *key: int | str,
    level: float = 0.95,
    **how: Any,
) -> Floats:
    """Return percentile intervals of the weighted mean of ``one`` minus that of ``other``, (2, columns): low, high.

    ``one``, ``other`` (columns, n): scores of the same n rows, with the same draws for both (paired bootstrap). A
    single column applies to all. ``weight`` (n,). ``root``: compare the roots of the means (errors). The draws come
    from the stream (seed, ``bootstrap``, key).
    """
    more, less = (mean_draws(scores, weight, seed, *key, **how) for scores in (one, other))
    ends = np.nanquantile(more - less, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return np.asarray(ends, dtype=np.float64)


def of_means(
    scores: ScoreColumns,
    weight: ScoreColumns,
    seed: int,
    *key: int | str,
    root: bool = False,
    draws: int | None = None,
) -> list[Interval]:
    """Return weighted means of the columns (columns, n) of the same rows, or their roots, with intervals from common draws."""
    total = weight.sum()
    means = (scores * weight).sum(1) / total if total else np.full(len(scores), np.nan)
    found = mean_draws(scores, weight, seed, *key, root=root, draws=draws)
    return [interval(float(x), y) for x, y in zip(np.sqrt(means) if root else means, found.T, strict=True)]


def mean_draws(
    scores: ScoreColumns,
    weight: ScoreColumns,
    seed: int,
    *key: int | str,
    root: bool = False,
    draws: int | None = None,
) -> Floats:
    """Return (draws, columns) the weighted means of ``scores`` (columns, n) in each draw; nan if no row with weight was drawn."""
    columns, found = list(scores.astype(np.float64)), [np.empty((0, len(scores)))]
    for counts in drawings(len(weight), seed, *key, draws=draws):
        counted = counts * weight
        total = counted.sum(1)
        # not a matrix product, whose bits would depend on the number of threads
        sums = np.stack([np.einsum("dn,n->d", counted, column) for column in columns], axis=1)
        found.append(sums / np.where(total, total, np.nan)[:, None])
    means = np.concatenate(found)
    return np.sqrt(means) if root else means


def proportion(hits: float, of: float, z: float = 1.959963985) -> tuple[float, float]:
    """Return Wilson's interval of a share of equally weighted rows, (low, high); 95% with the default ``z``."""
    if not of:
        return 0.0, 1.0
    share, grown = hits / of, 1 + z * z / of
    middle = (share + z * z / (2 * of)) / grown
    half = z / grown * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of))
    return max(0.0, middle - half), min(1.0, middle + half)


def clopper_pearson(hits: int, of: int, level: float = 0.95) -> tuple[float, float]:
    """Return the exact interval of a share (Clopper & Pearson 1934), (low, high): it holds the truth at least as often as ``level``."""
    from scipy.special import betaincinv  # a tenth of a second to import

    half = (1 - level) / 2
    low = float(betaincinv(hits, of - hits + 1, half)) if hits else 0.0
    high = float(betaincinv(hits + 1, of - hits, 1 - half)) if hits < of else 1.0
    return low, high


def over_seeds(values: Sequence[float | None]) -> Spread:
    """Return mean and standard deviation (n - 1) over seeds; a seed without the figure is not counted."""
    known = [v for v in values if v is not None]
    if not known:
        return Spread(None, None, 0)
    mean = math.fsum(known) / len(known)
    sd = math.sqrt(math.fsum((v - mean) ** 2 for v in known) / (len(known) - 1)) if len(known) > 1 else None
    return Spread(mean, sd, len(known))


def mean_last(values: Sequence[float | None]) -> float | None:
    """Return the mean over the last max(1, round(R / 100)) of R rounds (C12).

    ``values`` are the rows 0 ... R of a run, row 0 the initial model, None for rounds without evaluation; a half is
    rounded to even, as in Python.
    """
    window = max(1, round((len(values) - 1) / 100))
    known = [v for v in values[-window:] if v is not None]
    return math.fsum(known) / len(known) if known else None

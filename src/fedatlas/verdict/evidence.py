"""The evidence for a difference: small samples, Wilson's interval, the paired bootstrap of test rows, and seeds.

A difference above 0 always means that the first model is better, also for figures where lower is better.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedatlas.metrics.intervals import Interval, bootstrap, drawings, over_seeds, proportion, usual_draws
from fedatlas.metrics.quality import Floats
from fedatlas.metrics.resampling import Weighted

LEVEL = 0.95
ROWS, RARE = 30, 10  # fewest test rows, and fewest of the rarer class, for an interval
SEEDS = 3  # fewest seeds for a verdict over seeds
RARITY = frozenset(
    {"auc", "pr_auc", "balanced_accuracy", "macro_f1", "weighted_f1"}
)  # figures that depend on the rarer class
FROM_0_TO_1 = RARITY | {"accuracy"}  # figures of which two differ by at most 1


class Shares(NamedTuple):
    """Rows of equal weight that two models get right or wrong. Means over parties may be fractions."""

    rows: int
    won: float  # rows that only the first model gets right
    lost: float  # rows that only the other gets right

    def bounds(self, level: float = LEVEL) -> tuple[float, float]:
        """Return (low, high), the bounds of a difference of two shares of right answers.

        The difference is the share of rows won minus the share of rows lost. So it lies between minus the largest share
        lost and the largest share won (Clopper and Pearson 1934).
        """
        return -most_of(self.lost, self.rows, level), most_of(self.won, self.rows, level)


class Difference(NamedTuple):
    """The difference between two models' figures, with its uncertainty."""

    value: float
    error: float  # standard error
    freedom: float  # degrees of freedom of Student's t
    shares: Shares | None = None  # of a difference of two shares of rows: bounds that hold for any number of rows

    def ends(self, level: float = LEVEL) -> tuple[float, float]:
        """Return the interval (low, high) of this level."""
        half = student((1 + level) / 2, self.freedom) * self.error if self.error else 0.0
        low, high = self.value - half, self.value + half
        if self.shares is None:
            return low, high
        least, most = self.shares.bounds(level)
        return max(low, least), min(high, most)


class Evidence(NamedTuple):
    """Results of one party's models on test rows. Parties judged on common rows each name the same rows."""

    rows: int  # test rows that count
    models: Mapping[str, Weighted]  # "together", "alone", "trivial" ... -> its figures under weightings of the rows
    rarer: int | None = None  # rows of the rarer class; None if the figure does not depend on it
    hits: Mapping[str, NDArray[Any]] = {}  # model -> whether it is right on each row (n,), for shares of rows

    def enough(self) -> bool:
        """Return whether these rows can carry an interval."""
        return enough(self.rows, self.rarer)

    def informative(self, one: str, other: str) -> int:
        """Return how many rows determine the difference: those where two shares differ, or those of the rarer class."""
        if one in self.hits and other in self.hits:
            return int(np.count_nonzero(self.hits[one] != self.hits[other]))
        return self.rows if self.rarer is None else min(self.rarer, self.rows)

    def shares(self, one: str, other: str) -> Shares | None:
        """Return the rows on which two models disagree; None if the figure is not a share of rows."""
        if one not in self.hits or other not in self.hits:
            return None
        right, wrong = self.hits[one] > 0, self.hits[other] > 0
        return Shares(self.rows, int((right & ~wrong).sum()), int((wrong & ~right).sum()))


def enough(rows: int, rarer: int | None = None) -> bool:
    """Return whether test rows suffice for an interval: 30, and 10 of the rarer class if the figure depends on it."""
    return rows >= ROWS and (rarer is None or rarer >= RARE)


def of_figure(
    figures: Weighted,
    name: str,
    rows: int,
    seed: int,
    *key: int | str,
    rarer: int | None = None,
    hits: float | None = None,
) -> Interval:
    """Return a figure with its 95% interval; without ends if there are too few rows.

    ``hits``: number of rows predicted rightly, for the accuracy of rows without weights, whose interval is Wilson's.
    """
    if hits is not None and rows:
        low, high = proportion(hits, rows)
        return Interval(hits / rows, low if enough(rows) else None, high if enough(rows) else None, LEVEL)
    if enough(rows, rarer):
        return bootstrap(figures, rows, seed, "answer", *key)[name]
    estimate = float(figures(np.ones((1, rows)))[name][0]) if rows else math.nan
    return Interval(estimate if math.isfinite(estimate) else None, None, None, LEVEL)


def drawn_figures(
    judged: Sequence[Evidence], figure: str, seed: int, *key: int | str, draws: int | None = None
) -> dict[str, Floats]:
    """Map each model to (1 + draws, parties): its figure on all common rows first, then in each draw of them.

    All models get the same draws, so differences are paired. nan if the figure is undefined, or a party lacks the
    model.
    """
    rows, names = judged[0].rows, sorted({name for party in judged for name in party.models})
    found: dict[str, list[Floats]] = {name: [] for name in names}
    many = usual_draws(rows * len(judged)) if draws is None else draws
    # one row is drawn as often as the others, since a mean over parties has as many draws as the party with the fewest
    for counts in (np.ones((1, rows)), *(drawings(rows, seed, "answer", *key, draws=many) if rows else ())):
        once: dict[int, Floats] = {}  # parties that share a model ask for its figures once
        for name in names:
            columns = [_figure_of(party.models.get(name), counts, figure, once) for party in judged]
            found[name].append(np.stack(columns, axis=1))
    return {name: np.concatenate(each) for name, each in found.items()}


def _figure_of(model: Weighted | None, counts: Floats, figure: str, once: dict[int, Floats]) -> Floats:
    if model is None:
        return np.full(len(counts), np.nan)
    if id(model) not in once:
        once[id(model)] = model(counts)[figure]
    return once[id(model)]


def of_draws(gap: Floats, informative: int, shares: Shares | None = None) -> Difference | None:
    """Return the difference of (1 + draws,): its value, and the bootstrap's standard error with Student's t.

    None if it is undefined. If few rows determine it, the bootstrap's spread is too small. The factor and the degrees
    of freedom correct that, as for a mean of as many values. With ``shares`` the interval keeps their bounds. If no row
    tells two models apart, the bounds are the interval, and the error is that of one such row.
    """
    value, known = float(gap[0]), gap[1:][np.isfinite(gap[1:])]
    if not math.isfinite(value):
        return None
    return _with_few(value, float(known.std()) if len(known) > 1 else 0.0, informative, shares)


def of_counts(shares: Shares) -> Difference:
    """Return the difference of two shares of right answers from its counts, with the spread that the draws of `of_draws` estimate."""
    n, apart = shares.rows, shares.won + shares.lost
    value = (shares.won - shares.lost) / n
    return _with_few(value, math.sqrt(max(apart / n - value**2, 0.0) / n), round(apart), shares)


def _with_few(value: float, spread: float, informative: int, shares: Shares | None) -> Difference:
    """Return a difference whose spread is corrected for the few rows that determine it."""
    n = max(informative, 2)
    if shares is not None and shares.rows and not shares.won + shares.lost:
        return Difference(value, 1 / shares.rows, 1, shares)
    return Difference(value, spread * math.sqrt(n / (n - 1)), n - 1, shares)


def mean_gap(each: Sequence[Floats], weights: Sequence[float]) -> Floats:
    """Return the weighted mean over parties of their differences, (1 + draws,) each, without those undefined in a draw."""
    fewest = min(len(gap) for gap in each)
    table, w = np.stack([gap[:fewest] for gap in each], axis=1), np.asarray(weights, dtype=np.float64)
    there = np.isfinite(table)
    total = (there * w).sum(1)
    return np.asarray(np.where(there, table, 0.0) @ w / np.where(total, total, np.nan))


def shares_of_mean(each: Sequence[Shares | None], own: bool) -> Shares | None:
    """Return the shares of a mean over parties: on their own rows, or on common rows, of which each counts in part."""
    there = [one for one in each if one is not None]
    if len(there) < len(each):
        return None
    won, lost = math.fsum(one.won for one in there), math.fsum(one.lost for one in there)
    if own:
        return Shares(sum(one.rows for one in there), won, lost)
    return Shares(there[0].rows, won / len(there), lost / len(there))


def of_seeds(values: Sequence[float], drawn: float = 0.0, rows_error: float = 0.0) -> Difference | None:
    """Return the mean of a difference over seeds, with Student's t; None for fewer than three.

    ``drawn``: test rows per training row if each seed draws its test rows. The training rows of seeds then overlap, so
    the variance is multiplied by 1/n + test/train (Nadeau and Bengio 2003). ``rows_error``: if all seeds share their
    test rows, the standard error that these rows cause. More seeds do not lessen it.
    """
    spread = over_seeds(values)
    if spread.n < SEEDS or spread.mean is None or spread.sd is None:
        return None
    return Difference(spread.mean, math.hypot(spread.sd * math.sqrt(1 / spread.n + drawn), rows_error), spread.n - 1)


def most_of(hits: float, rows: int, level: float = LEVEL) -> float:
    """Return the upper end of the interval of Clopper and Pearson for a share of rows."""
    from scipy.special import betaincinv

    return 1.0 if hits >= rows else float(betaincinv(hits + 1, rows - hits, (1 + level) / 2))


def at_least(hits: int, rows: int, share: float) -> float:
    """Return the probability that at least ``hits`` of ``rows`` rows are of a class that makes up ``share`` of all rows."""
    from scipy.special import betainc

    return 0.0 if hits > rows else float(betainc(hits, rows - hits + 1, share))


def student(p: float, freedom: float) -> float:
    """Return the quantile of Student's t."""
    from scipy.special import ndtri, stdtrit  # a tenth of a second to import, at the end of a run

    return float(ndtri(p) if math.isinf(freedom) else stdtrit(freedom, p))


def chance(found: Difference) -> float:
    """Return the two-sided p-value of a difference: how often chance by itself makes one as large."""
    from scipy.special import stdtr

    if not found.error:
        return 1.0 if not found.value else 0.0
    return float(2 * stdtr(found.freedom, -abs(found.value) / found.error))

"""Accuracies of several arms on the same judged rows, and how far others would lie: other clients or rows, and other seeds.

Judged rows are in folds, and each fold is judged by a model of its own seed. So the differences between arms vary from fold to
fold by their rows and by their seeds; what the rows do not explain is the seeds' part.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from fedatlas.rng import numpy_stream
from fedatlas.study.measurements import Floats, Ints

DRAWS = 4000
CLIENTS = 10  # from so many on, clients are drawn, not rows
SELDOM = 10  # judged rows on which two arms differ, below which the draws of rows are too narrow for them
UNSEEN = 3  # rows on which two arms would differ, where they differ on none (rule of three, 95%)
PRIOR_SD = 0.005  # of an accuracy between seeds, before any run: half a point
PRIOR_DF = 4  # its weight in the arms' common variance, and the weight of that in the variance of each arm, as degrees of freedom


class ArmRows(NamedTuple):
    """The scores of J arms on the same n judged rows."""

    score: Floats  # (J, n)
    weight: Floats  # (n,)
    fold: Ints  # (n,)
    client: Ints  # (n,)

    def arms(self, kept: Ints) -> ArmRows:
        """Return the same of some of the arms."""
        return self._replace(score=self.score[kept])

    def means(self) -> Floats:
        """Return (J,) weighted means over all rows."""
        return np.asarray(self.score @ self.weight / self.weight.sum())


class RaceEstimates(NamedTuple):
    """Accuracies of J arms, and B draws of how far the truth may lie from them, the same clients, rows and seeds for all arms."""

    value: Floats  # (J,)
    rows: Floats  # (B, J) by drawing clients or rows
    seeds: Floats  # (B, J) by drawing seeds
    unit: Literal["client", "row"]
    units: int

    @property
    def draws(self) -> Floats:
        """(B, J) both parts together."""
        return np.asarray(self.rows + self.seeds)

    def errors(self) -> Floats:
        """Return (J, J) standard errors of the differences between arms."""
        return deviations(self.draws)


def deviations(draws: Floats) -> Floats:
    """Return (J, J) standard deviations of the differences between columns of ``draws`` (B, J)."""
    covariance = np.atleast_2d(np.cov(draws, rowvar=False))
    own = covariance.diagonal()
    return np.sqrt(np.maximum(own[:, None] + own[None, :] - 2 * covariance, 0.0))


def estimated(rows: ArmRows, seed: int, draws: int = DRAWS, *, same_clients: bool = False) -> RaceEstimates:
    """Return the accuracies of the arms with their errors; ``seed``: of the draws.

    With ten clients or more the errors are those for other clients like them; ``same_clients``: for these clients, on other rows.
    """
    stream = numpy_stream(seed, "race", rows.score.shape[0], rows.score.shape[1])
    clients = np.unique(rows.client)
    by_client = len(clients) >= CLIENTS and not same_clients
    moved = drawn_clients(rows, clients, stream, draws) if by_client else drawn_rows(rows, stream, draws)
    moved = moved + unseen_rows(rows, seed, draws)
    units = len(clients) if by_client else len(rows.weight)
    return RaceEstimates(rows.means(), moved, drawn_seeds(rows, stream, draws), "client" if by_client else "row", units)


def drawn_rows(rows: ArmRows, stream: np.random.Generator, draws: int) -> Floats:
    """Return (B, J) deviations of the means over rows drawn with replacement.

    Rows with the same weight and the same scores under all arms are drawn as one multinomial, which is the same draw.
    """
    kinds, counts = np.unique(np.vstack([rows.score, rows.weight]).T, axis=0, return_counts=True)
    n = int(counts.sum())
    often = stream.multinomial(n, counts / n, size=draws)
    return _moved(often, kinds[:, :-1] * kinds[:, -1:], kinds[:, -1], rows.means(), n, stream)


def drawn_clients(rows: ArmRows, clients: Ints, stream: np.random.Generator, draws: int) -> Floats:
    """Return (B, J) deviations of the means over the rows of clients drawn with replacement."""
    place = np.searchsorted(clients, rows.client)
    sums = np.stack([np.bincount(place, one * rows.weight) for one in rows.score], axis=1).astype(float)  # (K, J)
    often = stream.multinomial(len(clients), np.full(len(clients), 1 / len(clients)), size=draws)
    weights = np.bincount(place, rows.weight).astype(float)
    return _moved(often, sums, weights, rows.means(), len(clients), stream)


def unseen_rows(rows: ArmRows, seed: int, draws: int) -> Floats:
    """Return (B, J) further deviations of arms that differ from another one on fewer than `SELDOM` rows; 0 of the others.

    Rows that are drawn again never differ where none did, so arms that agree on 36 rows would seem to be the same. The variance of
    their difference is that of `UNSEEN` more rows.
    """
    differ = (rows.score[:, None] != rows.score[None]).sum(axis=2)
    np.fill_diagonal(differ, SELDOM)
    weight = np.square(rows.weight).sum() / np.square(rows.weight.sum())  # 1 / n of rows that count alike
    sd = np.where((differ < SELDOM).any(axis=1), weight * np.sqrt(UNSEEN / 2), 0.0)
    return np.asarray(numpy_stream(seed, "race", "unseen", len(sd)).standard_normal((draws, len(sd))) * sd)


def _moved(
    often: Ints, sums: Floats, weights: Floats, means: Floats, units: int, stream: np.random.Generator
) -> Floats:
    """Return draws of the means less the means, with the tails of Student's t for so many units.

    Each draw is scaled by what the variance of so few units may be off; the bootstrap itself is too narrow by sqrt(1 - 1/units).
    """
    off = (often @ sums) / np.maximum(often @ weights, 1e-12)[:, None] - means
    scale = np.sqrt(units / stream.chisquare(max(units - 1, 1), len(off)))
    return np.asarray(off * scale[:, None])


def drawn_seeds(rows: ArmRows, stream: np.random.Generator, draws: int) -> Floats:
    """Return (B, J) deviations of the means with other seeds; 0 with one arm or one fold."""
    variance, folds = between_seeds(rows)
    if not variance.any():
        return np.zeros((draws, len(variance)))
    df = folds - 1 + PRIOR_DF
    scale = np.sqrt(df / stream.chisquare(df, draws))
    return np.asarray(stream.standard_normal((draws, len(variance))) * np.sqrt(variance / folds) * scale[:, None])


def between_seeds(rows: ArmRows) -> tuple[Floats, int]:
    """Return (J,) variances of the arms' accuracy between seeds, and the number of folds.

    The residuals of the additive model (arm + fold) hold the seeds' part and the rows' part of the interaction. The rows' part is
    known from the rows themselves, and is taken off. With two or three folds an arm's own variance is hardly known: it is
    shrunk towards that of all arms, and this towards `PRIOR_SD`.
    """
    many, names = len(rows.score), np.unique(rows.fold)
    folds = len(names)
    if many < 2 or folds < 2:
        return np.zeros(many), folds
    parts = [rows.fold == fold for fold in names]
    means = np.stack([rows.score[:, at] @ rows.weight[at] / rows.weight[at].sum() for at in parts], axis=1)  # (J, S)
    rest = means - means.mean(axis=1, keepdims=True) - means.mean(axis=0) + means.mean()
    found = np.square(rest).sum(axis=1) * many / ((many - 1) * (folds - 1))
    expected = np.mean([_rows_part(rows.score[:, at], rows.weight[at]) for at in parts], axis=0)

    common = shrunk(max(float(np.mean(found - expected)), 0.0), (many - 1) * (folds - 1), PRIOR_SD**2)
    return np.array([shrunk(max(float(one), 0.0), folds - 1, common) for one in found - expected]), folds


def shrunk(found: float, df: int, towards: float) -> float:
    """Return the mean of a variance with its degrees of freedom and another one with `PRIOR_DF`."""
    return (df * found + PRIOR_DF * towards) / (df + PRIOR_DF)


def _rows_part(score: Floats, weight: Floats) -> Floats:
    """Return (J,) the variance that the rows of one fold give to an arm's difference from the mean of all arms."""
    many = len(score)
    off = score - score.mean(axis=0)
    off = off - (off @ weight / weight.sum())[:, None]
    return np.asarray((np.square(off) @ np.square(weight)) / np.square(weight.sum()) * many / (many - 1))

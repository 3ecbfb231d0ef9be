"""The noise between the paired seeds of a study, with a variance for each setting, shrunken (Smyth 2004).

The model: in setting i the noise of its choices has the covariance ``scales[i] * covariance``. The settings' variances vary around a
common one as a scaled inverse chi-square does, with d0 degrees of freedom, both estimated from the settings (limma's moments of the
logarithms). A setting's variance is then the mean of its own and the common one, weighted by their degrees of freedom, and a
difference of two choices over its standard error follows Student's t with the sum of both. Only differences between choices
count: what all choices of a setting share in a seed is left out. Where seeds draw their test rows, their training rows overlap, and a
mean over seeds varies by more than its seeds show (Nadeau and Bengio 2003): by 1/n + test/train of their variance instead of 1/n.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np

from fedatlas.study.measurements import Bools, Floats

SWEEPS = 30  # of scales and covariance in turn
CLOSE = 1e-4  # largest change of a logarithm at the end
LEAST = 1e-6  # smallest variance of a setting, as a share of the settings' median


class SeedNoise(NamedTuple):
    """Variation between paired seeds of J choices in n settings; ``df`` 0: one seed, unknown."""

    covariance: Floats  # (J, J), of a setting whose scale is 1, the scales' mean
    df: int  # degrees of freedom of the covariance
    scales: Floats  # (n,) shrunken variances, as multiples of the covariance
    freedom: Floats  # (n,) degrees of freedom of Student's t in each setting
    drawn: Floats  # (n,) test rows per training row where seeds draw their test rows, else 0

    def of(self, setting: int) -> Floats:
        """Return (J, J) the covariance of one setting."""
        found: Floats = self.covariance * self.scales[setting]
        return found

    def of_means(self, setting: int, there: Bools) -> Floats:
        """Return (J, J) factors from a setting's covariance to that of means over the seeds that are ``there`` (J, seeds)."""
        found: Floats = shared(there) + self.drawn[setting]
        return found


def noise_between(values: Floats, drawn: Floats | None = None) -> SeedNoise:
    """Return the noise of ``values`` (settings, choices, seeds); for a pair of choices from the seeds that both have in a setting.

    ``drawn`` (settings,): test rows per training row where seeds draw their test rows (`test_rows.drawn_shares`); left out: 0.
    """
    products, freedom = _products(values)
    scales, df = np.ones(len(values)), np.ones(len(values))
    covariance = _covariance(products, freedom, scales)
    for _ in range(SWEEPS):  # each given the other; with raw variances, a setting without noise by chance would decide
        before = scales
        scales, df = shrunken(*_own_scales(products, freedom, covariance))
        scales = scales / scales.mean() if len(scales) else scales
        covariance = _covariance(products, freedom, scales)
        if not len(scales) or np.abs(np.log(scales / before)).max() < CLOSE:
            break
    total = int(freedom.sum(axis=0).diagonal().min(initial=np.inf)) if values.shape[1] else 0
    return SeedNoise(covariance, total, scales, np.maximum(df, 1.0), np.zeros(len(values)) if drawn is None else drawn)


def shrunken(own: Floats, df: Floats) -> tuple[Floats, Floats]:
    """Return (n,) variances ``own`` with ``df`` degrees of freedom, drawn towards their common one, and their degrees of freedom.

    These are at most those of all settings together. A setting without seeds has the common variance.
    """
    from scipy.special import digamma, polygamma

    known = (df > 0) & (own > 0)
    if not known.any():
        return np.ones(len(own)), np.full(len(own), 1e6)
    floor = np.maximum(own, LEAST * np.median(own[known]))
    half = np.maximum(df, 1e-3) / 2
    logs = (np.log(floor) - digamma(half) + np.log(half))[df > 0]
    beyond = logs.var(ddof=1) - polygamma(1, half[df > 0]).mean() if len(logs) > 1 else np.inf
    if len(logs) == 1:
        d0, s0 = 0.0, float(floor[df > 0][0])
    elif beyond <= 1e-3:
        d0, s0 = 1e6, float((own * df).sum() / df.sum())
    else:
        d0 = 2 * _inverse_trigamma(float(beyond))
        s0 = float(np.exp(logs.mean() + digamma(d0 / 2) - np.log(d0 / 2)))
    both = np.where(d0 + df > 0, (d0 * s0 + df * own) / np.maximum(d0 + df, 1e-300), s0)
    return both, np.minimum(d0 + df, df.sum())


def shared(there: Bools) -> Floats:
    """Return (J, J) factors from a covariance of noise to that of means over seeds, for the choices and seeds ``there`` (J, seeds)."""
    seen = there.astype(float)
    count = np.maximum(seen.sum(axis=1), 1)
    found: Floats = seen @ seen.T / (count[:, None] * count[None, :])
    return found


def root_of(covariance: Floats) -> Floats:
    """Return a lower root L with L L' = covariance, also if rank-deficient; unlike eigenvectors it is stable under small changes."""
    size = float(covariance.diagonal().max(initial=0.0))
    root = np.linalg.cholesky(covariance + (1e-12 * size + 1e-200) * np.eye(len(covariance)))
    return np.asarray(root, dtype=np.float64)


def variances_of_pairs(covariance: Floats) -> Floats:
    """Return (J, J) variances of the difference of each pair."""
    own = covariance.diagonal()
    found: Floats = np.maximum(own[:, None] + own[None, :] - 2 * covariance, 0.0)
    return found


def _products(values: Floats) -> tuple[Floats, Floats]:
    """Return (settings, J, J) sums of products of centred values over the seeds that a pair has, and their degrees of freedom."""
    choices = values.shape[1]
    products = np.zeros((len(values), choices, choices))
    freedom = np.zeros_like(products)
    for a, b in itertools.combinations_with_replacement(range(choices), 2):
        both = np.isfinite(values[:, a]) & np.isfinite(values[:, b])
        number = both.sum(axis=1)
        safe = np.maximum(number, 1)[:, None]
        x, y = (np.where(both, values[:, c], 0.0) for c in (a, b))
        x, y = (np.where(both, v - v.sum(axis=1, keepdims=True) / safe, 0.0) for v in (x, y))
        products[:, a, b] = products[:, b, a] = (x * y).sum(axis=1)
        freedom[:, a, b] = freedom[:, b, a] = np.maximum(number - 1, 0)
    return products, freedom


def _covariance(products: Floats, freedom: Floats, scales: Floats) -> Floats:
    """Return (J, J) the covariance, pooled over settings divided by their scales."""
    total = freedom.sum(axis=0)
    summed = (products / scales[:, None, None]).sum(axis=0)
    covariance = np.divide(summed, total, out=np.zeros_like(summed), where=total > 0)
    roots, vectors = np.linalg.eigh(covariance)  # with unequal seeds it may have negative eigenvalues
    mended: Floats = (vectors * np.maximum(roots, 0.0)) @ vectors.T
    return mended


def _own_scales(products: Floats, freedom: Floats, covariance: Floats) -> tuple[Floats, Floats]:
    """Return (n,) the mean over a setting's pairs of their variance over the pooled one, and its degrees of freedom.

    The mean is a quadratic form of the noise: its degrees of freedom are Satterthwaite's.
    """
    pooled = variances_of_pairs(covariance)
    told = np.triu(pooled > 1e-12 * max(float(covariance.diagonal().max(initial=0.0)), 1e-300), 1)
    weight = np.where(told, 1.0 / np.where(told, pooled, 1.0), 0.0)
    squares = products.diagonal(axis1=1, axis2=2)
    squares = np.maximum(squares[:, :, None] + squares[:, None, :] - 2 * products, 0.0)
    own, df = np.ones(len(products)), np.zeros(len(products))
    for i, seeds in enumerate(freedom):
        here = weight * (seeds > 0)
        total = float((seeds * (here > 0)).sum())
        if total:
            own[i] = (here * squares[i]).sum() / total
            form = -(here + here.T)
            np.fill_diagonal(form, -form.sum(axis=1))
            spread = form @ covariance
            df[i] = np.trace(spread) ** 2 / np.square(np.linalg.eigvals(spread).real).sum() * total / (here > 0).sum()
    return own, df


def _inverse_trigamma(value: float) -> float:
    """Return x with trigamma(x) = value, by Newton's method for its inverse (Smyth 2004, appendix)."""
    from scipy.special import polygamma

    if value > 1e7:
        return float(value**-0.5)
    x = 0.5 + 1 / value
    for _ in range(50):
        now = float(polygamma(1, x))
        step = now * (1 - now / value) / float(polygamma(2, x))
        x += step
        if abs(step) < 1e-10 * x:
            break
    return x

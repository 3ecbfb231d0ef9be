"""Four ways to predict a choice's figures in a federation that was not measured, from measured ones, within one choice (X12).

`constant` is the mean of the measured settings: the same everywhere. `ridge` is a linear fit to the features, drawn towards that mean
(Hoerl and Kennard 1970). `inverse_distance` is the mean of the measured settings weighted by the inverse squares of their distances
(Shepard 1968). `gaussian` is a Gaussian process (Rasmussen and Williams 2006, chapters 2 and 5): squared exponential kernel with a
length for each feature, a constant mean, the noise between seeds, and a variance not explained by the settings. All outputs (the
rounds of a curve) share its kernel. All are linear in the measurements, so that a prediction is a row of weights; only NumPy is
needed.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fedatlas.study.measurements import Floats

# In standard deviations of a feature; at 16 it hardly matters. Lengths below 2 would identify single data sets by their classes,
# which predicts these data sets better, but new data, such as a user's, worse.
LENGTHS = (2.0, 4.0, 16.0)
LEFT_OVER = (0.01, 0.05, 0.2, 1.0, 3.0)  # variance not explained by the features, as a share of the explained one
POWER = 2
RIDGE = 0.1  # weight of the penalty per setting: a feature that varies by itself keeps 1 / 1.1 of its slope


class Kernel(NamedTuple):
    """Hyperparameters of a Gaussian process: one length per feature, the share of unexplained variance, the noise of seeds."""

    lengths: Floats  # (features,)
    left_over: float
    noise: float  # of a setting's mean over seeds, as a share of the variance between settings


def scales(x: Floats) -> Floats:
    """Return (features,) divisors of the features before distances are computed: standard deviations, 1 for constant features."""
    spread: Floats = x.std(axis=0)
    return np.where(spread > 1e-12, spread, 1.0)


def constant(x: Floats, at: Floats) -> Floats:
    """Return (points, settings) equal weights of the settings ``x`` (settings, features)."""
    return np.full((len(at), len(x)), 1.0 / len(x))


def ridge(x: Floats, at: Floats) -> Floats:
    """Return (points, settings) weights of a linear fit with an intercept, its slopes penalised; both divided by `scales`."""
    middle = x.mean(axis=0)
    centred = x - middle
    penalised = centred.T @ centred + RIDGE * len(x) * np.eye(x.shape[1])
    found: Floats = constant(x, at) + (at - middle) @ np.linalg.solve(penalised, centred.T)
    return found


def inverse_distance(x: Floats, at: Floats) -> Floats:
    """Return (points, settings) weights of the settings ``x`` (settings, features) for the points ``at``; both divided by `scales`."""
    squares = np.square(at[:, None, :] - x[None, :, :]).sum(axis=-1)
    exact = squares < 1e-18
    weights = np.where(exact.any(axis=1, keepdims=True), exact, 1.0 / np.maximum(squares, 1e-18) ** (POWER / 2))
    shares: Floats = weights / weights.sum(axis=1, keepdims=True)
    return shares


def gaussian(x: Floats, at: Floats, kernel: Kernel) -> Floats:
    """Return (points, settings) weights of the settings under a Gaussian process with a constant mean, estimated by least squares."""
    covariance = _noisy(x, kernel)
    across = _covariance(at, x, kernel.lengths)
    solved = np.asarray(np.linalg.solve(covariance, np.column_stack([across.T, np.ones(len(x))])), dtype=np.float64).T
    mean = solved[-1] / solved[-1].sum()
    # m + k' C^-1 (y - m 1) with m = mean' y
    weights: Floats = solved[:-1] + (1.0 - solved[:-1].sum(axis=1))[:, None] * mean[None, :]
    return weights


def left_out(x: Floats, kernel: Kernel) -> Floats:
    """Return (settings, settings) weights for each setting from only the others, in closed form; the diagonal is 0.

    With Q = C^-1 - C^-1 1 1' C^-1 / 1' C^-1 1, the error of a setting's prediction from the others is (Q y)_i / Q_ii (Dubrule 1983).
    """
    covariance = _noisy(x, kernel)
    inverse = np.asarray(np.linalg.inv(covariance), dtype=np.float64)
    sums = inverse.sum(axis=1)
    q = inverse - np.outer(sums, sums) / sums.sum()
    weights: Floats = np.eye(len(x)) - q / q.diagonal()[:, None]
    np.fill_diagonal(weights, 0.0)
    return weights


def fit(x: Floats, y: Floats, noise: float) -> Kernel:
    """Return the kernel with the largest likelihood of ``y`` (settings, outputs), by coordinate search over lengths and left-over variance.

    ``noise`` is the variance of a setting's mean over seeds divided by the variance between settings. Outputs are scaled to variance 1.
    """
    best = Kernel(np.full(x.shape[1], 2.0), 0.05, float(np.clip(noise, 1e-4, 1.0)))
    if len(x) < 4:
        return best
    centred = y - y.mean(axis=0)
    spread = centred.std(axis=0)
    scaled = centred[:, spread > 1e-12] / spread[spread > 1e-12]
    if not scaled.size:
        return best
    score = _likelihood(x, scaled, best)
    for _sweep in range(2):
        before = score
        for place in range(x.shape[1] + 1):
            for value in LENGTHS if place < x.shape[1] else LEFT_OVER:
                tried = _changed(best, place, value)
                if (found := _likelihood(x, scaled, tried)) > score + 1e-9:
                    best, score = tried, found
        if score <= before + 1e-6:
            break
    return best


def _changed(kernel: Kernel, place: int, value: float) -> Kernel:
    """Return the kernel with one length, or at the last place the left-over variance, changed."""
    if place == len(kernel.lengths):
        return kernel._replace(left_over=value)
    lengths = kernel.lengths.copy()
    lengths[place] = value
    return kernel._replace(lengths=lengths)


def _covariance(a: Floats, b: Floats, lengths: Floats) -> Floats:
    """Return exp(-|a - b|^2 / 2) with each feature divided by its length."""
    x, y = a / lengths, b / lengths
    squares = np.square(x).sum(axis=1)[:, None] + np.square(y).sum(axis=1)[None, :] - 2 * x @ y.T
    found: Floats = np.exp(-np.maximum(squares, 0.0) / 2)
    return found


def _noisy(x: Floats, kernel: Kernel) -> Floats:
    """Return the covariance of the measurements in the settings ``x``."""
    found: Floats = _covariance(x, x, kernel.lengths) + (kernel.left_over + kernel.noise) * np.eye(len(x))
    return found


def _likelihood(x: Floats, y: Floats, kernel: Kernel) -> float:
    """Return the log marginal likelihood, with the scale of the process optimal for all outputs together."""
    covariance = _noisy(x, kernel)
    root: Floats = np.asarray(np.linalg.cholesky(covariance), dtype=np.float64)
    z = np.linalg.solve(root, np.column_stack([y, np.ones(len(x))]))
    ones, z = z[:, -1], z[:, :-1]
    z = z - np.outer(ones, ones @ z / (ones @ ones))
    size = float(np.square(z).mean())
    log_det = 2 * float(np.log(root.diagonal()).sum())
    return -0.5 * int(y.shape[1]) * (len(x) * math.log(max(size, 1e-300)) + log_det)

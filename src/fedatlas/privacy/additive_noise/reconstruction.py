"""The distribution of a column before noise, from values with noise and the law of the noise, by EM; and how private it left a value.

The density of x is constant in each of m cells of its range: p_k is the probability of cell k, and

    p_k <- (1/n) sum_i  p_k a_ik / sum_j p_j a_ij,     a_ik = mean of f_Y(z_i - t) over t in cell k,

which never lowers the likelihood prod_i sum_k p_k a_ik. Differential entropies h are in bits:

    Pi(X) = 2^h(X): a value is as hard to guess as one that is uniform in an interval of this length;
    Pi(X|Z) = 2^h(X|Z) for somebody who sees z;   loss = 1 - 2^(h(X|Z) - h(X)) = 1 - 2^(-I(X;Z)),   I(X;Z) = h(Z) - h(Y).

Deviation: cells in place of points, so that a value anywhere in the range has a density above 0 under uniform noise.

Source: Agrawal and Aggarwal, PODS 2001. P5.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

Law = Literal["uniform", "gaussian"]
Array = npt.NDArray[np.float64]
FINE = 4096  # cells on which the entropy of z is integrated


class ColumnDensity(NamedTuple):
    """A density on the cells of a range."""

    edges: Array  # (m + 1,)
    p: Array  # (m,) probability of each cell
    likelihoods: tuple[float, ...]  # log-likelihood of the values before each step

    @property
    def density(self) -> Array:
        """Density in each cell."""
        out: Array = self.p / np.diff(self.edges)
        return out


class ColumnPrivacy(NamedTuple):
    """How well a value of one column can be guessed."""

    privacy: float  # Pi(X), in the column's unit
    privacy_left: float  # Pi(X|Z)
    loss: float  # 1 - Pi(X|Z) / Pi(X)


def reconstruct(
    z: Array,
    low: float,
    high: float,
    law: Law,
    s: float,
    cells: int = 20,
    steps: int = 500,
    gain: float = 0.1,
) -> ColumnDensity:
    """Return the density of x in [low, high] from ``z`` (n,), numbers with noise of this law and scale ``s`` > 0.

    Values that no x of the range explains are left out. Ends once a step raises the log-likelihood of all values by less than
    ``gain``: the last steps would fit the density to the noise of these values.
    """
    edges = np.linspace(low, high, cells + 1)
    a = kernel(z, edges, law, s)
    a = a[a.sum(1) > 0]
    p, likelihoods = np.full(cells, 1 / cells), []
    for _ in range(steps if len(a) else 0):
        mixed = a @ p
        likelihoods.append(float(np.log(mixed).sum()))
        if likelihoods[1:] and likelihoods[-1] - likelihoods[-2] < gain:
            break
        p = p * (a / mixed[:, None]).mean(0)
    return ColumnDensity(edges, p, tuple(likelihoods))


def privacy_of(found: ColumnDensity, law: Law, s: float) -> ColumnPrivacy:
    """Return the privacy of a column with this density, with noise of this law and scale ``s`` > 0."""
    p, width = found.p[found.p > 0], float(found.edges[1] - found.edges[0])
    before = -float((p * np.log2(p / width)).sum())
    reach = s if law == "uniform" else 8 * s
    z = np.linspace(found.edges[0] - reach, found.edges[-1] + reach, FINE + 1)
    middle, step = (z[1:] + z[:-1]) / 2, float(z[1] - z[0])
    f = kernel(middle, found.edges, law, s) @ found.p
    f = f[f > 0] / (f.sum() * step)
    h_z = -float((f * np.log2(f)).sum() * step)
    h_y = math.log2(2 * s) if law == "uniform" else 0.5 * math.log2(2 * math.pi * math.e * s * s)
    told = max(h_z - h_y, 0.0)
    return ColumnPrivacy(2**before, 2 ** (before - told), 1 - 2**-told)


def kernel(z: Array, edges: Array, law: Law, s: float) -> Array:
    """Return (n, m) the mean density of z given an x in each cell."""
    from scipy.special import ndtr

    def below(y: Array) -> Array:
        out: Array = np.clip((y / s + 1) / 2, 0, 1) if law == "uniform" else ndtr(y / s)
        return out

    at = below(z[:, None] - edges[None, :])
    out: Array = (at[:, :-1] - at[:, 1:]) / np.diff(edges)
    return out

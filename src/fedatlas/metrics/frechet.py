"""Distances between two sets of features, such as those of generated and of real pictures (A3).

Sources: FID: Heusel, Ramsauer, Unterthiner, Nessler, Hochreiter, NeurIPS 2017. KID: Binkowski, Sutherland, Arbel, Gretton, ICLR 2018.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import svdvals

from fedatlas.errors import DataError
from fedatlas.metrics.quality import Floats

BLOCK = 1000  # rows of a kernel matrix that are held at a time


def frechet_distance(a: ArrayLike, b: ArrayLike) -> float:
    """Return the squared Frechet distance of the normal laws with the means and covariances of ``a`` and ``b``, both (N, D).

    ``|mu_a - mu_b|^2 + Tr(S_a + S_b - 2 (S_a S_b)^(1/2))``, the covariances over N - 1. With ``S_a = A'A`` and ``S_b = B'B`` the
    trace of the root is the sum of the singular values of ``A B'``. No root of a near-zero eigenvalue is taken, so fewer rows than
    features cost no digits. The distance falls with N even where both laws are equal: compare figures of equal N only.

    DataError unless both are matrices of finite numbers with equal shapes and at least two rows.
    """
    a, b = _matched(a, b)
    shift = a.mean(0) - b.mean(0)
    root_a, root_b = ((np.linalg.qr(x - x.mean(0), mode="r") / np.sqrt(len(x) - 1)) for x in (a, b))
    shared = svdvals(root_a @ root_b.T).sum()
    return max(float(shift @ shift + (root_a**2).sum() + (root_b**2).sum() - 2 * shared), 0.0)


def kernel_distance(a: ArrayLike, b: ArrayLike) -> float:
    """Return the unbiased squared maximum mean discrepancy of ``a`` and ``b``, both (N, D), under ``(x'y / D + 1)^3``: KID.

    Its expectation does not depend on N and is 0 for equal laws, so a value may be negative. Computed over all rows, not over random
    blocks of them. DataError as in `frechet_distance`.
    """
    a, b = _matched(a, b)
    n = len(a)
    inside = sum(_kernel_sum(x, x) - float(((np.einsum("nd,nd->n", x, x) / x.shape[1] + 1) ** 3).sum()) for x in (a, b))
    return inside / (n * (n - 1)) - 2 * _kernel_sum(a, b) / n**2


def _kernel_sum(a: Floats, b: Floats) -> float:
    """Return the sum of the kernel over all pairs of rows."""
    blocks = (a[i : i + BLOCK] for i in range(0, len(a), BLOCK))
    return sum(float(((x @ b.T / b.shape[1] + 1) ** 3).sum()) for x in blocks)


def _matched(a: ArrayLike, b: ArrayLike) -> tuple[Floats, Floats]:
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if x.ndim != 2 or y.ndim != 2 or x.shape[1] != y.shape[1] or not x.shape[1]:
        raise DataError(
            f"distances compare features (N, D) of one kind, but these have shapes {x.shape} and {y.shape}."
        )
    if len(x) != len(y):
        raise DataError(
            f"{len(x)} and {len(y)} rows cannot be compared, because the distance depends on their number: give equally many."
        )
    if len(x) < 2:
        raise DataError("a covariance needs at least two rows on each side.")
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise DataError("features hold NaN or infinity, so their distance is not defined.")
    return x, y

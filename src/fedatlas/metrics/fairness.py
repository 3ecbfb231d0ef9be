"""Figures of each party, and whether models drift apart as their labels do (C12, C14)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_COLUMNS = 1 << 16  # numbers of each model compared at once, to avoid a float64 copy of 100 large models


def client_summary(values: Sequence[float | None], sizes: Sequence[float]) -> dict[str, float | None]:
    """Return ``{mean, p10, min}`` of one figure over clients: the mean weighted by test size, the 10th percentile, the worst.

    The percentile counts every client once (linear interpolation between clients). A client without test rows, or whose
    figure is None, is left out. None if no client remains.
    """
    pairs = [(v, s) for v, s in zip(values, sizes, strict=True) if v is not None and s > 0]
    if not pairs:
        return {"mean": None, "p10": None, "min": None}
    v, s = np.array(pairs, dtype=np.float64).T
    return {"mean": float(v @ s / s.sum()), "p10": float(np.percentile(v, 10)), "min": float(v.min())}


def squared_distances(rows: NDArray[Any]) -> NDArray[np.float64]:
    """Map (K, d) to ||row_k - row_j||^2 for every pair k < j, (K (K - 1) / 2,), summed in float64."""
    from scipy.spatial.distance import pdist  # half a second to import, for a figure that few runs ask for

    total = np.zeros(len(rows) * (len(rows) - 1) // 2)
    for at in range(0, rows.shape[1], _COLUMNS):
        total += pdist(rows[:, at : at + _COLUMNS].astype(np.float64), "sqeuclidean")
    return total


def drift_correlation(models: NDArray[Any], labels: NDArray[Any]) -> float | None:
    """Return Spearman's rank correlation, over pairs of clients, of ||w_k - w_j||^2 and ||P_k - P_j||^2 (S3 eq. 3.7-3.8).

    ``models`` (K, d) flattened local models, ``labels`` (K, C) label shares. S3 states that the two are proportional;
    this measures whether they are at least in the same order. None for fewer than 3 clients, or if one of the
    distances is the same for all pairs.
    """
    from scipy.stats import rankdata

    if len(models) < 3:
        return None
    drift, label = rankdata(squared_distances(models)), rankdata(squared_distances(labels))
    if np.ptp(drift) == 0 or np.ptp(label) == 0:
        return None
    return float(np.corrcoef(drift, label)[0, 1])

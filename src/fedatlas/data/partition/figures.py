"""The figures of a partition: sizes, class histograms, distances, inequality."""

from __future__ import annotations

import numpy as np

from fedatlas.data.dataset import Partition
from fedatlas.data.partition.common import Ints
from fedatlas.registry import PlainValues


def histogram(partition: Partition, labels: np.ndarray, classes: int) -> Ints:
    """Return the rows of each class at each client, (K, classes)."""
    return np.stack([np.bincount(labels[rows], minlength=classes) for rows in partition.clients])


def distances(counts: Ints, overall: np.ndarray) -> np.ndarray:
    """Return the total variation distance of each client's class mixture to the overall one: TV = 1/2 sum_c |p_kc - P_c|.

    counts: (K, classes). overall: (classes,) counts. Returns (K,) values in [0, 1); NaN for a client without rows.
    """
    sizes = counts.sum(axis=1, keepdims=True)
    mixture = np.divide(counts, sizes, out=np.full(counts.shape, np.nan), where=sizes > 0)
    return np.asarray(0.5 * np.abs(mixture - overall / overall.sum()).sum(axis=1))


def gini(sizes: np.ndarray) -> float:
    """Return the Gini coefficient of the sizes, sum_ij |n_i - n_j| / (2 K sum_i n_i): 0 = equal, towards 1 = one has all."""
    ordered, k = np.sort(np.asarray(sizes, dtype=np.float64)), len(sizes)
    return float((2 * np.arange(1, k + 1) - k - 1) @ ordered / (k * ordered.sum()))


def describe(partition: Partition, labels: np.ndarray, classes: int) -> PlainValues:
    """Return plain values for records and tables.

    Always ``clients``, ``sizes``, ``left_out``, ``gini`` (of the sizes). With one class per row also ``histogram`` (K
    lists of counts), ``tv`` (per client, None for an empty client) and ``tv_mean``, the distances of class mixtures to
    that of all training rows, and ``majority`` (share of each client's largest class). For numbers (classes = 0),
    ``target_mean`` and ``target_sd`` of each client instead. For rows that were only counted, neither.
    """
    sizes = partition.sizes
    facts: PlainValues = {
        "clients": len(sizes),
        "sizes": sizes,
        "left_out": partition.left_out,
        "gini": gini(np.array(sizes)),
    }
    if partition.counted:
        return facts
    if labels.ndim == 1 and not classes:
        held = [labels[rows].astype(np.float64) if len(rows) else None for rows in partition.clients]
        facts["target_mean"] = [None if y is None else float(y.mean()) for y in held]
        facts["target_sd"] = [None if y is None else float(y.std()) for y in held]
    elif labels.ndim == 1:
        counts = histogram(partition, labels, classes)
        tv = distances(counts, np.bincount(labels, minlength=classes))
        facts["histogram"] = counts.tolist()
        facts["tv"] = [None if np.isnan(v) else float(v) for v in tv]
        facts["tv_mean"] = float(np.nanmean(tv))
        facts["majority"] = [float(row.max() / row.sum()) if row.sum() else None for row in counts]
    return facts

"""Agreement of clusters of clients with the planted groups (C12, C14)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from math import comb
from typing import Any


def adjusted_rand(found: Sequence[Hashable], planted: Sequence[Hashable]) -> float:
    """Return the chance-corrected share of pairs grouped alike by both: 1 for equal groupings, 0 on average for random ones.

    (sum_ij C(n_ij, 2) - E) / ((sum_i C(a_i, 2) + sum_j C(b_j, 2)) / 2 - E)
    with E = sum_i C(a_i, 2) sum_j C(b_j, 2) / C(n, 2). Source: Hubert, Arabie, Journal of Classification 1985.
    """
    both, a, b = (
        sum(comb(n, 2) for n in Counter(of).values()) for of in (zip(found, planted, strict=True), found, planted)
    )
    pairs = comb(len(found), 2)
    expected = a * b / pairs if pairs else 0.0
    room = (a + b) / 2 - expected
    return (both - expected) / room if room else 1.0


def purity(found: Sequence[Hashable], planted: Sequence[Hashable]) -> float:
    """Return the share of clients that belong to the most common planted group of their cluster."""
    best: dict[Hashable, int] = {}
    for (cluster, _), n in Counter(zip(found, planted, strict=True)).items():
        best[cluster] = max(best.get(cluster, 0), n)
    return sum(best.values()) / len(found)


def cluster_figures(found: Mapping[int, int], planted: Mapping[int, Any]) -> dict[str, Any]:
    """Return the assignment and, if groups were planted, both figures over the clients that belong to a cluster."""
    clients = sorted(found)
    out: dict[str, Any] = {"assignment": {str(k): found[k] for k in clients}, "number": len(set(found.values()))}
    if planted and clients:
        pair = [found[k] for k in clients], [planted[k] for k in clients]
        out |= {"adjusted_rand": adjusted_rand(*pair), "purity": purity(*pair)}
    return out

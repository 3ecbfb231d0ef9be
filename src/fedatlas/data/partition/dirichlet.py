"""Label skew by a Dirichlet law: per client, per class, and the variant of the FedSeq code.

The scales of alpha differ (D10): a result states the partitioner and alpha. In all three, alpha = 0 gives one block of
the rows sorted by label to each client (one class where n/K divides the class counts) and inf is the IID partition.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from fedatlas.data.dataset import Partition
from fedatlas.data.partition.classes import shards
from fedatlas.data.partition.common import (
    Ints,
    by_table,
    check_clients,
    check_keys,
    class_pools,
    classes_and_stream,
    classes_of,
    deal,
    finish,
    redraw,
)
from fedatlas.data.partition.sizes import iid

FEDSEQ_TRIES = 100  # D9


def dirichlet(labels: np.ndarray, clients: int, seed: int, *, alpha: float = 0.5) -> Partition:
    """Clients of equal size; client k draws its class mixture q_k ~ Dir(alpha * p), p the overall mixture.

    Rows are drawn without replacement; when a class runs out the others' shares are renormalised.

    alpha: 0 or more, inf too; total concentration: small = one class each, large = alike.

    Source: D7 (Hsu, Qi, Brown 2019), D10 for 0 and inf.
    """
    if (limit := _limit(labels, clients, seed, alpha)) is not None:
        return limit
    classes, rng = classes_and_stream(labels, clients, seed)
    pools = class_pools(classes, rng)
    left, n = classes.counts.copy(), len(labels)
    counts = np.zeros((clients, len(left)), dtype=np.int64)
    for k in range(clients):
        q = rng.dirichlet(alpha * (classes.counts / n))
        counts[k] = _draw_rows(q, left, rng.random(n // clients + (k < n % clients)))
        left -= counts[k]
    return finish(deal(pools, counts), n)


def dirichlet_class(
    labels: np.ndarray, clients: int, seed: int, *, alpha: float = 0.5, min_rows: int = 10
) -> Partition:
    """Each class is split over the clients by pi ~ Dir_K(alpha); sizes are unequal.

    A client that already holds n/K rows gets none of the next class.

    alpha: 0 or more, inf too; concentration per client (often written beta): small = few clients share a class.
    min_rows: rows of the smallest client at least; the whole is redrawn until it has them.

    Source: D8 (Yurochkin et al. 2019; Li et al. 2022, NIID-Bench), D10 for 0 and inf.
    """
    if (limit := _limit(labels, clients, seed, alpha)) is not None:
        return limit
    classes, rng = classes_and_stream(labels, clients, seed)
    draw = partial(_split_classes, classes.counts, clients, alpha, rng)
    return by_table(classes, redraw(draw, lambda counts: counts.sum(axis=1), min_rows), rng)


def dirichlet_fedseq(
    labels: np.ndarray, clients: int, seed: int, *, alpha: float = 0.5, rebalance: bool = False
) -> Partition:
    """As `dirichlet_class` without a minimum: of 100 draws the one with the most even sizes.

    A client may stay empty: it is then never sampled.

    alpha: 0 or more, inf too; concentration per client: small = few clients share a class.
    rebalance: whether random rows then move from clients above n/K to those below, until sizes differ by one row at most.

    Source: D9 (the public code of FedSeq, Zaccone et al. 2022), D10 for 0 and inf.
    """
    if (limit := _limit(labels, clients, seed, alpha)) is not None:
        return limit
    classes, rng = classes_and_stream(labels, clients, seed)
    draws = [_split_classes(classes.counts, clients, alpha, rng) for _ in range(FEDSEQ_TRIES)]
    rows = deal(class_pools(classes, rng), min(draws, key=lambda counts: counts.sum(axis=1).std()))
    if rebalance:
        rows = _rebalance(rows, len(labels), rng)
    return finish(rows, len(labels), least=0)


def _limit(labels: np.ndarray, clients: int, seed: int, alpha: float) -> Partition | None:
    """Return the partition of D10: one block of the sorted rows each for alpha = 0, IID for inf, None in between."""
    check_clients(clients, len(labels))
    check_keys(alpha=alpha)
    if alpha == 0:
        return shards(labels, clients, seed, shards=1)
    if math.isinf(alpha):
        classes_of(labels)
        return iid(labels, clients, seed)
    return None


def _draw_rows(q: np.ndarray, left: Ints, uniform: np.ndarray) -> Ints:
    """Return how many rows of each class a client draws, one row per number in ``uniform``.

    The mixture changes only when a class runs out, so rows are drawn in runs up to that point. The outcome is that of
    D7's row-by-row loop with the same stream.
    """
    taken, left = np.zeros_like(left), left.copy()
    while len(uniform):
        share = q * (left > 0)
        if not share.sum() > 0:  # all of its classes are exhausted
            share = left.astype(np.float64)
        ends = np.cumsum(share)
        drawn = np.searchsorted(ends / ends[-1], uniform, side="right")
        run = len(uniform)
        for c in np.flatnonzero(np.bincount(drawn, minlength=len(left)) >= left):
            if left[c]:
                run = min(run, int(np.flatnonzero(drawn == c)[left[c] - 1]) + 1)
        step = np.bincount(drawn[:run], minlength=len(left))
        taken, left, uniform = taken + step, left - step, uniform[run:]
    return taken


def _split_classes(total: Ints, clients: int, alpha: float, rng: np.random.Generator) -> Ints:
    """Return one draw of D8: class by class, pi ~ Dir_K(alpha), zero for clients that hold n/K rows or more."""
    counts = np.zeros((clients, len(total)), dtype=np.int64)
    for c, rows in enumerate(total):
        below = counts.sum(axis=1) < total.sum() / clients
        share = rng.dirichlet(np.full(clients, alpha)) * below
        ends = np.cumsum(share if share.sum() > 0 else below)
        counts[:, c] = np.diff(np.floor(ends / ends[-1] * rows).astype(np.int64), prepend=0)
    return counts


def _rebalance(rows: list[Ints], n: int, rng: np.random.Generator) -> list[Ints]:
    """Return rows with sizes n/K: clients above it give random rows away, clients below it receive them in ascending order."""
    quota = [n // len(rows) + (k < n % len(rows)) for k in range(len(rows))]
    mixed = [rng.permutation(r) for r in rows]
    spare = np.concatenate([r[q:] for r, q in zip(mixed, quota, strict=True)])
    missing = [max(0, q - len(r)) for r, q in zip(mixed, quota, strict=True)]
    parts = np.split(rng.permutation(spare), np.cumsum(missing)[:-1])
    return [np.concatenate([r[:q], part]) for r, q, part in zip(mixed, quota, parts, strict=True)]

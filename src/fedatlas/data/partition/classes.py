"""Partitioners that give clients particular classes: majority even, majority, pick two, shards.

Each has two halves: a table ``counts[client, class]``, computed from only the class counts, and the dealing of a seeded
permutation of each class by that table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fedatlas.apportion import proportional
from fedatlas.data.dataset import Partition
from fedatlas.data.partition.common import (
    TRIES,
    Ints,
    by_table,
    check_clients,
    check_keys,
    class_pools,
    classes_and_stream,
    finish,
)
from fedatlas.errors import ConfigError

TRIED = 30  # other numbers of clients that are tried if the given one is impossible


def majority_even(labels: np.ndarray, clients: int, seed: int, *, majority: float = 0.7) -> Partition:
    """The first k clients (k classes) mostly hold one class each, the others an even mixture; equal sizes.

    Quota q = floor(N/K); N mod K rows are left out. Needs K >= k. ``info["majority"]`` holds the realised shares.

    majority: above 0, at most 1; share of a client's rows (its quota) that is its own class.

    Source: D3 (S0, paper version).
    """
    classes, rng = classes_and_stream(labels, clients, seed)
    counts = or_advice(lambda K: majority_even_counts(classes.counts, K, majority), clients, len(classes.ids))
    return by_table(classes, counts, rng, majority=_realised(counts))


def majority(labels: np.ndarray, clients: int, seed: int, *, majority: float = 0.7, sigma: float = 0.5) -> Partition:
    """As `majority_even` with unequal sizes: quotas proportional to lognormal(0, sigma); every row is used.

    ``info["majority"]`` holds the realised shares.

    majority: above 0, at most 1; share of a client's rows (its quota) that is its own class, less where that is too small.
    sigma: 0 to 10; standard deviation of the logarithm of the sizes before they are made to add up; 0 = equal sizes.

    Source: D4 (S0; quotas and the cap are decisions of the specification).
    """
    classes, rng = classes_and_stream(labels, clients, seed)
    quota = _majority_quotas(classes.counts, clients, sigma, rng)
    counts = majority_counts(classes.counts, quota, majority)
    return by_table(classes, counts, rng, majority=_realised(counts))


def pick_two(labels: np.ndarray, clients: int, seed: int, *, majority: float = 0.7) -> Partition:
    """The first floor(k/2) clients mostly hold two classes each, the others share what remains; equal sizes.

    Quota q = floor(N/K); N mod K rows are left out. The others are as even as the rest allows. Needs K >= floor(k/2).

    majority: above 0, at most 1; share of a client's rows (its quota) that is of its two classes together.

    Source: D5 (S0).
    """
    classes, rng = classes_and_stream(labels, clients, seed)
    counts = or_advice(lambda K: pick_two_counts(classes.counts, K, majority), clients, len(classes.ids) // 2)
    return by_table(classes, counts, rng)


def shards(labels: np.ndarray, clients: int, seed: int, *, shards: int = 2) -> Partition:
    """Rows sorted by label, cut into equal pieces, as many random pieces to each client.

    With two shards a client sees few classes, usually two; a shard may straddle a class border.

    shards: 1 or more; pieces of each client; there are K times as many.

    Source: D6 (McMahan et al. 2017; S4: 200 shards of 300 MNIST rows, two to each of 100 clients).
    """
    check_keys(shards=shards)
    check_clients(clients, len(labels))
    if clients * shards > len(labels):
        raise ConfigError(
            f"{clients} clients with {shards} shards each need as many rows, but there are {len(labels)}."
        )
    classes, rng = classes_and_stream(labels, clients, seed)
    pieces = np.array_split(np.concatenate(class_pools(classes, rng)), clients * shards)
    order = rng.permutation(clients * shards).reshape(clients, shards)
    return finish([np.concatenate([pieces[p] for p in own]) for own in order], len(labels))


class _TooFew(ConfigError):
    """A class has too few rows for the table asked for."""


def or_advice(table: Callable[[int], Ints], clients: int, least: int) -> Ints:
    """Return ``table(clients)``. If a class is too small for it, raise ConfigError with a number of clients that works.

    At most `TRIED` numbers from ``least`` to twice ``clients`` are tried, nearest first.
    """
    try:
        return table(clients)
    except _TooFew as error:
        refused = str(error).partition(": use")[0]
    others = sorted(range(max(1, least), 2 * clients + 1), key=lambda k: (abs(k - clients), k))[:TRIED]
    works = next((k for k in others if k != clients and _can(table, k)), None)
    named = f"partition.clients = {works} works, and so does " if works else "what works is "
    raise ConfigError(f"{refused}: {named}partition.name = 'iid'.")


def _can(table: Callable[[int], Ints], clients: int) -> bool:
    try:
        table(clients)
    except ConfigError:
        return False
    return True


def majority_even_counts(total: Ints, clients: int, majority: float) -> Ints:
    """Return the table of D3 from the class counts ``total`` (k,): (K, k) with equal row sums floor(N/K)."""
    k, quota = len(total), int(total.sum()) // clients
    _check_majority(majority, clients, k)
    counts, left = np.zeros((clients, k), dtype=np.int64), total.copy()
    for i in range(k):
        _take(counts, left, i, i, round(majority * quota))
    for i in range(k, clients):
        for c in range(k):
            _take(counts, left, i, c, quota // k)
    _fill(counts, left, [quota] * k, [[i] for i in range(k)])
    for _ in range(quota % k):
        for i in range(k, clients):
            least = min(np.flatnonzero(left), key=lambda c: (counts[i, c], -left[c]))
            _take(counts, left, i, int(least), 1)
    return counts


def majority_counts(total: Ints, quota: Ints, majority: float) -> Ints:
    """Return the table of D4 from the class counts ``total`` (k,) and the clients' quotas (K,), which sum to N."""
    k, clients = len(total), len(quota)
    _check_majority(majority, clients, k)
    counts, left = np.zeros((clients, k), dtype=np.int64), total.copy()
    reserve = _reserve(quota, k)
    for i in range(k):
        _take(counts, left, i, i, min(round(majority * quota[i]), int(total[i]) - reserve))
    for i in range(k, clients):
        for c in range(k):
            _take(counts, left, i, c, int(quota[i]) // k)
        for most in np.argsort(-left, kind="stable")[: int(quota[i]) % k]:
            _take(counts, left, i, int(most), 1)
    _fill(counts, left, [int(q) for q in quota[:k]], [[i] for i in range(k)])
    return counts


def pick_two_counts(total: Ints, clients: int, majority: float) -> Ints:
    """Return the table of D5 from the class counts ``total`` (k,): (K, k) with equal row sums floor(N/K)."""
    k, quota = len(total), int(total.sum()) // clients
    pairs = k // 2
    _check_majority(majority, clients, pairs)
    counts, left = np.zeros((clients, k), dtype=np.int64), total.copy()
    for i in range(pairs):
        for c in (2 * i, 2 * i + 1):
            _take(counts, left, i, c, min(round(majority / 2 * quota), quota - int(counts[i].sum())))
    _fill(counts, left, [quota] * pairs, [[2 * i, 2 * i + 1] for i in range(pairs)])
    rest, others = np.repeat(np.arange(k), left), clients - pairs
    for j in range(others):
        counts[pairs + j] = np.bincount(rest[j::others][:quota], minlength=k)
    return counts


def _majority_quotas(total: Ints, clients: int, sigma: float, rng: np.random.Generator) -> Ints:
    k, n = len(total), int(total.sum())
    check_keys(sigma=sigma)
    for _ in range(TRIES):
        quota = proportional(rng.lognormal(0.0, sigma, clients), n)
        if int(total.min()) >= _reserve(quota, k):
            return quota
    raise ConfigError(
        f"class {int(total.argmin())} has only {total.min()} rows, too few for the {clients - k} balanced "
        f"clients ({k} to {clients - 1}) in {TRIES} draws of their sizes: use fewer clients."
    )


def _reserve(quota: Ints, k: int) -> int:
    """Return the rows of every class kept for the balanced clients: the sum of ceil(q_i / k)."""
    return int((-(-quota[k:] // k)).sum())


def _take(counts: Ints, left: Ints, client: int, c: int, rows: int) -> None:
    if rows > left[c]:
        raise _TooFew(
            f"client {client} needs {rows} rows of class {c}, but only {left[c]} are left: use a smaller "
            "partition.majority or another number of partition.clients."
        )
    counts[client, c] += rows
    left[c] -= rows


def _fill(counts: Ints, left: Ints, quota: Sequence[int], own: Sequence[Sequence[int]]) -> None:
    """Fill the rest as D3 does: one row at a time, cycling over the clients, from their largest other class."""
    need = [q - int(row.sum()) for q, row in zip(quota, counts, strict=False)]
    while any(need):
        for i in range(len(need)):
            if need[i]:
                others = left.copy()
                others[own[i]] = 0
                c = int(others.argmax()) if others.any() else int(left.argmax())
                _take(counts, left, i, c, 1)
                need[i] -= 1


def _check_majority(majority: float, clients: int, needed: int) -> None:
    check_keys(majority=majority)
    if clients < needed:
        raise ConfigError(f"clients = {clients}: this partition needs at least {needed}, one for each majority.")


def _realised(counts: Ints) -> list[float]:
    """Return the share of its majority class at each client that has one."""
    return [float(counts[i, i] / counts[i].sum()) for i in range(counts.shape[1])]

"""Parts shared by all partitioners: class pools, quotas, the check that no client is empty."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedatlas.data.dataset import Partition
from fedatlas.errors import ConfigError
from fedatlas.rng import numpy_stream

Ints = NDArray[np.int64]
Draws = TypeVar("Draws")
LABEL_FREE = "iid, random, quantity_skew, feature_skew or natural"  # partitioners that never look at a class
TRIES = 1_000  # redraws before a random split is called infeasible (D4)
TINY, HUGE = 1e-9, 1e9  # bounds of concentrations; outside them the draws underflow or overflow


class Classes(NamedTuple):
    """The classes that occur: their ``ids`` ascending, each row's ``place`` in ``ids``, and their ``counts``."""

    ids: Ints
    place: Ints
    counts: Ints


def classes_of(labels: np.ndarray) -> Classes:
    """Return the classes of the rows.

    ConfigError if rows do not have one class each (regression targets, token sequences).
    """
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        kind = "numbers" if labels.ndim == 1 else "sequences"
        raise ConfigError(f"this partition splits by class, but the targets are {kind}: use {LABEL_FREE}.")
    ids, index, counts = np.unique(labels, return_inverse=True, return_counts=True)
    return Classes(ids.astype(np.int64), index.astype(np.int64), counts.astype(np.int64))


RANGES: Mapping[str, tuple[float, float, tuple[float, ...]]] = {
    "alpha": (TINY, HUGE, (0, math.inf)),
    "beta": (TINY, HUGE, ()),
    "cap": (0, HUGE, ()),
    "noise": (0, HUGE, ()),
    "rotate": (-360, 360, ()),
    "sigma": (0, 10, ()),
}
"""Key of our partitioners -> (lowest, highest, other values) allowed, for any rows."""


def check_keys(**keys: Any) -> None:
    """Raise ConfigError for a key that no rows could be split by; in a list, for each value."""
    for name, value in keys.items():
        if name in RANGES:
            low, high, also = RANGES[name]
            for each in value if isinstance(value, Sequence) else (value,):
                check_range(name, each, low, high, also=also)
        if name == "majority" and not 0 < value <= 1:
            raise ConfigError(f"majority = {value}: it must be above 0 and at most 1.")
        if name == "shards" and value < 1:
            raise ConfigError(f"shards = {value}: every client needs at least one shard.")


def check_some(clients: int) -> None:
    """Raise ConfigError for a partition without clients."""
    if clients < 1:
        raise ConfigError(f"clients = {clients}: a partition needs at least one client.")


def check_clients(clients: int, rows: int) -> None:
    """Raise ConfigError unless each of ``clients`` can hold at least one of ``rows``."""
    check_some(clients)
    if clients > rows:
        raise ConfigError(
            f"client {rows} would be empty: {clients} clients share {rows} rows; use fewer clients or more rows."
        )


def check_sizes(sizes: Sequence[int] | Ints, least: int) -> None:
    """Raise ConfigError that names the smallest client if it holds fewer than ``least`` rows."""
    smallest = int(np.argmin(sizes))
    if sizes[smallest] < least:
        held = f"hold {sizes[smallest]} rows, fewer than the {least} asked for" if sizes[smallest] else "be empty"
        raise ConfigError(
            f"client {smallest} would {held}: use fewer clients, more rows, a milder split or a smaller minimum."
        )


def check_range(name: str, value: float, low: float, high: float, *, also: Sequence[float] = ()) -> None:
    """Raise ConfigError unless ``low <= value <= high`` or the value is one of ``also``."""
    if not (low <= value <= high or value in also):
        extra = "".join(f" or {v:g}" for v in also)
        raise ConfigError(f"{name} = {value:g}: it must lie between {low:g} and {high:g}{extra}.")


def class_pools(classes: Classes, rng: np.random.Generator) -> list[Ints]:
    """Return a seeded permutation of each class's rows: a stack, dealt from the end."""
    return [rng.permutation(np.flatnonzero(classes.place == c)) for c in range(len(classes.ids))]


def classes_and_stream(labels: np.ndarray, clients: int, seed: int) -> tuple[Classes, np.random.Generator]:
    """Return the classes of the rows and the stream of a partition by class. ConfigError if it is not possible."""
    check_clients(clients, len(labels))
    return classes_of(labels), numpy_stream(seed, "partition")


def redraw(draw: Callable[[], Draws], sizes: Callable[[Draws], Ints], least: int) -> Draws:
    """Return the first of `TRIES` draws whose smallest client has ``least`` rows. ConfigError if none has."""
    for _ in range(TRIES):
        drawn = draw()
        if sizes(drawn).min() >= least:
            break
    check_sizes(sizes(drawn), least)
    return drawn


def by_table(classes: Classes, counts: Ints, rng: np.random.Generator, **info: Any) -> Partition:
    """Return the partition by a table of ``counts[client, class]``, each class in a seeded order."""
    return finish(deal(class_pools(classes, rng), counts), len(classes.place), info=info)


def deal(pools: Sequence[Ints], counts: Ints) -> list[Ints]:
    """Return the rows of each client: client k takes ``counts[k, c]`` rows of class c, clients in ascending order."""
    stacks = [pool[::-1] for pool in pools]
    ends = np.cumsum(counts, axis=0)
    starts = ends - counts
    return [
        np.concatenate([stack[a:b] for stack, a, b in zip(stacks, starts[k], ends[k], strict=True)])
        for k in range(len(counts))
    ]


def finish(
    rows: Sequence[np.ndarray],
    n: int,
    *,
    least: int = 1,
    info: Mapping[str, Any] | None = None,
) -> Partition:
    """Return the partition of ``n`` rows: indices ascending, unassigned rows counted, no client below ``least`` rows."""
    sizes = [len(r) for r in rows]
    check_sizes(sizes, least)
    clients = tuple(np.sort(np.asarray(r, dtype=np.int64)) for r in rows)
    return Partition(clients, n - sum(sizes), info or {})

"""From ``[data]`` to a data set: loaded, split into train and test, limited; and from ``[public]`` to its rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import numpy as np

from fedatlas.data.by_name import find_source
from fedatlas.data.cells import now
from fedatlas.data.config import DataConfig, PublicConfig
from fedatlas.data.dataset import Dataset, Split
from fedatlas.data.holes import drop_holes
from fedatlas.data.kept import is_elsewhere, located
from fedatlas.data.loaded import (
    Loaded,
    LoadRequest,
    check_test_classes,
    draw,
    limit_rows,
    move_rows,
    numbered,
    public_split,
    split_test,
    to_dataset,
)
from fedatlas.data.store import Store
from fedatlas.errors import ConfigError
from fedatlas.rng import numpy_stream

SMALL = 1 << 28  # bytes; larger sets are not kept in memory for reuse
MOST = 16  # sources kept
_KEPT: ContextVar[tuple[dict[Any, Dataset], dict[Any, Loaded]] | None] = ContextVar("kept", default=None)
"""Data sets, and their sources before any split."""


@contextmanager
def read_once() -> Iterator[None]:
    """Share the data between a run and its baselines inside this block, unless they are large: a table takes seconds to read."""
    token = _KEPT.set(({}, {}))
    try:
        yield
    finally:
        _KEPT.reset(token)


def load_dataset(config: DataConfig, seed: int, store: Store | None = None) -> Dataset:
    """Return the data set of ``[data]``: loaded, split into train and test, limited.

    Tables stay raw until `preprocess`.

    ``store``: searched for files; by default ``FEDATLAS_DATA``, then the user's cache folder.
    """
    kept, key = _KEPT.get(), (config.model_dump_json(), seed, now().rules)
    if kept is None or store is not None:
        return read_dataset(config, seed, store or Store.default())
    known = kept[0]
    if key in known:
        return known[key]
    found = read_dataset(config, seed, Store.default())
    if len(known) > 1:  # at most a set and the source of its public rows
        known.clear()
    if found.train.x.nbytes + found.test.x.nbytes <= SMALL:
        known[key] = found
    return found


def read_dataset(config: DataConfig, seed: int, store: Store) -> Dataset:
    """Read the data set of ``[data]`` from its files."""
    source = find_source(config.name)
    test_file = str(located(config.test_file)) if is_elsewhere(config.test_file) else config.test_file
    request = LoadRequest(store, seed, test_file, drop_unusable=config.missing != "error")
    options = config.options()
    loaded = whole(config, request, options)
    if source.test_files and isinstance(config.test, str):
        check_test_classes(loaded, config.name)
    loaded = split_test(loaded, config.test, seed)
    loaded = limit_rows(loaded, config.limit, seed)
    if source.finish is not None:
        loaded = source.finish(loaded, options)
    if config.augment != "none" and loaded.train.x.dim() != 4:
        raise ConfigError(f"data.augment = '{config.augment}' is for pictures; '{config.name}' has none.")
    about = {
        "licence": source.licence,
        "citation": source.citation,
        "units": source.units,
        "test": f"file {config.test}" if config.test_file else "the source's own",  # default; `split_test` may set it
    }
    dataset = to_dataset(config.name, replace(loaded, facts={**about, **loaded.facts}))
    return drop_holes(dataset) if config.missing == "drop" else dataset


def whole(config: DataConfig, request: LoadRequest, options: dict[str, Any]) -> Loaded:
    """Return all rows of a source, numbered. Inside `read_once` its files are read once for all seeds and limits."""
    source, kept = find_source(config.name), _KEPT.get()
    known = kept[1] if kept else {}
    seed = request.seed if source.drawn else None
    key = (config.name, repr(sorted(options.items())), request.test_file, request.drop_unusable, seed, now().rules)
    if key in known:
        return known[key]
    loaded = numbered(source.load(request, **options))
    if loaded.train.x.nbytes <= SMALL:
        if len(known) >= MOST:
            known.clear()
        known[key] = loaded
    return loaded


def take_public(dataset: Dataset, config: PublicConfig, seed: int, store: Store | None = None) -> Dataset:
    """Return the data set with public rows by ``[public]`` as its split "public".

    Public rows from the test or training rows are removed there. From another data set, the training rows are used;
    their shape must be the same. Runs before the partition.
    """
    side = config.source if config.source in {"test", "train"} else ""
    if not side:
        other = load_dataset(DataConfig(name=config.source), seed, store)
        if (other.shape, other.train.x.dtype) != (dataset.shape, dataset.train.x.dtype) or other.schema:
            raise ConfigError(
                f"public.from = '{config.source}': its rows have the shape {other.shape}, but those of '{dataset.name}' {dataset.shape}."
            )
        return dataset.with_splits(public=public_split(other.train, _public_rows(other.train, other, config, seed)))
    return move_rows(dataset, side, _public_rows(dataset.splits[side], dataset, config, seed), "public")


def take_guard(dataset: Dataset, side: str, rows: int, seed: int) -> Dataset:
    """Return the data set with this many rows of a side, in proportion to the classes, as its split "guard".

    Nobody trains on them, and no other figure of the run is made of them.
    """
    held = dataset.splits[side]
    if rows > len(held.y):
        raise ConfigError(f"guard.rows = {rows}: '{dataset.name}' has {len(held.y)} {side} rows; ask for fewer.")
    return move_rows(dataset, side, draw(held, dataset.task, rows, numpy_stream(seed, "split", "guard")), "guard")


def _public_rows(rows: Split, dataset: Dataset, config: PublicConfig, seed: int) -> np.ndarray:
    """Return indices, ascending: a fixed number per class, or a total in proportion to the classes."""
    stream = numpy_stream(seed, "split", "public")
    n = len(rows.y)
    if config.rows is not None:
        if config.rows > n:
            raise ConfigError(f"public.rows = {config.rows}: '{config.source}' has {n} rows.")
        return draw(rows, dataset.task, config.rows, stream)
    if dataset.task != "classes":
        raise ConfigError("public.per_class counts classes, which this data set lacks: give public.rows instead.")
    labels = rows.y.numpy()
    per_class = config.per_class or 10
    chosen = []
    for c, name in enumerate(dataset.class_names):
        mine = np.flatnonzero(labels == c)
        if len(mine) < per_class and not config.fewer:
            raise ConfigError(
                f"public.per_class = {per_class}: class '{name}' has {len(mine)} rows in '{config.source}'; ask for fewer, "
                "or let rare classes give all they have: public.fewer = true."
            )
        chosen.append(stream.permutation(mine)[:per_class])
    return np.sort(np.concatenate(chosen))

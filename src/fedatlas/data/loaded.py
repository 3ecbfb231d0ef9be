"""The rows that a source delivers, and the splits made of them: test rows, a limit, the public rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedatlas.apportion import largest_remainder, proportional
from fedatlas.data.dataset import SIDES, Column, Dataset, Names, Split, TaskKind
from fedatlas.data.store import Store
from fedatlas.errors import ConfigError, DataError
from fedatlas.rng import numpy_stream

OWNERS_LOST = "the test rows name none, which data.test as a share puts among the training rows: keep data.test = 'own'"
OWN_FRACTION = 0.25  # test share of a source without a test set (`data.test` in docs/experiment.md)


@dataclass(frozen=True)
class Loaded:
    """The rows and facts of a source. ``test`` is None if it has no test set."""

    train: Split
    test: Split | None
    task: TaskKind
    class_names: Names = ()
    columns: Names = ()
    schema: tuple[Column, ...] = ()
    client_names: Names = ()
    scale: tuple[float, ...] = ()
    shift: tuple[float, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    train_rows: int = 0  # of the source's training side before any were left out; 0 = those in train

    def with_facts(self, **facts: Any) -> Loaded:
        """Return the same with further facts for the record."""
        return replace(self, facts={**self.facts, **facts})


@dataclass(frozen=True)
class LoadRequest:
    """The arguments common to all loaders."""

    store: Store
    seed: int
    test_file: str = ""  # data.test = FILE; only tables and files read it
    drop_unusable: bool = False  # leave out rows without a target, owner or weight (unless data.missing = "error")
    few_classes: bool = False  # whether one class is allowed: the rows are one party's
    bits: int = 32  # of a table's numbers

    def leaf(self, name: str, path: str) -> Path | None:
        """Return the folder with LEAF's train and test files: ``path``, or one in the data folder; None without either."""
        if path:
            return Path(path)
        found = self.store.find([f"{name}/{side}" for side in SIDES])
        return found.root / name if found else None

    def chosen(self, every: Sequence[str], number: int, key: str) -> list[str]:
        """Return ``number`` of the names, drawn at random, in their original order."""
        order = numpy_stream(self.seed, "split", key).permutation(len(every))
        return [every[i] for i in np.sort(order[:number])]


def divided(channels: int, by: int = 255) -> dict[str, Any]:
    """Return the constants for pictures whose pixels are divided by a number."""
    return {"scale": (1 / by,) * channels, "shift": (0.0,) * channels}


def numbered(loaded: Loaded) -> Loaded:
    """Return the same rows, each numbered by its place in the source: training and test rows each from 0, in the loader's order."""
    rows = loaded.train_rows or len(loaded.train.y)
    test = None if loaded.test is None else loaded.test.numbered()
    return replace(loaded, train=loaded.train.numbered(), test=test, train_rows=rows)


def draw(
    part: Split, task: TaskKind, total: int, stream: np.random.Generator, share: float | None = None
) -> np.ndarray:
    """Return the indices of ``total`` rows, ascending: in proportion to the classes, or any rows for other targets.

    ``share``: quotas are the classes' counts times it, and ``total`` their sum rounded down (HAR's, D3).
    """
    n = len(part.y)
    if task != "classes" or part.y.dim() != 1:
        return np.sort(stream.permutation(n)[:total])
    labels = part.y.numpy()
    classes, counts = np.unique(labels, return_counts=True)
    take = proportional(counts, total) if share is None else largest_remainder(counts * share, total)
    if share is not None:  # a class with one row must still be trained on
        for c in np.flatnonzero(take == 0):
            if take.max() > 1:
                take[take.argmax()] -= 1
                take[c] = 1
    chosen = [stream.permutation(np.flatnonzero(labels == c))[:k] for c, k in zip(classes, take, strict=True)]
    return np.sort(np.concatenate(chosen))


def split_test(loaded: Loaded, test: float | str, seed: int) -> Loaded:
    """Split train and test by ``data.test``: the source's own test set, or a share of all its rows (rounded up).

    Training keeps floor((1 - share) n) rows: 7,724 of HAR's 10,299 at 0.25.
    """
    if isinstance(test, str) and loaded.test is not None:
        return loaded
    share = OWN_FRACTION if isinstance(test, str) else test
    rows = loaded.train if loaded.test is None else loaded.train.join(loaded.test.behind(loaded.train_rows))
    n = len(rows.y)
    keep = math.floor(n * (1 - share) + 1e-9)
    if keep < 1 or keep >= n:
        raise DataError(f"data.test = {share}: {n} rows cannot be split with at least one row on each side.")
    train = draw(rows, loaded.task, keep, numpy_stream(seed, "split", "test"), 1 - share)
    rest = np.setdiff1d(np.arange(n), train, assume_unique=True)
    out = replace(loaded, train=rows.take(train), test=rows.take(rest))
    words = f"a share of {share} of all rows, stratified" if loaded.task == "classes" else f"a share of {share}"
    lost = loaded.train.client is not None and rows.client is None
    return out.with_facts(test=words, **({"owners": OWNERS_LOST} if lost else {}))


def strange_classes(names: Names, train: Tensor, test: Tensor) -> tuple[str, int]:
    """Return the first class that only test rows have, and the number of test rows with such classes; ("", 0) if none."""
    strange = ~torch.isin(test, torch.unique(train))
    return (names[int(test[strange].min())], int(strange.sum())) if bool(strange.any()) else ("", 0)


def check_test_classes(loaded: Loaded, name: str) -> None:
    """Raise DataError if test rows of the source or a test file have a class absent from training."""
    if loaded.test is None or loaded.task != "classes":
        return
    strange, n = strange_classes(loaded.class_names, loaded.train.y, loaded.test.y)
    if n:
        raise DataError(
            f"'{name}': {n} test rows have a class that no training row has ('{strange}'), so no model can learn it: "
            "correct their labels or leave out these rows."
        )


def _unless_all(row: Tensor | None) -> Tensor | None:
    """Return the row numbers; None if they are all rows of the source, in order."""
    return None if row is None or torch.equal(row, torch.arange(len(row))) else row


def _place(values: Tensor, of: Tensor) -> Tensor:
    """Return the place of each value in ``of``, ascending and without repeats; -1 if it is not there."""
    at = torch.searchsorted(of, values).clamp(max=len(of) - 1)
    return torch.where(of[at] == values, at, -1)


def limit_rows(loaded: Loaded, limit: int, seed: int) -> Loaded:
    """Return the training set cut to ``limit`` rows, in proportion to the classes; 0 = all."""
    n = len(loaded.train.y)
    if limit == 0:
        return loaded
    if limit > n:
        raise ConfigError(f"data.limit = {limit}: there are only {n} training rows; set 0 to keep all.")
    index = draw(loaded.train, loaded.task, limit, numpy_stream(seed, "split", "limit"))
    return replace(loaded, train=loaded.train.take(index))


def to_dataset(name: str, loaded: Loaded) -> Dataset:
    """Return the data set of a run; natural owners are numbered over those that hold training rows."""
    train, test = loaded.train, loaded.test
    assert test is not None, "split_test comes first"
    client, names, facts = train.client, loaded.client_names, dict(loaded.facts)
    owner = None
    if client is not None:
        held, codes = torch.unique(client, return_inverse=True)
        if test.client is not None:
            owner = _place(test.client, held)
        client, names = codes, tuple(loaded.client_names[i] for i in held.tolist())
        if absent := [name for name in loaded.client_names if name not in set(names)]:
            facts["owners_absent"] = absent
    dataset = Dataset(
        name=name,
        splits={
            "train": train._replace(client=client, row=_unless_all(train.row)),
            "test": test._replace(client=owner, row=_unless_all(test.row)),
        },
        task=loaded.task,
        class_names=loaded.class_names,
        columns=loaded.columns,
        schema=loaded.schema,
        client_names=names if client is not None else (),
        scale=loaded.scale,
        shift=loaded.shift,
        facts={**facts, "train_rows": len(train.y), "test_rows": len(test.y)},
    )
    check(dataset)
    return dataset


def check(dataset: Dataset) -> None:
    """Raise DataError if rows are absent, a value is infinite, or a label is not among the classes."""
    for side, (x, y, *_) in (("training", dataset.train), ("test", dataset.test)):
        if len(y) == 0:
            raise DataError(f"data set '{dataset.name}' has no {side} rows.")
        if len(x) != len(y):
            raise DataError(f"data set '{dataset.name}' has {len(x)} {side} rows but {len(y)} targets.")
        if x.is_floating_point() and x.dim() == 2:
            _refuse_infinite(dataset, side, x)
        if y.is_floating_point() and not bool(torch.isfinite(y).all()):
            raise DataError(
                f"data set '{dataset.name}': {int((~torch.isfinite(y)).sum())} {side} targets are NaN or infinite."
            )
        if not y.is_floating_point():
            real = y[y != dataset.ignore]
            bad = real[(real < 0) | (real >= dataset.classes)]
            if len(bad):
                raise DataError(
                    f"data set '{dataset.name}' has the {side} label {int(bad[0])}, but its classes are 0 to {dataset.classes - 1}."
                )


def _refuse_infinite(dataset: Dataset, side: str, x: Tensor) -> None:
    bad = torch.isinf(x)
    if not bool(bad.any()):
        return
    column = int(bad.any(0).nonzero()[0])
    name = (
        dataset.schema[column].name if dataset.schema else (dataset.columns[column] if dataset.columns else str(column))
    )
    raise DataError(
        f"data set '{dataset.name}': column '{name}' is infinite in {int(bad[:, column].sum())} {side} rows."
    )


def move_rows(dataset: Dataset, side: str, index: np.ndarray, name: str) -> Dataset:
    """Return the data set with the rows ``index`` of its "test" or "train" split moved to the split of this name."""
    rows = dataset.splits[side]
    rest = np.setdiff1d(np.arange(len(rows.y)), index)
    if not len(rest):
        raise ConfigError(f"[{name}] takes all {len(rows.y)} {side} rows: ask for fewer.")
    facts = {**dataset.facts, f"{side}_rows": len(rest), f"{name}_rows": len(index)}
    made = public_split(rows, index) if name == "public" else rows._replace(client=None, row=None).take(index)
    return replace(dataset.with_splits(**{side: rows.numbered().take(rest), name: made}), facts=facts)


def public_split(rows: Split, index: np.ndarray) -> Split:
    """Return rows made public: without owners or weights."""
    return Split(rows.x, rows.y).take(index)

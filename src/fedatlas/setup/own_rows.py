"""The one place where mechanisms change a party's rows (`Work.rows`), before anything is computed from them.

A simulation calls it for all clients, a node for itself, so that both train on the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedatlas.algorithm import SERVER
from fedatlas.data.cells import in_order
from fedatlas.data.dataset import Column, Dataset, Partition, Split
from fedatlas.data.holes import schema_of
from fedatlas.data.preprocess import ColumnRule, recode
from fedatlas.privacy.mechanism import Mechanism, Work, on_rows
from fedatlas.privacy.own_rows import OwnRows, RowsHow, how_of
from fedatlas.setup.secure_learning import Hidden
from fedatlas.summaries import Learner, Message, Numbers, StoredRows, Summary, Traffic, in_process

Told = Mapping[str, Mapping[int, Mapping[str, Any]]]
"""mechanism -> party -> what the run's folder keeps of it in the open, for reading new rows."""


Pairs = Mapping[str, Sequence[tuple[OwnRows, OwnRows]]]
"""mechanism -> the training rows of each client that has any, before and after."""


class CostBefore(NamedTuple):
    """Bytes by which the parties agreed on something before their rows were changed."""

    sent: Traffic = Traffic()
    hiding: int = 0  # of these, what protection added


class ChangedRows(NamedTuple):
    """A data set and its partition after the mechanisms, and what new rows are read by."""

    dataset: Dataset
    partition: Partition
    told: Mapping[str, Mapping[int, Any]] = {}
    pairs: Mapping[str, Sequence[Any]] = {}
    agreement: CostBefore = CostBefore()  # of all mechanisms


def with_own_rows(
    mechanisms: Sequence[Mechanism],
    dataset: Dataset,
    partition: Partition,
    root: bytes,
    seed: int,
    judge: int = SERVER,
    learner: Learner = in_process,
) -> ChangedRows:
    """Return the rows after every party's mechanisms changed its own, one mechanism after another.

    ``root``: the run's secret. ``judge``: the party that holds the test rows. ``learner``: asks for the sums that mechanisms agree
    by. Rows that a client keeps out of training, and test rows, are changed as new rows are. DataError or ConfigError for rows
    that a mechanism cannot act on.
    """
    done = ChangedRows(dataset, partition)
    for one in on_rows(mechanisms):
        how = partial(how_of, one.name, one.keys, root, seed, parties=len(partition.clients))
        agreed, cost = _agreed(one.work(), done, learner)
        done = _changed(one, done, how, judge, agreed)
        before = done.agreement
        done = done._replace(agreement=CostBefore(before.sent.plus(cost.sent), before.hiding + cost.hiding))
    return done


def read_new(
    mechanisms: Sequence[Mechanism], rows: OwnRows, root: bytes, seed: int, parties: int, told: Told
) -> OwnRows:
    """Return new rows as the run's model reads them, before preprocessing."""
    for one in on_rows(mechanisms):
        if (read := one.work().new_rows) is not None:
            rows = read(
                rows, how_of(one.name, one.keys, root, seed, SERVER, parties)._replace(told=told.get(one.name, {}))
            )
    return rows


class _Piece(NamedTuple):
    """Changed rows and their places in a split."""

    at: Tensor
    rows: OwnRows


def _agreed(work: Work, done: ChangedRows, learner: Learner) -> tuple[dict[int, Any], CostBefore]:
    """Return what all parties agree on before a mechanism changes their rows, under `SERVER`, and its cost; {} if nothing."""
    if work.agree is None:
        return {}, CostBefore()
    dataset, learn, sent = done.dataset, learner(done.partition.parties(done.dataset.train)), list[Traffic]()
    columns = tuple((column.name, column.categories) for column in schema_of(dataset))

    def total(counted: Callable[[OwnRows], Tensor]) -> Tensor:
        def of(rows: StoredRows, message: Message) -> Numbers:
            return {"counts": counted(OwnRows(rows.x, rows.y, torch.arange(len(rows.y)), columns, dataset.class_names))}

        found = learn(Summary("grid counts", of, told=lambda message, summed: summed), {})
        sent.append(found.traffic)
        counts: Tensor = found.sum["counts"]
        return counts.to(torch.int64)

    agreed = work.agree(columns, dataset.class_names, total)
    traffic = Traffic(sum(one.up for one in sent), sum(one.down for one in sent))
    return {SERVER: agreed}, CostBefore(traffic, learn.more if isinstance(learn, Hidden) else 0)


def _changed(one: Mechanism, done: ChangedRows, how: Any, judge: int, agreed: Mapping[int, Any]) -> ChangedRows:
    """Return the rows after one mechanism. Of test rows that it cannot change, as the server holds them, only the form is left."""
    dataset, partition, name, work = done.dataset, done.partition, one.name, one.work()
    if one.blind and judge == SERVER:
        unread = dataset.test._replace(x=torch.zeros_like(dataset.test.x))
        dataset = dataset.with_splits(test=unread)
    assert work.rows is not None
    trained: dict[int, OwnRows] = {}
    for k, at in enumerate(partition.clients):
        if len(at):
            trained[k] = work.rows(_own(dataset, dataset.train, at), how(party=k)._replace(told=agreed))
    pairs = [(_own(dataset, dataset.train, partition.clients[k]), rows) for k, rows in trained.items()]
    told = {**agreed, **{k: rows.told for k, rows in trained.items() if rows.told}}
    train, test = [_Piece(rows.row, rows) for rows in trained.values()], list[_Piece]()
    if work.new_rows is not None:
        for kept in partition.kept.values():
            for k, at in kept.items():
                train += _read(work, dataset, dataset.train, at, how(party=k)._replace(told=told))
        every = np.arange(0 if one.blind and judge == SERVER else len(dataset.test.y))
        test = _read(work, dataset, dataset.test, every, how(party=judge)._replace(told=told))
    clients = tuple(trained[k].row.numpy() if k in trained else at for k, at in enumerate(partition.clients))
    after = _joined(dataset, [piece.rows for piece in (*train, *test)])
    splits = {
        **{other: _put(dataset, after, split, []) for other, split in dataset.splits.items()},
        "train": _put(dataset, after, dataset.train, train),
        "test": _put(dataset, after, dataset.test, test),
    }
    changed = _described(replace(dataset, splits=splits, class_names=after.classes), after.schema)
    every_told = {**done.told, **({name: told} if told else {})}
    return ChangedRows(
        changed, partition._replace(clients=clients), every_told, {**done.pairs, name: pairs}, done.agreement
    )


def _own(dataset: Dataset, split: Split, at: np.ndarray) -> OwnRows:
    rows = split.take(np.ascontiguousarray(at))
    columns = tuple((column.name, column.categories) for column in schema_of(dataset))
    return OwnRows(rows.x, rows.y, torch.from_numpy(np.ascontiguousarray(at)), columns, dataset.class_names)


def _read(work: Work, dataset: Dataset, split: Split, at: np.ndarray, how: RowsHow) -> list[_Piece]:
    """Return rows read as new ones; [] if there are none."""
    if not len(at) or work.new_rows is None:
        return []
    rows = work.new_rows(_own(dataset, split, at), how)
    return [_Piece(rows.row, rows)]


class _Names(NamedTuple):
    """Columns and classes of all parties."""

    schema: tuple[Column, ...]
    classes: tuple[str, ...]


def _joined(dataset: Dataset, pieces: Sequence[OwnRows]) -> _Names:
    """Return the columns and classes of all parties. New categories and classes are put in the order in which nodes join theirs."""
    out = []
    for j, column in enumerate(schema_of(dataset)):
        found = [rows.columns[j] for rows in pieces]
        known = {*column.categories}.union(*(categories for _, categories in found))
        same = known == {*column.categories}
        name = next((name for name, _ in found), column.name)
        out.append(Column(name, column.categories if same else tuple(sorted(known))))
    classes = {*dataset.class_names}.union(*(rows.classes for rows in pieces))
    same = classes == {*dataset.class_names}
    return _Names(tuple(out), dataset.class_names if same else in_order(classes))


def _put(dataset: Dataset, after: _Names, split: Split, pieces: Sequence[_Piece]) -> Split:
    """Return a split with changed rows in their places, coded by the categories and classes of all parties."""
    rules = [ColumnRule(*column) for column in after.schema]
    x, y = recode(split.x, schema_of(dataset), rules), _classes(split.y, dataset.class_names, after.classes)
    if pieces:
        x, y = x.clone(), y.clone()
    for at, rows in pieces:
        x[at] = recode(rows.x, [Column(*column) for column in rows.columns], rules).to(x.dtype)
        y[at] = _classes(rows.y, rows.classes, after.classes).to(y.dtype)
    return split._replace(x=x, y=y)


def _classes(y: Tensor, told: Sequence[str], classes: Sequence[str]) -> Tensor:
    """Return classes numbered as ``classes`` are; other targets, and equal names, as they are."""
    if tuple(told) == tuple(classes) or y.dim() != 1:
        return y
    return torch.tensor([classes.index(name) for name in told])[y]


def _described(dataset: Dataset, schema: tuple[Column, ...]) -> Dataset:
    """Return the data set with these columns, which stay without a schema if its numbers had none."""
    if schema == schema_of(dataset):
        return dataset
    if dataset.schema or any(column.categories for column in schema):
        return replace(dataset, schema=schema)
    return replace(dataset, columns=tuple(column.name for column in schema))

"""Missing cells: refused, or their rows left out before anybody is dealt a row (EXPERIMENT.md, data.missing)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from fedatlas.data.dataset import Column, Dataset
from fedatlas.errors import DataError

Missing = Literal["error", "drop", "median"]


def schema_of(dataset: Dataset) -> tuple[Column, ...]:
    """Raw columns of two-dimensional rows, named by number where they have no names; () for pictures."""
    if dataset.x_train.dim() != 2:
        return ()
    names = dataset.columns or tuple(str(j) for j in range(dataset.x_train.shape[1]))
    return dataset.schema or tuple(Column(name) for name in names)


def refuse_holes(dataset: Dataset, missing: Missing) -> None:
    """DataError where cells are missing, unless they are those of a table and ``missing = "median"`` fills them."""
    holes = _holes(dataset)
    if holes is None or (missing == "median" and dataset.x_train.dim() == 2):
        return
    train, test = (gone.sum(0) for gone in holes)
    columns = (train + test).nonzero()[:, 0].tolist()
    if not columns:
        return
    names = [column.name for column in schema_of(dataset)]
    first = f"column '{names[columns[0]]}'" if names else "a pixel"
    more = f" and {len(columns) - 1} more columns have holes" if len(columns) > 1 else ""
    advice = (
        "data.missing = 'drop' or 'median' says what to do" if names else "data.missing = 'drop' leaves such rows out"
    )
    raise DataError(
        f"'{dataset.name}': {first} is missing in {int(train[columns[0]])} training and {int(test[columns[0]])} test "
        f"rows{more}: {advice}."
    )


def drop_holes(dataset: Dataset) -> Dataset:
    """The data set without the rows that have a missing cell; DataError where an owner, or a side, is left without rows."""
    holes = _holes(dataset)
    if holes is None or not any(bool(gone.any()) for gone in holes):
        return dataset
    keep = train, test = [~gone.any(1) for gone in holes]
    for side, kept in zip(("training", "test"), keep, strict=True):
        if not bool(kept.any()):
            raise DataError(f"data.missing = 'drop' leaves no {side} rows: all have holes.")
    if dataset.client_train is not None:
        _check_owners(dataset, dataset.client_train, train)

    def cut(value: Tensor | None, mask: Tensor) -> Tensor | None:
        return None if value is None else value[mask]

    dropped = {"train": int((~train).sum()), "test": int((~test).sum())}
    return replace(
        dataset,
        x_train=dataset.x_train[train],
        y_train=dataset.y_train[train],
        x_test=dataset.x_test[test],
        y_test=dataset.y_test[test],
        client_train=cut(dataset.client_train, train),
        weight_train=cut(dataset.weight_train, train),
        weight_test=cut(dataset.weight_test, test),
        rows_train=_numbers(dataset.rows_train, train),
        rows_test=_numbers(dataset.rows_test, test),
        facts={
            **dataset.facts,
            "train_rows": int(train.sum()),
            "test_rows": int(test.sum()),
            "rows_dropped": dropped,
        },
    )


def _holes(dataset: Dataset) -> Sequence[Tensor] | None:
    """Which cells are missing, (rows, cells) of the training and of the test side; None where no cell can be."""
    if not dataset.x_train.is_floating_point():
        return None
    return [torch.isnan(x).reshape(len(x), -1) for x in (dataset.x_train, dataset.x_test)]


def _check_owners(dataset: Dataset, owners: Tensor, keep: Tensor) -> None:
    lost = sorted(set(owners.tolist()) - set(owners[keep].tolist()))
    if lost:
        name = dataset.client_names[lost[0]] if dataset.client_names else str(lost[0])
        held = int((owners == lost[0]).sum())
        raise DataError(
            f"data.missing = 'drop' leaves owner '{name}' without training rows: all its {held} have holes; "
            "take its rows out of the data, or data.missing = 'median'."
        )


def _numbers(held: Tensor | None, keep: Tensor) -> Tensor | None:
    """The rows' numbers in their source, written out where some of them go."""
    if bool(keep.all()):
        return held
    return (torch.arange(len(keep)) if held is None else held)[keep]

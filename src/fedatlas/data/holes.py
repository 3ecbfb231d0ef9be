"""Missing cells: refused, or their rows left out before rows are assigned to clients (`data.missing` in docs/experiment.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from fedatlas.data.dataset import Column, Dataset
from fedatlas.errors import DataError

Missing = Literal["error", "drop", "median"]

SIDES = {"train": "training", "test": "test", "public": "public", "guard": "guard"}
"""Split -> adjective for its rows."""
NAMED = 8  # most further columns that a message names


def schema_of(dataset: Dataset) -> tuple[Column, ...]:
    """Return the raw columns of two-dimensional rows, named by number if unnamed; () for pictures."""
    if dataset.train.x.dim() != 2:
        return ()
    names = dataset.columns or tuple(str(j) for j in range(dataset.train.x.shape[1]))
    return dataset.schema or tuple(Column(name) for name in names)


def refuse_holes(dataset: Dataset, missing: Missing) -> None:
    """Raise DataError for missing cells, unless they are in a table and ``missing = "median"`` fills them."""
    holes = _holes(dataset)
    if holes is None or (missing == "median" and dataset.train.x.dim() == 2):
        return
    counts = {name: gone.sum(0) for name, gone in holes.items()}
    columns = torch.stack(list(counts.values())).sum(0).nonzero()[:, 0].tolist()
    if not columns:
        return
    names = [column.name for column in schema_of(dataset)]
    first = f"column '{names[columns[0]]}'" if names else "a pixel"
    more = _others([names[c] for c in columns[1:]]) if names else ""
    advice = "set data.missing = 'drop' or 'median'" if names else "data.missing = 'drop' leaves out such rows"
    missed = " and ".join(f"{int(found[columns[0]])} {SIDES[name]}" for name, found in counts.items())
    raise DataError(f"'{dataset.name}': {first} is missing in {missed} rows{more}: {advice}.")


def _others(names: Sequence[str]) -> str:
    """Return " (missing cells also in 'b', 'c' and 2 more)"; "" without names."""
    if not names:
        return ""
    listed, rest = ", ".join(f"'{name}'" for name in names[:NAMED]), len(names) - NAMED
    return f" (missing cells also in {listed}{f' and {rest} more' if rest > 0 else ''})"


def drop_holes(dataset: Dataset) -> Dataset:
    """Return the data set without rows that have a missing cell.

    DataError if an owner or a split loses all its rows.
    """
    holes = _holes(dataset)
    if holes is None or not any(bool(gone.any()) for gone in holes.values()):
        return dataset
    keep = {name: ~gone.any(1) for name, gone in holes.items()}
    for name, kept in keep.items():
        if not bool(kept.any()):
            raise DataError(f"data.missing = 'drop' leaves no {SIDES[name]} rows: all have missing cells.")
    if dataset.train.client is not None:
        _check_owners(dataset, dataset.train.client, keep["train"])
    counts = {f"{name}_rows": int(kept.sum()) for name, kept in keep.items()}
    dropped = {name: int((~kept).sum()) for name, kept in keep.items()}
    left = dataset.with_splits(
        **{
            name: dataset.splits[name].numbered().take(kept.nonzero()[:, 0].numpy())
            for name, kept in keep.items()
            if dropped[name]
        }
    )
    return replace(left, facts={**dataset.facts, **counts, "rows_dropped": dropped})


def _holes(dataset: Dataset) -> Mapping[str, Tensor] | None:
    """Return a mask of missing cells per split, (rows, cells); None if the type of x allows none."""
    if not dataset.train.x.is_floating_point():
        return None
    return {name: torch.isnan(split.x).flatten(1) for name, split in dataset.splits.items()}


def _check_owners(dataset: Dataset, owners: Tensor, keep: Tensor) -> None:
    lost = sorted(set(owners.tolist()) - set(owners[keep].tolist()))
    if lost:
        name = dataset.client_names[lost[0]] if dataset.client_names else str(lost[0])
        held = int((owners == lost[0]).sum())
        raise DataError(
            f"data.missing = 'drop' leaves owner '{name}' without training rows: all its {held} have missing cells; "
            "remove its rows from the data, or set data.missing = 'median'."
        )

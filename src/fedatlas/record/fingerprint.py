"""Fingerprints of data: a run that is resumed must find the data it began with, and runs are compared on the same test rows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedatlas.data.dataset import Split
from fedatlas.data.party_tables import PartyTable
from fedatlas.setup.assembly import Setup

WHOLE = 64 << 20  # bytes of inputs that are read through; of more, evenly spaced rows that make as many


def fingerprint(parts: Iterable[str | Tensor | np.ndarray[Any, Any] | None]) -> str:
    """BLAKE2b over texts, arrays by their bytes, and tensors by their type and bytes; None counts as nothing."""
    found = hashlib.blake2b(digest_size=16)
    for part in parts:
        if isinstance(part, Tensor):
            found.update(str(part.dtype).encode())
            found.update(part.detach().contiguous().numpy().data)
        elif part is not None:
            found.update(part.encode() if isinstance(part, str) else np.ascontiguousarray(part).data)
    return found.hexdigest()


def of_rows(setup: Setup) -> Iterator[str | Tensor | np.ndarray[Any, Any] | None]:
    """The rows that a run trains and is judged on (as prepared), their labels and weights, and who holds which.

    Labels, shapes and the partition count in full; of inputs beyond `WHOLE` bytes a fixed sample, so that it stays cheap.
    """
    d = setup.dataset
    for x in (d.train.x, d.test.x):
        yield from (sampled(x), str(tuple(x.shape)))
    yield from (d.train.y, d.test.y, d.train.weight, d.test.weight)
    if (public := getattr(setup.bench.rows, "public", None)) is not None:
        yield from (public.x, public.y)
    for rows in (*setup.partition.clients, *setup.held_out.values(), *setup.validation.values()):
        yield from (f"{len(rows)}:", np.asarray(rows, np.int64))


def of_tables(tables: Sequence[PartyTable]) -> Iterator[str | np.ndarray[Any, Any] | None]:
    """These parties' ids, columns, labels and weights."""
    for one in tables:
        yield from (repr((one.name, one.names, len(one.ids))), "\x1f".join(one.ids), one.x, one.y, one.weight)


def of_splits(splits: Mapping[str, Split]) -> Iterator[str | np.ndarray[Any, Any]]:
    """A node's own rows, by split."""
    for name in sorted(splits):
        for x in splits[name]:
            if x is not None:
                yield from (f"{name} {x.dtype} {tuple(x.shape)}", x.numpy())


def judged_on(setup: Setup) -> str:
    """Which rows of which source a run is judged on, with their targets and weights: equal for runs that can be compared."""
    d = setup.dataset
    source = (d.name, d.facts.get("called"), d.facts.get("files"), d.facts.get("label"), setup.config.evaluation.on)
    held = (np.asarray(rows, np.int64) for rows in setup.validation.values())
    return fingerprint((repr(source), d.test.y, d.test.weight, d.test.row, *held))


def sampled(x: Tensor) -> Tensor:
    """The rows that count: all, or evenly spaced ones, the first and the last among them."""
    size = x.numel() * x.element_size()
    if size <= WHOLE:
        return x
    return x[torch.linspace(0, len(x) - 1, max(2, len(x) * WHOLE // size)).long()]

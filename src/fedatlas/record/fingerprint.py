"""Fingerprints of data: a resumed run must find the data it began with, and compared runs must share test rows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedatlas.config import ExperimentConfig
from fedatlas.data.dataset import Split
from fedatlas.data.kept import located
from fedatlas.data.party_tables import PartyTable
from fedatlas.data.store import sha256
from fedatlas.setup.assembly import Setup

WHOLE = 64 << 20  # bytes of inputs that are hashed in full; of larger ones, evenly spaced rows of about that size


def fingerprint(parts: Iterable[str | Tensor | np.ndarray[Any, Any] | None]) -> str:
    """Return BLAKE2b over texts, arrays by their bytes, and tensors by their type and bytes; None is skipped."""
    found = hashlib.blake2b(digest_size=16)
    for part in parts:
        if isinstance(part, Tensor):
            found.update(str(part.dtype).encode())
            found.update(part.detach().contiguous().numpy().data)
        elif part is not None:
            found.update(part.encode() if isinstance(part, str) else np.ascontiguousarray(part).data)
    return found.hexdigest()


def of_rows(setup: Setup) -> Iterator[str | Tensor | np.ndarray[Any, Any] | None]:
    """Yield the prepared rows that a run trains and is judged on, their labels and weights, and who holds which.

    Labels, shapes and the partition are included in full; of inputs beyond `WHOLE` bytes, a fixed sample.
    """
    d = setup.dataset
    for x in (d.train.x, d.test.x):
        yield from (sampled(x), str(tuple(x.shape)))
    yield from (d.train.y, d.test.y, d.train.weight, d.test.weight)
    if (public := getattr(setup.bench.rows, "public", None)) is not None:
        yield from (public.x, public.y)
    for rows in (*setup.partition.clients, *setup.held_out.values(), *setup.validation.values()):
        yield f"{len(rows)}:"
        yield None if setup.partition.counted else np.asarray(rows, np.int64)


def of_tables(tables: Sequence[PartyTable]) -> Iterator[str | np.ndarray[Any, Any] | None]:
    """Yield the parties' ids, columns, labels and weights."""
    for one in tables:
        yield from (repr((one.name, one.names, len(one.ids))), "\x1f".join(one.ids), one.x, one.y, one.weight)
        yield from ("\x1f".join(keys) for keys in one.later)


def of_splits(splits: Mapping[str, Split]) -> Iterator[str | np.ndarray[Any, Any]]:
    """Yield a node's own rows, by split."""
    for name in sorted(splits):
        for x in splits[name]:
            if x is not None:
                yield from (f"{name} {x.dtype} {tuple(x.shape)}", x.numpy())


def judged_on(setup: Setup, on: str = "") -> str:
    """Return a fingerprint of the evaluation rows, their source, targets and weights: equal for comparable runs.

    ``on``: "test" for the test rows of a run that is judged on validation rows.
    """
    d, on = setup.dataset, on or setup.config.evaluation.on
    source = (d.name, d.facts.get("called"), d.facts.get("files"), d.facts.get("label"), on)
    held = (np.asarray(rows, np.int64) for rows in (setup.validation.values() if on != "test" else ()))
    changed = () if (how := setup.config.drift) is None else (repr((how.kind, how.classes, setup.config.seed)),)
    return fingerprint((repr(source), *changed, d.test.y, d.test.weight, d.test.row, *held))


def sources(setup: Setup) -> list[str]:
    """Return what identifies the rows behind a run, whoever holds which and however they were prepared; it shows no row.

    The SHA-256 of each file; without files the name of the source, so that all rows that it may give count as the same.
    """
    files = [f"sha256:{one['sha256']}" for one in setup.dataset.facts.get("files") or ()]
    facts = setup.dataset.facts
    return sorted({*files}) or [f"source:{facts.get('hub') or facts.get('called') or setup.dataset.name}"]


def label_sources(config: ExperimentConfig) -> list[str]:
    """Return what identifies the rows whose labels a run over columns changes, as `sources` does: those of all parties with labels."""
    files = [one.path for one in config.parties if one.label] if config.parties else config.data.files()
    found = [f"sha256:{sha256(path)}" for path in map(located, files) if path.is_file()]
    return sorted({*found}) or [f"source:{config.data.options().get('path', config.data.name)}"]


def sampled(x: Tensor) -> Tensor:
    """Return all rows, or evenly spaced ones from the first to the last if there are more than `WHOLE` bytes."""
    size = x.numel() * x.element_size()
    if size <= WHOLE:
        return x
    return x[torch.linspace(0, len(x) - 1, max(2, len(x) * WHOLE // size)).long()]

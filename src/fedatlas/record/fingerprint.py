"""What tells one set of rows from another: a run that is resumed must find the data it began with."""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor

from fedatlas.setup.assembly import Setup

WHOLE = 64 << 20  # bytes of inputs that are read through; of more, evenly spaced rows that make as many


def fingerprint(setup: Setup) -> str:
    """BLAKE2b over the rows a run trains and is judged on (as prepared), their labels and weights, and who holds which.

    Labels, shapes and the partition count in full; of inputs beyond `WHOLE` bytes a fixed sample, so that it stays cheap.
    """
    d, found = setup.dataset, hashlib.blake2b(digest_size=16)
    for x in (d.train.x, d.test.x):
        feed(found, sampled(x))
        found.update(str(tuple(x.shape)).encode())
    for y in (d.train.y, d.test.y, d.train.weight, d.test.weight):
        if y is not None:
            feed(found, y)
    public = getattr(setup.bench.rows, "public", None)
    for y in (public.x, public.y) if public is not None else ():
        feed(found, y)
    for rows in (*setup.partition.clients, *setup.held_out.values(), *setup.validation.values()):
        found.update(f"{len(rows)}:".encode() + np.ascontiguousarray(rows, np.int64).tobytes())
    return found.hexdigest()


def judged_on(setup: Setup) -> str:
    """BLAKE2b of which rows of which source a run is judged on, with their targets and weights: equal for runs that can be compared."""
    d, found = setup.dataset, hashlib.blake2b(digest_size=16)
    found.update(
        repr(
            (d.name, d.facts.get("called"), d.facts.get("files"), d.facts.get("label"), setup.config.evaluation.on)
        ).encode()
    )
    for x in (d.test.y, d.test.weight, d.test.row):
        if x is not None:
            feed(found, x)
    for rows in setup.validation.values():
        found.update(np.ascontiguousarray(rows, np.int64).tobytes())
    return found.hexdigest()


def sampled(x: Tensor) -> Tensor:
    """The rows that count: all, or evenly spaced ones, the first and the last among them."""
    size = x.numel() * x.element_size()
    if size <= WHOLE:
        return x
    return x[torch.linspace(0, len(x) - 1, max(2, len(x) * WHOLE // size)).long()]


def feed(found: hashlib.blake2b, x: Tensor) -> None:
    """A tensor's type and bytes."""
    found.update(str(x.dtype).encode())
    found.update(x.detach().contiguous().numpy().data)

"""Assignment of batches: the only place that decides which rows a client sees, and in which order.

Every draw depends only on (seed, purpose, round, client, epoch) and is made on the CPU. So engines, chunk sizes,
worker counts and devices give the same run (C7).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from fedatlas.algorithm import Batch, Budget
from fedatlas.rng import torch_stream


class Rows(NamedTuple):
    """The rows of one client, as the model sees them (images scaled, tokens as ids)."""

    x: Tensor
    y: Tensor
    weight: Tensor | None = None

    @property
    def n(self) -> int:
        """Number of rows."""
        return len(self.x)

    def on(self, device: torch.device) -> Rows:
        """Return the same rows on a device."""
        return self if self.x.device == device else Rows(*(None if t is None else t.to(device) for t in self))  # type: ignore[arg-type]

    def take(self, index: Tensor) -> Rows:
        """Return the rows at ``index``, in its order.

        `index_select` is five times as fast as indexing on MNIST's rows.
        """
        index = index.to(self.x.device)
        return Rows(*(None if t is None else t.index_select(0, index) for t in self))  # type: ignore[arg-type]


Masks = Callable[[int, torch.Generator], dict[str, Tensor]]
"""(rows, stream) -> the dropout masks of a batch by buffer name, scaled by 1 / (1 - p)."""


Values = Callable[[Tensor], Mapping[str, Tensor]]
"""rows -> further values for each row, by name; each depends on its row only."""


Taint = Callable[[Tensor, Tensor, Sequence[int]], tuple[Tensor, Tensor]]
"""(x, y, rows of each batch) -> what a malicious client trains on instead."""


class Sampling(Protocol):
    """Batches drawn by a privacy mechanism instead of shuffled epochs: any number of rows in each, a fixed number expected."""

    steps: int
    size: int  # rows expected in a batch
    room: int  # rows of a pass: a batch is padded to one pass or several
    dtype: torch.dtype  # of the trained tensors

    def chosen(self, step: int) -> Tensor: ...  # indices of a step's rows
    def beside(self, step: int) -> Mapping[str, Tensor]: ...  # further inputs of a step


class Draw(NamedTuple):
    """The rules for drawing the batches of one piece of local work."""

    seed: int
    round: int
    client: int  # the client whose streams are used; the centralised baseline uses those of client 0
    batch_size: int  # 0 = all rows
    augment: str = "none"
    masks: Masks | None = None  # dropout
    fill: tuple[float, ...] = ()  # padding of a cropped picture, per channel: black after scaling
    first_epoch: int = 0
    least: int = 1  # fewest rows in a batch; the variance in batch norm needs two
    merge: bool = False  # a short last batch joins the one before it
    sampling: Sampling | None = None  # replaces the shuffled epochs
    taint: Taint | None = None  # changes rows after augmentation


def cut(n: int, size: int, merge: bool = False) -> tuple[int, int]:
    """Return how ``n`` rows make batches: (number of batches of ``size`` rows, rows of one more batch at the end, or 0).

    ``size`` 0: all rows at once. ``merge``: a short last batch joins the one before it, if there is one.
    """
    whole, rest = divmod(n, size) if size else (0, n)
    return (whole - 1, size + rest) if merge and whole and rest else (whole, rest)


def examples_of(budget: Budget, n: int, batch_size: int, least: int = 1, merge: bool = False) -> int:
    """Return the number of examples that a budget allows on ``n`` rows: the least of its epochs, steps and examples.

    A last batch of fewer than ``least`` rows is skipped and does not count as a step. ``merge`` as in `cut`.
    """
    found = [budget.examples] if budget.examples is not None else []
    if budget.steps is not None:
        size = batch_size or n
        full, last = cut(n, size, merge) if n else (0, 0)
        whole, rest = divmod(budget.steps, max(full + (last >= max(least, 1)), 1))
        found.append(whole * n + min(rest * size, n))
    if budget.epochs is not None:
        found.append(n * budget.epochs)
    return min(found, default=0)


def examples_of_pass(n: int, draw: Draw) -> int:
    """Return the number of examples used in one pass over ``n`` rows.

    A last batch of fewer than ``least`` rows is skipped.
    """
    _, rest = cut(n, draw.batch_size or n, draw.merge) if n else (0, 0)
    return n - rest if rest < draw.least else n


def batches(rows: Rows, budget: Budget, draw: Draw, values: Values | None = None) -> Iterator[Batch]:
    """Yield the batches of a budget: epochs of shuffled rows.

    A short last batch is kept if it has ``least`` rows. With ``draw.merge`` it joins the one before it. ``values``
    become the batch's ``extra``. They are computed once if rows are not augmented or tainted and all are needed, else
    once per epoch.
    """
    if draw.sampling is not None:
        yield from sampled(rows, draw, draw.sampling)
        return
    left = examples_of(budget, rows.n, draw.batch_size, draw.least, draw.merge) if rows.n else 0
    epoch = draw.first_epoch
    steady = draw.augment == "none" and draw.taint is None
    once = values(rows.x) if values is not None and steady and left >= rows.n else None
    while left > 0:
        take = min(left, rows.n)
        key = (draw.round, draw.client, epoch)
        order = torch.randperm(rows.n, device="cpu", generator=torch_stream(draw.seed, "shuffle", *key))[:take]
        order = order if draw.batch_size else order.sort().values
        shuffled = rows.take(order)
        if draw.augment == "crop_flip":
            shuffled = shuffled._replace(x=crop_flip(shuffled.x, torch_stream(draw.seed, "augment", *key), draw.fill))
        whole, rest = cut(take, draw.batch_size or take, draw.merge)
        size = [draw.batch_size or take] * whole + [rest] * (rest > 0)
        if draw.taint is not None:
            x, y = draw.taint(shuffled.x, shuffled.y, size)
            shuffled = shuffled._replace(x=x, y=y)
        beside = row_values(values, once, shuffled.x, order)
        others = {name: torch.split(x, size) for name, x in beside.items()}
        weights = repeat(None) if shuffled.weight is None else torch.split(shuffled.weight, size)
        pieces = zip(torch.split(shuffled.x, size), torch.split(shuffled.y, size), weights, strict=False)
        for number, (x, y, weight) in enumerate(pieces):
            if x.shape[0] < draw.least:
                continue
            masks = draw.masks(x.shape[0], torch_stream(draw.seed, "dropout", *key, number)) if draw.masks else {}
            extra = {name: mask.to(x.device) for name, mask in masks.items()}
            yield Batch(x, y, weight, {**extra, **{name: each[number] for name, each in others.items()}})
        left -= take
        epoch += 1
        del beside, others  # free them before the next epoch is gathered


def sampled(rows: Rows, draw: Draw, sampling: Sampling) -> Iterator[Batch]:
    """Yield the batches of a mechanism, each padded to whole passes by rows of zeros and weight 0."""
    for step in range(sampling.steps):
        index = sampling.chosen(step)
        n = max(math.ceil(len(index) / sampling.room), 1) * sampling.room
        given = rows.take(index)
        weight = rows.y.new_ones(len(index), dtype=sampling.dtype) if given.weight is None else given.weight
        x, key = given.x, (draw.round, draw.client, draw.first_epoch, step)
        if draw.augment == "crop_flip":
            x = crop_flip(x, torch_stream(draw.seed, "augment", *key), draw.fill)
        y = given.y
        if draw.taint is not None:
            x, y = draw.taint(x, y, [len(index)])
        masks = draw.masks(n, torch_stream(draw.seed, "dropout", *key)) if draw.masks else {}
        extra = {name: each.to(x.device) for name, each in {**masks, **sampling.beside(step)}.items()}
        yield Batch(padded(x, n), padded(y, n), padded(weight, n), extra)


def padded(x: Tensor, n: int) -> Tensor:
    """Return ``n`` rows: those of ``x``, then zeros."""
    return torch.cat([x, x.new_zeros(n - len(x), *x.shape[1:])]) if n > len(x) else x


def row_values(
    values: Values | None, once: Mapping[str, Tensor] | None, x: Tensor, order: Tensor
) -> Mapping[str, Tensor]:
    """Return the further values of an epoch's rows ``x``; ``order`` gives their indices."""
    if once is not None:
        return {name: each.index_select(0, order.to(each.device)) for name, each in once.items()}
    return {} if values is None else values(x)


def crop_flip(x: Tensor, stream: torch.Generator, fill: tuple[float, ...] = (), pad: int = 4) -> Tensor:
    """Randomly crop images (n, c, h, w) after padding by ``pad``, and flip them horizontally at random, as for CIFAR (M7)."""
    n, _, h, w = x.shape
    top, left = torch.randint(0, 2 * pad + 1, (2, n), device="cpu", generator=stream)
    flip = torch.rand(n, device="cpu", generator=stream) < 0.5
    black = torch.tensor(fill or (0.0,), dtype=x.dtype, device="cpu").view(1, -1, 1, 1).to(x.device)
    padded = torch.nn.functional.pad(x - black, (pad, pad, pad, pad)) + black
    down, across, items, channels = (torch.arange(size, device="cpu") for size in (h, w, n, x.shape[1]))
    rows = (top[:, None] + down)[:, None, :, None]
    columns = left[:, None] + across
    columns = torch.where(flip[:, None], columns.flip(1), columns)[:, None, None, :]
    index = items[:, None, None, None], channels[None, :, None, None], rows, columns
    return padded[tuple(each.to(x.device) for each in index)]


def public_rows(n: int, rows: int, seed: int, round: int) -> Tensor:
    """Return the indices of this round's ``rows`` of n public rows, ascending; they follow from the seed."""
    return torch.randperm(n, device="cpu", generator=torch_stream(seed, "public", round))[:rows].sort().values


def parted_rows(rows: Rows, share: float, seed: int, round: int, client: int) -> tuple[Rows, Rows | None]:
    """Return (training rows, held-out rows to judge by): a share, at least one row but not all; None for a single row."""
    held = min(max(math.floor(share * rows.n + 0.5), 1), rows.n - 1)
    if held < 1:
        return rows, None
    order = torch.randperm(rows.n, device="cpu", generator=torch_stream(seed, "patience", round, client))
    return rows.take(order[held:].sort().values), rows.take(order[:held].sort().values)


def balanced_rows(y: Tensor, seed: int, round: int, client: int) -> Tensor:
    """Return the indices of a class-balanced subset, ascending: each class present gets as many rows as the rarest (H3)."""
    order = torch.randperm(len(y), device="cpu", generator=torch_stream(seed, "balance", round, client))
    classes, counts = torch.unique(y, return_counts=True)
    quota = int(counts.min())
    kept = [order[y[order] == c][:quota] for c in classes]
    return torch.cat(kept).sort().values

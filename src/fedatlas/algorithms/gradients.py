"""A client's exact gradient, over rows that come in pieces."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedatlas.algorithm import Batch, Network
from fedatlas.tree import Tensors, Tree


def mean_gradient(model: Network, batches: Sequence[Batch], params: Tensors, *, by_rows: bool = True) -> Tree:
    """Mean over ``batches`` of the gradient of the model's loss, by what they hold (a client's whole gradient) or batch by batch."""
    leaves = {name: x.detach().requires_grad_() for name, x in params.items()}
    total = Tree({name: torch.zeros_like(x) for name, x in params.items()})
    shares = shares_of(batches) if by_rows else [1 / len(batches)] * len(batches)
    for batch, share in zip(batches, shares, strict=True):
        loss = model.loss(leaves, batch)
        grads: tuple[Tensor | None, ...] = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        found = {name: g for name, g in zip(leaves, grads, strict=True) if g is not None}
        total = Tree({name: x + share * found[name] if name in found else x for name, x in total.items()})
    return total


def shares_of(batches: Sequence[Batch]) -> list[float]:
    """What each batch counts in the mean over all rows: its rows, their weights or the tokens that count; adds up to 1."""

    def held(batch: Batch) -> float:
        tokens = batch.y.dim() == 2 and not batch.y.is_floating_point()
        if not tokens and batch.weight is None:
            return len(batch.x)
        each = (batch.y >= 0).sum(1) if tokens else torch.ones(len(batch.x))
        return float((each if batch.weight is None else each * batch.weight).sum())

    found = [held(batch) for batch in batches]
    total = sum(found)
    return [each / total if total else 0.0 for each in found]

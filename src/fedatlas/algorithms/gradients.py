"""A client's exact gradient, over rows that come in pieces."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedatlas.algorithm import Batch, Network
from fedatlas.tree import Tensors, Tree


def mean_gradient(model: Network, batches: Sequence[Batch], params: Tensors, *, by_rows: bool = True) -> Tree:
    """Return the mean gradient of the model's loss over ``batches``, weighted by their rows (a whole gradient) or equally."""
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
    """Return each batch's share in the mean over all rows: by rows, weights or counted tokens; the shares add up to 1."""

    def held(batch: Batch) -> float:
        tokens = batch.y.dim() == 2 and not batch.y.is_floating_point()
        if not tokens and batch.weight is None:
            return len(batch.x)
        each = (batch.y >= 0).sum(1) if tokens else torch.ones(len(batch.x))
        return float((each if batch.weight is None else each * batch.weight).sum())

    found = [held(batch) for batch in batches]
    total = sum(found)
    return [each / total if total else 0.0 for each in found]

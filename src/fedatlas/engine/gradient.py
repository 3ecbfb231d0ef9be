"""The gradient of a local step, computed in one place for the loop, the traced and the tuned step.

Clipping and noise for each row enter here: a mechanism's `Gradient` replaces `gradient` (`engine.private_steps`). It receives the
objective and the batch instead of a finished loss, so that it can form the gradients of single rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedatlas.algorithm import Batch
from fedatlas.tree import Tensors, Tree

Objective = Callable[[Tree, Batch], Tensor]
"""(params, batch) -> scalar: the value that a local step decreases, with message, state and facts filled in."""

Gradient = Callable[[Objective, Tree, Batch], tuple[Tensor, Tree]]
"""(objective, params, batch) -> (loss, the gradient that the step uses)."""


def gradient(objective: Objective, params: Tree, batch: Batch) -> tuple[Tensor, Tree]:
    """Return (loss, d loss / d params) of a batch; zeros for an unused tensor. ``params``: from `with_grad`."""
    with torch.enable_grad():
        loss = objective(params, batch)
        grads = torch.autograd.grad(loss, list(params.values()), allow_unused=True)
    pairs = zip(params.items(), grads, strict=True)
    return loss, Tree({name: torch.zeros_like(x) if g is None else g for (name, x), g in pairs})  # type: ignore[redundant-expr]


def output_gradients(
    objective: Objective, params: Tree, batch: Batch, outputs: Callable[[], Sequence[Tensor]]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return (loss, d (weight of all rows times loss) / d each output of layers inside it). ``outputs`` is called after the loss."""
    with torch.enable_grad():
        loss = objective(with_grad(params), batch)
        whole = loss * (len(batch.x) if batch.weight is None else batch.weight.sum())
    return loss.detach(), torch.autograd.grad(whole, outputs())


def with_grad(tree: Tensors) -> Tree:
    """Return leaves that collect gradients and share memory with ``tree``."""
    return Tree({name: x.detach().requires_grad_() for name, x in tree.items()})

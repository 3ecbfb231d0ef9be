"""The local optimisers as pure functions, with fresh memory in every round (C5).

Order within a step (docs/experiment.md): gradient + decay * w -> direction -> clip -> optimiser.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedatlas.tree import Tree


class Optimizer(NamedTuple):
    """A local optimiser and its constants. ``eps`` and ``betas`` are Adam's (Kingma and Ba 2015, bias-corrected)."""

    name: Literal["sgd", "adam"] = "sgd"
    momentum: float = 0.0
    nesterov: bool = False
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8


class Memory(NamedTuple):
    """State that an optimiser carries from step to step of one client's local work."""

    first: Tree
    second: Tree
    steps: int


def start(optimizer: Optimizer, params: Tree) -> Memory:
    """Return an empty memory."""
    nothing = Tree()
    if optimizer.name == "adam":
        return Memory(params.zeros(), params.zeros(), 0)
    return Memory(params.zeros() if optimizer.momentum else nothing, nothing, 0)


def step(optimizer: Optimizer, params: Tree, grads: Tree, memory: Memory, lr: float) -> tuple[Tree, Memory]:
    """Return the result of one update.

    SGD: u <- momentum u + g, w <- w - lr u (Nesterov: lr (g + momentum u)); Adam: bias-corrected moments.
    """
    if optimizer.name == "adam":
        b1, b2 = optimizer.betas
        t = memory.steps + 1
        m = b1 * memory.first + (1 - b1) * grads
        v = b2 * memory.second + (1 - b2) * (grads * grads)
        moved = m.map(lambda m_i, v_i: (m_i / (1 - b1**t)) / ((v_i / (1 - b2**t)).sqrt() + optimizer.eps), v)
        return params - lr * moved, Memory(m, v, t)
    if not optimizer.momentum:
        return params - lr * grads, memory
    u = optimizer.momentum * memory.first + grads
    moved = grads + optimizer.momentum * u if optimizer.nesterov else u
    return params - lr * moved, Memory(u, memory.second, memory.steps + 1)


def adam_pass(
    optimizer: Optimizer,
    params: list[Tensor],
    grads: list[Tensor],
    first: list[Tensor],
    second: list[Tensor],
    steps: Tensor,
    lr: float,
) -> None:
    """Run Adam's `step` in place, in torch's single pass over all tensors. Gradients are laid out like their parameters.

    ``steps``: float64, on the CPU (a GPU needs it with the parameters, in float32); incremented here.
    """
    steps.add_(1)
    if not params:
        return
    device = params[0].device
    count = steps if device.type == "cpu" else steps.to(device, torch.float32)
    torch._fused_adam_(
        params,
        grads,
        first,
        second,
        [],
        [count] * len(params),
        lr=lr,
        beta1=optimizer.betas[0],
        beta2=optimizer.betas[1],
        weight_decay=0.0,
        eps=optimizer.eps,
        amsgrad=False,
        maximize=False,
    )


def clip(grads: Tree, limit: float) -> Tree:
    """Return grads * min(1, limit / ||grads||), with the Euclidean norm over all tensors; a limit of 0 means off."""
    if not limit:
        return grads
    square = sum((g * g).sum() for g in grads.values())
    return grads * (limit / square.sqrt().clamp(min=1e-12)).clamp(max=1.0)  # type: ignore[union-attr]

"""Gradients of single rows, clipped and added up, without ever holding all of them where the layers allow it.

====  =======================================  =====  ====================================================
x_i   input of a linear layer for row i        d_i    gradient of row i's loss by the layer's output
S     bound of a row's gradient                c_i    min(1, S / length of row i's gradient), its factor
====  =======================================  =====  ====================================================

A linear layer's gradient for row i is d_i x_i^T, and d_i for its bias. So over all layers its squared length is
sum ||d_i||^2 (||x_i||^2 + 1), and the clipped sum is one product (c * d)^T x per layer: nothing of the size rows x weights
is formed (`by_layers`). Any other network, or loss, is differentiated row by row (`by_rows`), so that no row's gradient depends
on another row, whatever the network computes.

A row whose gradient is not finite counts as zero.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad_and_value, vmap

from fedatlas.algorithm import Batch
from fedatlas.engine.gradient import Objective, gradient, output_gradients, with_grad
from fedatlas.models.dropout import Dropout
from fedatlas.models.network import HeadedModel
from fedatlas.tree import Tree

Layers = Mapping[str, nn.Linear]
Summed = tuple[Tensor, Tree]

MARGIN = 1 - 2.0**-13  # lengths are computed in float32, with an error far below this
ROOM = 1 << 25  # numbers of single rows' gradients that are held at once
APART = (nn.Flatten, nn.Identity, nn.Sequential, HeadedModel, Dropout)
ELEMENTWISE = (nn.ReLU, nn.LeakyReLU, nn.ELU, nn.SELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Hardtanh)


def dense_layers(module: nn.Module) -> Layers | None:
    """Return the linear layers of a network made of nothing else but elementwise functions; None for any other network.

    Only modules of known types count, since any other could mix rows, or use a parameter twice.
    """
    found: dict[str, nn.Linear] = {}
    for name, each in module.named_modules(remove_duplicate=False):
        if type(each) is nn.Linear:
            found[name] = each
        elif type(each) not in (*APART, *ELEMENTWISE) or getattr(each, "inplace", False) or mixes(each):
            return None
    held = [id(x) for each in found.values() for x in each.parameters(recurse=False)]
    alone = len({*held}) == len(held) and all(x.requires_grad for x in module.parameters())
    return found if found and alone and not any(each._forward_hooks for each in module.modules()) else None


def mixes(each: nn.Module) -> bool:
    """Return whether a layer flattens rows into one another."""
    return isinstance(each, nn.Flatten) and (each.start_dim, each.end_dim) != (1, -1)


def clipped_sum(layers: Layers | None, objective: Objective, params: Tree, batch: Batch, clip: float) -> Summed:
    """Return (mean loss, sum over the rows of weight_i * gradient_i, each shortened to ``clip``).

    ``layers``: from `dense_layers`, if the objective is the network's own loss. ``batch.weight`` is 0 for rows that only pad.
    """
    found = None if layers is None else by_layers(layers, objective, params, batch, clip)
    return by_rows(objective, params, batch, clip) if found is None else found


def factors(squares: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """Return (which rows have a finite length, their factors), given squared lengths. A factor is 0 where a length is not finite."""
    fine = squares.isfinite()
    scale = (clip * MARGIN / squares.sqrt().clamp_min(torch.finfo(squares.dtype).tiny)).clamp_max(1.0)
    return fine, torch.where(fine, scale, 0.0)


# ---------------------------------------------------------------------- dense networks


def by_layers(layers: Layers, objective: Objective, params: Tree, batch: Batch, clip: float) -> Summed | None:
    """Return `clipped_sum` from the layers' inputs and the gradients of their outputs; None if a layer did not see one row per row."""
    seen: dict[str, tuple[Tensor, Tensor]] = {}
    used = 0

    def note(name: str, layer: nn.Module, given: tuple[Any, ...], out: Tensor) -> None:
        nonlocal used
        seen[name], used = (given[0].detach(), out), used + 1

    hooks = [layer.register_forward_hook(partial(note, name)) for name, layer in layers.items()]
    try:
        loss, deltas = output_gradients(objective, params, batch, lambda: [out for _, out in seen.values()])
    finally:
        for hook in hooks:
            hook.remove()
    if used != len(layers) or len(seen) != used or any(x.shape[:-1] != batch.x.shape[:1] for x, _ in seen.values()):
        return None
    inputs: Sequence[Tensor] = [x for x, _ in seen.values()]
    squares = loss.new_zeros(len(batch.x))
    for (name, _), x, delta in zip(seen.items(), inputs, deltas, strict=True):
        lengths = torch.linalg.vecdot(x, x) + (1 if layers[name].bias is not None else 0)
        squares += lengths * torch.linalg.vecdot(delta, delta)
    fine, scale = factors(squares, clip)
    if not fine.all():
        inputs = [torch.where(fine[:, None], x, 0.0) for x in inputs]
        deltas = tuple(torch.where(fine[:, None], delta, 0.0) for delta in deltas)
    total: dict[str, Tensor] = {}
    for name, x, delta in zip(seen, inputs, deltas, strict=True):
        at, shortened = f"{name}." if name else "", delta * scale[:, None]
        total[f"{at}weight"] = shortened.T @ x
        if layers[name].bias is not None:
            total[f"{at}bias"] = shortened.sum(0)
    return (loss, Tree({name: total[name] for name in params})) if total.keys() == params.keys() else None


# ---------------------------------------------------------------------- any network


def by_rows(objective: Objective, params: Tree, batch: Batch, clip: float) -> Summed:
    """Return `clipped_sum` from the gradient of each row by itself, some rows at once, or one after another where torch cannot."""
    n, numbers = len(batch.x), sum(x.numel() for x in params.values())
    weight = torch.ones(n, dtype=next(iter(params.values())).dtype) if batch.weight is None else batch.weight
    at_once = max(1, min(n, ROOM // max(numbers, 1)))
    try:
        return added(batch, weight, at_once, clip, together(objective, params))
    except (
        RuntimeError,
        NotImplementedError,
    ):  # an operator without a rule for several rows, or one that draws random numbers
        return added(batch, weight, 1, clip, one_by_one(objective, params))


Rowwise = Callable[[Tensor, Tensor, Mapping[str, Tensor]], tuple[Tensor, Tree]]
"""(x, y, masks) of some rows -> (the loss of each, the gradient of each)."""


def together(objective: Objective, params: Tree) -> Rowwise:
    """Return the gradients of several rows by one vectorised pass."""

    def one(weights: dict[str, Tensor], x: Tensor, y: Tensor, masks: Mapping[str, Tensor]) -> Tensor:
        return objective(Tree(weights), alone(x, y, masks))

    each = vmap(grad_and_value(one), in_dims=(None, 0, 0, 0))
    own = {name: x.detach() for name, x in params.items()}

    def rows(x: Tensor, y: Tensor, masks: Mapping[str, Tensor]) -> tuple[Tensor, Tree]:
        with warnings.catch_warnings():  # torch warns of operators, such as an LSTM, that it takes row by row itself
            warnings.filterwarnings("ignore", "There is a performance drop")
            grads, losses = each(own, x, y, dict(masks))
        return losses.detach(), Tree({name: g.detach() for name, g in grads.items()})

    return rows


def one_by_one(objective: Objective, params: Tree) -> Rowwise:
    """Return the gradient of a single row by plain autograd."""

    def row(x: Tensor, y: Tensor, masks: Mapping[str, Tensor]) -> tuple[Tensor, Tree]:
        loss, found = gradient(objective, with_grad(params), alone(x[0], y[0], {k: m[0] for k, m in masks.items()}))
        return loss.detach()[None], found.map(lambda g: g[None])

    return row


def alone(x: Tensor, y: Tensor, masks: Mapping[str, Tensor]) -> Batch:
    """Return a batch of one row."""
    return Batch(x[None], y[None], None, {name: mask[None] for name, mask in masks.items()})


def added(batch: Batch, weight: Tensor, at_once: int, clip: float, rowwise: Rowwise) -> Summed:
    """Return the clipped sum, ``at_once`` rows at a time."""
    loss, total = weight.new_zeros(()), dict[str, Tensor]()
    for at in range(0, len(batch.x), at_once):
        part = slice(at, at + at_once)
        losses, grads = rowwise(batch.x[part], batch.y[part], {name: m[part] for name, m in batch.extra.items()})
        flat = {name: g.flatten(1) * weight[part, None] for name, g in grads.items()}
        squares = torch.stack([torch.linalg.vecdot(g, g) for g in flat.values()]).sum(0)
        fine, scale = factors(squares, clip)
        for name, g in flat.items():
            if not fine.all():
                g = torch.where(fine[:, None], g, 0.0)
            total[name] = total.get(name, 0.0) + (scale @ g).view(grads[name].shape[1:])
        loss = loss + torch.where(weight[part] > 0, losses * weight[part], 0.0).sum()
    return loss / weight.sum().clamp_min(1.0), Tree(total)

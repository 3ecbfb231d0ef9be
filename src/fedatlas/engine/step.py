"""The parts of one local step, and the layout of trees, numbers and records as a flat list of tensors."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedatlas.algorithm import Batch
from fedatlas.engine import optim
from fedatlas.engine.gradient import Gradient, gradient
from fedatlas.engine.optim import Memory, Optimizer
from fedatlas.errors import FedatlasError
from fedatlas.tree import Tensors, Tree

Inputs = Mapping[str, Any]
"""All that stays the same during one client's local work: trees, tensors and numbers, nested to any depth.

``inputs["lr"]`` is the learning rate; ``inputs["weight_decay"]``, if present, adds weight_decay * w to the
gradient. Numbers reach ``loss`` and ``direction`` as tensors without dimensions: compute with them, do not branch.
"""


NESTED = (Mapping, tuple, list)
InputForm = frozenset[tuple[str, Any]]
"""The form that two clients' inputs must share for one program to hold for both (`form_of`)."""


class StepSpec(NamedTuple):
    """One step of one client: gradient of ``loss`` + decay * w -> ``direction`` -> clip -> optimiser."""

    module: nn.Module
    loss: Callable[[Tree, Tree, Batch, Inputs], Tensor]  # (params, buffers, batch, inputs) -> scalar
    direction: Callable[[Tree, Tree, Inputs], Tree] | None = None  # (grads, params, inputs) -> grads
    optimizer: Optimizer = Optimizer()
    clip: float = 0.0  # limit of the gradient's Euclidean norm over all tensors; 0 = off
    precision: str = "float32"  # "bfloat16": convolutions in bfloat16, weights and all else unchanged
    gradient: Gradient = gradient  # a mechanism's own is known to the tuned step only


class NotTraceable(FedatlasError):
    """Raised if no step program can be derived. The message gives the reason, and the tuned step is used instead."""


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path, leaf) of nested mappings, records and lists, in order."""
    return ((where, item) for where, item in _walk(value, path) if not isinstance(item, NESTED))


def _walk(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield (path, value) of a nested value and of everything inside it, in order."""
    yield path, value
    if isinstance(value, NESTED):
        for key, item in _items(value):
            yield from _walk(item, f"{path}/{key}" if path else str(key))


def rebuilt(like: Any, found: Mapping[str, Any], path: str = "") -> Any:
    """Return ``like`` with every leaf replaced by the one under its path in ``found``, if any."""
    items = [(key, f"{path}/{key}" if path else str(key), item) for key, item in _items(like)]
    fresh = {
        key: rebuilt(item, found, where) if isinstance(item, NESTED) else found.get(where, item)
        for key, where, item in items
    }
    if isinstance(like, Mapping):
        return Tree(fresh) if isinstance(like, Tree) else fresh
    if hasattr(like, "_fields"):
        return type(like)(**fresh)
    return type(like)(fresh.values())


def _items(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(value._fields, value, strict=True))
    return list(enumerate(value))


def form_of(inputs: Any) -> InputForm:
    """Return the properties that traced code may branch on: the names, and every leaf that is neither tensor nor number."""

    def form(item: Any) -> Any:
        if isinstance(item, NESTED):
            return len(item)  # an empty mapping is part of the form too
        return "tensor" if isinstance(item, Tensor) else "number" if is_number(item) else repr(item)

    return frozenset((where, form(item)) for where, item in _walk(inputs, ""))


def shapes_of(inputs: Any) -> InputForm:
    """Return every tensor's shape by its path."""
    return frozenset((path, tuple(leaf.shape)) for path, leaf in leaves(inputs) if isinstance(leaf, Tensor))


def is_number(leaf: Any) -> bool:
    """Return whether a leaf is a plain number, which a step program takes as a tensor without dimensions."""
    return isinstance(leaf, numbers.Real) and not isinstance(leaf, bool)


def moved(value: Any, device: torch.device) -> Any:
    """Return the same value, nested in any way, with its tensors on ``device``."""
    if isinstance(value, Tensor):
        return value.to(device)
    return rebuilt(value, {path: leaf.to(device) for path, leaf in leaves(value) if isinstance(leaf, Tensor)})


def number(value: float) -> Tensor:
    """Return a number as a step program's tensor: float64 on the CPU, so that it promotes no tensor with dimensions."""
    return torch.tensor(float(value), dtype=torch.float64, device="cpu")


def contiguous(x: Tensor) -> Tensor:
    """Return the elements contiguous in memory, with regular strides also in dimensions of size 1."""
    x = x.contiguous()
    return x.view(-1).view(x.shape) if 1 in x.shape else x


def channels_last(x: Tensor) -> Tensor:
    """Return a picture batch or a convolution's weight in channels-last order.

    With one channel both orders describe the same memory, and torch assumes channels-first. Here the strides state
    channels-last, so that the first convolution does not force the whole network into the slow order.
    """
    if x.dim() != 4:
        return x
    _, c, h, w = x.shape
    if c == 1:
        return x.contiguous().as_strided(x.shape, (h * w, 1, w, 1))
    return x.contiguous(memory_format=torch.channels_last)


def laid_out(x: Tensor) -> Tensor:
    """Return a parameter, or a value added to one, in the one layout that steps work in."""
    return channels_last(x if x.dim() == 4 and 1 not in x.shape else contiguous(x))


@torch.inference_mode(mode=False)
def local_copy(params: Tensors) -> Tree:
    """Return a client's own parameters in the layout of steps, without inference tensors, so that any step can take them."""
    return Tree({name: laid_out(x.detach()).clone() for name, x in params.items()})


@torch.inference_mode(mode=False)
def fresh_memory(optimizer: Optimizer, params: Tree) -> Memory:
    """Return an empty optimiser memory that several bound steps (of different batch shapes) of one client can share."""
    return optim.start(optimizer, params)._replace(steps=number(0))  # type: ignore[arg-type]  # counted in place


def batch_arguments(batch: Batch) -> tuple[Tensor, ...]:
    """Return the arguments of a step: x, y, the row weights if there are any, and the masks in their order."""
    weight = () if batch.weight is None else (batch.weight,)
    return (batch.x, batch.y, *weight, *batch.extra.values())

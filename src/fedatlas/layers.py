"""A network as a chain of layers of units, and what happens to its tensors when units are picked, renamed or added.

A `Layer` says where its units lie in each of its tensors; `fedatlas.models.chain` reads the chain off a module. All functions are
pure and work for dense, convolutional, embedding and recurrent layers alike, because an `Axis` is all they look at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedatlas.tree import Tensors, Tree


class Axis(NamedTuple):
    """Units along one dimension of a tensor: unit u of n lies at (g n + u) block + b for every gate g and position b."""

    dim: int
    gates: int = 1  # an LSTM's four gates, one after another
    block: int = 1  # a channel's pixels, next to each other, where pictures are flattened


class LayerTensor(NamedTuple):
    """One tensor of a layer."""

    name: str
    units: Axis
    inputs: Axis | None = None  # the units of the layer before; None: it has none here (biases, the first layer)
    own: Axis | None = None  # the layer's own units a second time (hidden to hidden)


class Layer(NamedTuple):
    """A layer of so many units. Its first part is a weight; the last layer's units are the outputs."""

    name: str
    units: int
    parts: tuple[LayerTensor, ...]


Index = Tensors
"""Name of a hidden layer -> unit numbers, (units,) of any integer type."""


def plain(layers: Sequence[Layer]) -> list[Any]:
    """As lists, for a message."""
    return [
        [x.name, x.units, [[p.name, *(None if axis is None else list(axis) for axis in p[1:])] for p in x.parts]]
        for x in layers
    ]


def parsed(value: Sequence[Any]) -> tuple[Layer, ...]:
    """The inverse of `plain`."""

    def tensor(name: str, *axes: Sequence[int] | None) -> LayerTensor:
        return LayerTensor(name, *(None if axis is None else Axis(*axis) for axis in axes))  # type: ignore[arg-type]  # units is never None

    return tuple(Layer(name, units, tuple(tensor(*part) for part in parts)) for name, units, parts in value)


def take(x: Tensor, axis: Axis, index: Tensor) -> Tensor:
    """Units ``index`` of ``x``, in that order."""
    return x.index_select(axis.dim, _places(axis, index, count(x, axis)))


def put(x: Tensor, axis: Axis, index: Tensor, width: int) -> Tensor:
    """``x`` among ``width`` units: its unit j becomes unit ``index[j]``, all others are zero."""
    shape = list(x.shape)
    shape[axis.dim] = axis.gates * width * axis.block
    return x.new_zeros(shape).index_copy(axis.dim, _places(axis, index, width), x)


def count(x: Tensor, axis: Axis) -> int:
    """Units along an axis."""
    return x.shape[axis.dim] // (axis.gates * axis.block)


def width(params: Tensors, layer: Layer) -> int:
    """Units that a layer has in ``params``, whatever it had at first."""
    return count(params[layer.parts[0].name], layer.parts[0].units)


def _places(axis: Axis, index: Tensor, width: int) -> Tensor:
    gates, block = torch.arange(axis.gates)[:, None, None], torch.arange(axis.block)
    return ((gates * width + index.long()[:, None]) * axis.block + block).reshape(-1)


def rows(x: Tensor, axis: Axis) -> Tensor:
    """All numbers of each unit as one row: (units, numbers)."""
    y = x.movedim(axis.dim, 0)
    return y.reshape(axis.gates, count(x, axis), -1).transpose(0, 1).reshape(count(x, axis), -1)


def from_rows(matrix: Tensor, axis: Axis, like: Tensor) -> Tensor:
    """The inverse of `rows`, shaped as ``like`` but for the number of units; the axis has no blocks."""
    rest = like.movedim(axis.dim, 0).shape[1:]
    y = matrix.reshape(len(matrix), axis.gates, -1).transpose(0, 1).reshape(axis.gates * len(matrix), *rest)
    return y.movedim(0, axis.dim).contiguous()


def vectors(params: Tensors, layer: Layer) -> Tensor:
    """What tells a layer's units apart, (units, features): incoming weights and biases, without hidden-to-hidden weights."""
    return torch.cat([rows(params[p.name], p.units) for p in layer.parts if p.own is None], 1)


def picked(params: Tensors, layers: Sequence[Layer], index: Index) -> Tree:
    """The sub-network of some units of each hidden layer; a layer that ``index`` does not name keeps all."""
    out, before = dict(params), None
    for layer in layers:
        mine = index.get(layer.name)
        for part in layer.parts:
            x = out[part.name]
            x = x if part.inputs is None or before is None else take(x, part.inputs, before)
            x = x if part.own is None or mine is None else take(x, part.own, mine)
            out[part.name] = x if mine is None else take(x, part.units, mine)
        before = mine
    return Tree(out)


def widened(params: Tensors, layer: Layer, index: Tensor, width: int) -> dict[str, Tensor]:
    """A layer's tensors, their inputs renamed to ``index`` among the ``width`` units of the layer before; new inputs are zero."""
    return {
        p.name: params[p.name] if p.inputs is None else put(params[p.name], p.inputs, index, width) for p in layer.parts
    }

"""A network as a chain of layers of units, and functions that pick, renumber or add units in its tensors.

A `Layer` gives the position of its units in each of its tensors. `fedatlas.models.chain` finds the chain of a module. All
functions are pure and work for dense, convolutional, embedding and recurrent layers, because they look only at an `Axis`.
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
    gates: int = 1  # such as an LSTM's four gates, one after another
    block: int = 1  # such as a channel's adjacent pixels when pictures are flattened


class LayerTensor(NamedTuple):
    """One tensor of a layer."""

    name: str
    units: Axis
    inputs: Axis | None = None  # the units of the previous layer; None for biases and the first layer
    own: Axis | None = None  # the layer's own units as inputs (hidden to hidden)


class Layer(NamedTuple):
    """A layer of units. Its first part is a weight; the last layer's units are the outputs."""

    name: str
    units: int
    parts: tuple[LayerTensor, ...]


Index = Tensors
"""Name of a hidden layer -> unit numbers, (units,), of any integer type."""


def plain(layers: Sequence[Layer]) -> list[Any]:
    """Convert layers to lists, for a message."""
    return [
        [x.name, x.units, [[p.name, *(None if axis is None else list(axis) for axis in p[1:])] for p in x.parts]]
        for x in layers
    ]


def parsed(value: Sequence[Any]) -> tuple[Layer, ...]:
    """Invert `plain`."""

    def tensor(name: str, *axes: Sequence[int] | None) -> LayerTensor:
        return LayerTensor(name, *(None if axis is None else Axis(*axis) for axis in axes))  # type: ignore[arg-type]  # units is never None

    return tuple(Layer(name, units, tuple(tensor(*part) for part in parts)) for name, units, parts in value)


def take(x: Tensor, axis: Axis, index: Tensor) -> Tensor:
    """Return the units ``index`` of ``x``, in that order."""
    return x.index_select(axis.dim, _places(axis, index, count(x, axis)))


def put(x: Tensor, axis: Axis, index: Tensor, width: int) -> Tensor:
    """Place ``x`` among ``width`` units: its unit j becomes unit ``index[j]``, and all others are zero."""
    shape = list(x.shape)
    shape[axis.dim] = axis.gates * width * axis.block
    return x.new_zeros(shape).index_copy(axis.dim, _places(axis, index, width), x)


def count(x: Tensor, axis: Axis) -> int:
    """Return the number of units along an axis."""
    return x.shape[axis.dim] // (axis.gates * axis.block)


def width(params: Tensors, layer: Layer) -> int:
    """Return the number of units that a layer has in ``params``, which may differ from its initial number."""
    return count(params[layer.parts[0].name], layer.parts[0].units)


def _places(axis: Axis, index: Tensor, width: int) -> Tensor:
    gates, block = torch.arange(axis.gates)[:, None, None], torch.arange(axis.block)
    return ((gates * width + index.long()[:, None]) * axis.block + block).reshape(-1)


def rows(x: Tensor, axis: Axis) -> Tensor:
    """Return all numbers of each unit as one row: (units, numbers)."""
    y = x.movedim(axis.dim, 0)
    return y.reshape(axis.gates, count(x, axis), -1).transpose(0, 1).reshape(count(x, axis), -1)


def from_rows(matrix: Tensor, axis: Axis, like: Tensor) -> Tensor:
    """Invert `rows`: the result is shaped as ``like`` except for the number of units; the axis must have no blocks."""
    rest = like.movedim(axis.dim, 0).shape[1:]
    y = matrix.reshape(len(matrix), axis.gates, -1).transpose(0, 1).reshape(axis.gates * len(matrix), *rest)
    return y.movedim(0, axis.dim).contiguous()


def vectors(params: Tensors, layer: Layer) -> Tensor:
    """Return (units, features), by which a layer's units are compared.

    These are incoming weights and biases, without hidden-to-hidden weights.
    """
    return torch.cat([rows(params[p.name], p.units) for p in layer.parts if p.own is None], 1)


def picked(params: Tensors, layers: Sequence[Layer], index: Index) -> Tree:
    """Return the sub-network with some units of each hidden layer; a layer that ``index`` does not name keeps all."""
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
    """Return a layer's tensors with their inputs at ``index`` among the ``width`` units of the previous layer.

    All other inputs are zero.
    """
    return {
        p.name: params[p.name] if p.inputs is None else put(params[p.name], p.inputs, index, width) for p in layer.parts
    }

"""The part of a step that depends only on its rows, split off so that it is computed once per client instead of in every step.

A frozen network's output for a row does not change during a client's local work. Examples are MOON's references and the layers that
FedMA has frozen. That part of a step's graph becomes a separate graph for any number of rows. The step takes its results as further
arguments, ``batch/extra/row value 1`` and so on.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule

from fedatlas.engine.fuse import constants
from fedatlas.engine.graph import Flat, Op, effect, is_op, value
from fedatlas.engine.step import Inputs, leaves
from fedatlas.engine.trace import given_as
from fedatlas.tree import Tensors

aten = torch.ops.aten

_PIECE = 512  # rows at a time, so that activations between the layers fit in memory
_LEAST = 16  # multiplications per number stored with a row: below this, fetching it takes as long as computing it

_PRODUCTS = {aten.mm.default: 0, aten.addmm.default: 1, aten.convolution.default: 0}  # which operand holds the rows
_SIZED = {aten.view.default, aten._unsafe_view.default, aten.expand.default}  # given the sizes of their result
_ALONG = {  # the argument with the dimensions that an operator works along
    aten.sum.dim_IntList: 1,
    aten.mean.dim: 1,
    aten.amax.default: 1,
    aten.linalg_vector_norm.default: 2,
    aten._softmax.default: 1,
    aten._log_softmax.default: 1,
    aten.cat.default: 1,
}
_EACH = {  # other operators that treat every row alike
    aten._to_copy.default,
    aten.clone.default,
    aten.max_pool2d_with_indices.default,
    aten.avg_pool2d.default,
}


class RowValues(NamedTuple):
    """A graph from rows to values by row, and the constants of a client's local work that it reads."""

    module: GraphModule  # (rows, *tensors at ``paths``) -> (values, ...), each (rows, ...)
    paths: tuple[str, ...]
    reads: tuple[torch.Size, ...]  # the shapes of the tensors at ``paths``
    shapes: tuple[tuple[int, ...], ...]  # of each value of one row

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the values in a batch."""
        return tuple(f"row value {place}" for place in range(1, len(self.shapes) + 1))

    @property
    def numbers(self) -> int:
        """Numbers stored with each row."""
        return sum(torch.Size(shape).numel() for shape in self.shapes)

    def same_as(self, other: RowValues | None) -> bool:
        """Return whether another batch size gave the same graph, with no number that depends on the number of rows."""
        if other is None or (self.paths, self.shapes, self.module.code) != (
            other.paths,
            other.shapes,
            other.module.code,
        ):
            return False
        constants = dict(other.module.named_buffers())
        return all(torch.equal(x, constants[name]) for name, x in self.module.named_buffers())

    def of(self, inputs: Inputs, buffers: Tensors) -> Callable[[Tensor], dict[str, Tensor]]:
        """Return a function from rows to their values, for local work with these inputs and buffers."""
        given = dict(leaves({"inputs": inputs, "buffers": buffers}))
        fixed = [given_as(path, given[path]) for path in self.paths]

        @torch.inference_mode()
        def values(x: Tensor) -> dict[str, Tensor]:
            whole: list[Tensor] = []
            for at in range(0, len(x), _PIECE):
                found = self.module(x[at : at + _PIECE].contiguous(), *fixed)
                whole = whole or [each.new_empty((len(x), *each.shape[1:])) for each in found]
                for each, into in zip(found, whole, strict=True):
                    into[at : at + _PIECE] = each
            return dict(zip(self.names, whole, strict=True))

        return values


def part_rows(flat: Flat) -> tuple[Flat, RowValues | None]:
    """Split a rewritten step into a step without, and a graph of, the part that depends only on its rows.

    The graph is None if that part holds no product. Use two or more rows: with one, a value by row looks like a shared one.
    """
    if value(flat.arguments["batch/x"]).shape[0] < 2:
        return flat, None
    x, steady, heavy = flat.arguments["batch/x"], constants(flat), set[Op]()
    by_row = {x}
    for node in flat.graph.nodes:
        if node.op == "call_function" and not effect(node) and row_by_row(node, by_row, steady):
            by_row.add(node)
            if node.target in _PRODUCTS or heavy.intersection(node.all_input_nodes):
                heavy.add(node)
    cut = [node for node in flat.graph.nodes if node in heavy and is_tensor(node) and set(node.users) - by_row]
    if not cut or work(cut, by_row) < _LEAST * sum(value(node)[0].numel() for node in cut):
        return flat, None
    out = graph_of_rows(flat, cut, by_row)
    arguments = dict(flat.arguments)
    for node, name in zip(cut, out.names, strict=True):
        arguments[f"batch/extra/{name}"] = taken_as_argument(node, list(arguments.values())[-1])
    flat.graph.eliminate_dead_code(effect)
    return flat._replace(arguments=arguments), out


def row_by_row(node: Op, by_row: set[Op], steady: set[Op]) -> bool:
    """Return whether each row of a result depends only on the same row of its operands, and on constant values."""
    operands = node.all_input_nodes
    rows = [a for a in operands if a in by_row]
    if not rows or not all(a in by_row or a in steady for a in operands):
        return False
    target, args = node.target, node.args
    if target is operator.getitem or target in _EACH:
        return True
    if target in _PRODUCTS:
        added = value(args[0]) if target is aten.addmm.default else None
        alone = added is None or added.dim() < 2 or added.shape[0] == 1
        return alone and all((a in by_row) == (place == _PRODUCTS[target]) for place, a in enumerate(args) if is_op(a))
    if target in _SIZED:
        return value(node).shape[:1] == value(args[0]).shape[:1] and not spreads(node)
    if target is aten.as_strided.default:
        return same_elements(node)
    if target is aten.permute.default:
        return bool(args[1][0] == 0)
    if target in _ALONG:
        dims = args[_ALONG[target]] if len(args) > _ALONG[target] else 0  # by default all dimensions, rows included
        depth = value(operands[0]).dim()
        return len(rows) == len(operands) and all(d % depth for d in ([dims] if isinstance(dims, int) else dims or [0]))
    if torch.Tag.pointwise not in getattr(target, "tags", ()) or not is_tensor(node):
        return False
    others = [a for a in operands if a in steady]
    depth = value(node).dim()
    return all(value(a).dim() == depth for a in rows) and all(
        value(a).dim() < depth or value(a).shape[0] == 1 for a in others
    )


def spreads(node: Op) -> bool:
    """Return whether an operator with a given result size repeats one row's numbers in several rows."""
    return value(node).dim() != value(node.args[0]).dim() and value(node).numel() != value(node.args[0]).numel()


def same_elements(node: Op) -> bool:
    """Return whether a result is its operand with other strides only in dimensions of size 1."""
    a, b = value(node.args[0]), value(node)
    return a.shape == b.shape and all(n == 1 or s == t for n, s, t in zip(a.shape, a.stride(), b.stride(), strict=True))


def is_tensor(node: Op) -> bool:
    """Return whether a node's value is one tensor."""
    return isinstance(node.meta.get("val"), Tensor)


def graph_of_rows(flat: Flat, cut: list[Op], by_row: set[Op]) -> RowValues:
    """Return the graph that leads to the nodes where a step is cut, for any number of rows."""
    needed, graph, copies = behind(cut), Graph(), dict[Op, Any]()
    read = {path: node for path, node in flat.arguments.items() if node in needed and node not in by_row}
    for node in [flat.arguments["batch/x"], *read.values()]:
        copies[node] = graph.placeholder(f"argument_{len(copies)}")
    for node in flat.graph.nodes:
        if node not in needed or node in copies:
            continue
        if node in by_row and node.target is aten.as_strided.default:
            copies[node] = copies[node.args[0]]
            continue
        copies[node] = graph.node_copy(node, copies.__getitem__)
        if node in by_row and node.target in _SIZED:
            copies[node].args = (copies[node].args[0], [-1, *value(node).shape[1:]])
    ends = [in_order(graph, copies[node], order_of(node)) for node in cut]
    graph.output(
        tuple(graph.call_function(aten.clone.default, (x,), {"memory_format": torch.contiguous_format}) for x in ends)
    )
    shapes = tuple(tuple(value(node).permute(order_of(node)).shape[1:]) for node in cut)
    reads = tuple(value(node).shape for node in read.values())
    return RowValues(GraphModule(flat.constants, graph), tuple(read), reads, shapes)


def behind(nodes: list[Op]) -> set[Op]:
    """Return some nodes and all nodes that they depend on."""
    found, waiting = set[Op](), list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += node.all_input_nodes
    return found


def work(cut: list[Op], by_row: set[Op]) -> int:
    """Return the number of multiplications per row."""
    found = 0
    for node in behind(cut) & by_row:
        if node.target in _PRODUCTS:
            weights = value(node.args[_PRODUCTS[node.target] + 1])
            inner = weights.shape[0] if weights.dim() == 2 else weights[0].numel()
            found += inner * value(node)[0].numel()
    return found


def order_of(node: Op) -> list[int]:
    """Return the dimensions of a value in their order in memory, rows first."""
    strides = value(node).stride()
    return [0, *sorted(range(1, len(strides)), key=lambda d: -strides[d])]


def in_order(graph: Graph, x: Op, order: list[int]) -> Op:
    """Return ``x`` with its dimensions in another order."""
    return x if order == sorted(order) else graph.call_function(aten.permute.default, (x, order))


def taken_as_argument(node: Op, last: Op) -> Op:
    """Replace a node by a new argument after ``last``."""
    order, graph = order_of(node), node.graph
    with graph.inserting_after(last):
        argument = graph.placeholder(f"{last.name}_row")
    kept = value(node).permute(order)
    argument.meta = {"val": torch.empty(kept.shape, dtype=kept.dtype, device="meta"), "device": node.meta["device"]}
    with graph.inserting_before(node):
        new = in_order(graph, argument, [order.index(d) for d in range(len(order))])
    if new is not argument:
        new.meta = {"val": argument.meta["val"].permute(new.args[1]), "device": node.meta["device"]}
    node.replace_all_uses_with(new)
    return argument

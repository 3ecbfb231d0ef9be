"""The place of each value of a fused graph: computed once, in memory laid out in advance, or computed by every step."""

from __future__ import annotations

import operator
from typing import Literal

import torch
from torch import Tensor

from fedatlas.engine.calls import CALLS, COPIES
from fedatlas.engine.fuse import constants
from fedatlas.engine.graph import Flat, Op, dense, is_op, is_view, same_layout, value, writes

aten = torch.ops.aten

# Operators that read their operands repeatedly while they write.
MATRIX_WRITERS = {aten.addmm_.default, aten.baddbmm_.default, aten.addmv_.default}

Kind = Literal["fixed", "placed", "passing"]


class Placement:
    """Three kinds of values, and how long the memory of each is needed.

    *fixed*    does not change during a client's local work: computed when the program is bound.
    *placed*   lives in memory that binding was given or allocated: views of it are made once.
    *passing*  computed by each step.
    """

    def __init__(self, flat: Flat) -> None:
        self.nodes: list[Op] = list(flat.graph.nodes)
        self.paths = {node: path for path, node in flat.arguments.items()}
        self.steady = constants(flat)
        self.root: dict[Op, Op] = {}  # the node whose memory a value uses, in whole or in part
        self.last: dict[Op, int] = {}  # by root: position of the last operator that reads it
        self.over: set[Op] = set()  # results that take the memory of their first operand
        self.kind: dict[Op, Kind] = {}
        for node in self.nodes:
            owner = node.kwargs.get("out", node.args[0] if node.args else None)
            shares = is_op(owner) and (is_view(node) or writes(node))
            self.root[node] = self.root[owner] if shares else node
        for place, node in enumerate(self.nodes):
            for read in [*node.all_input_nodes, node]:
                self.last[self.root[read]] = place
        for place, node in enumerate(self.nodes):
            if self.may_overwrite(place, node):
                self.over.add(node)
                self.join(node, self.root[node.args[0]])
            self.kind[node] = self.classify(node)

    def join(self, node: Op, root: Op) -> None:
        """Let a result, and all views of it, use the memory of ``root``."""
        self.last[root] = max(self.last[root], self.last[node])
        self.root.update({other: root for other, own in self.root.items() if own is node})

    def classify(self, node: Op) -> Kind:
        if node.op == "placeholder":
            return "passing" if self.paths[node].startswith("batch/") else "fixed" if node in self.steady else "placed"
        if node in self.steady or node.op == "get_attr":
            return "fixed"
        if self.root[node] is not node:
            return self.kind[self.root[node]]
        if node.target is operator.getitem:
            return "placed" if pools(node.args[0]) else "passing"
        return "placed" if has_place(node) else "passing"

    def sound(self, node: Op) -> bool:
        """Return whether an operator that writes into its first argument reads no matrix operand from that memory."""
        if node.target not in MATRIX_WRITERS:
            return True
        out, *operands = node.args
        return all(self.root[a] is not self.root[out] for a in operands if is_op(a))

    def may_overwrite(self, place: int, node: Op) -> bool:
        """Return whether the result may take its first operand's memory: it fits, and has no later reader."""
        how, first = CALLS.get(node.target), node.args[0] if node.args else None
        if how is None or not how.overwrites or node in self.steady or not is_op(first):
            return False
        root = self.root[first]
        if not made_here(root) or root in self.steady or self.last[root] != place:
            return False
        if not same_layout(first, node) or not dense(value(first)):
            return False
        return all(a is first or self.root[a] is not root for a in node.all_input_nodes)


def made_here(node: Op) -> bool:
    """Return whether a step allocated this memory, rather than an operator that may return existing memory."""
    if node.target is operator.getitem:
        return made_here(node.args[0])
    schema = getattr(node.target, "_schema", None)
    return schema is not None and all(result.alias_info is None for result in schema.returns)


def pools(node: Op) -> bool:
    """Return whether a node is a max-pool of which both results are used."""
    return node.target is aten.max_pool2d_with_indices.default and len(node.users) == 2


def has_place(node: Op) -> bool:
    """Return whether memory for a result is laid out in advance."""
    if not isinstance(node.meta.get("val"), Tensor):
        return False
    known = node.target in COPIES or (node.target in CALLS and set(node.kwargs) <= {"alpha", "beta"})
    return known and dense(value(node)) and value(node).dim() > 0

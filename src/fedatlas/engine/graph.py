"""The flat graph that the passes work on, and the tools they share."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Graph, Node

from fedatlas.engine.optim import Optimizer

aten = torch.ops.aten

# A torch.fx Node. Its operands have a union of all possible types, so accesses to them are not type-checked.
Op = Any

# Writes into running_mean and running_var (arguments 3 and 4), which its schema does not declare.
SILENT_WRITERS = {aten.native_batch_norm.default: (3, 4)}


class Flat(NamedTuple):
    """A traced step. The graph returns the loss and then the new values of the arguments that ``results`` names.

    If ``adam`` is given, that optimiser's separate pass follows, and the graph returns the gradients as ``grads/...``.
    """

    graph: Graph
    arguments: dict[str, Op]  # path -> placeholder
    results: list[str]  # paths
    constants: dict[str, Tensor]  # tensors held by the loss's code, by the target of their get_attr node
    fixed: dict[str, Any]  # leaves that are neither tensors nor numbers; the program relies on these values
    adam: Optimizer | None = None

    @property
    def returned(self) -> tuple[Op, dict[str, Op]]:
        """Return the loss, and every new value by its path."""
        output: Op = self.graph.output_node()
        loss, *new = output.args[0]
        return loss, dict(zip(self.results, new, strict=True))

    @property
    def gradients(self) -> dict[str, Op]:
        """Return the gradients by parameter, first in ``results`` once all other results are written in place."""
        output: Op = self.graph.output_node()
        _, *left = output.args[0]
        return {path.removeprefix("grads/"): node for path, node in zip(self.results, left, strict=False)}

    def give_back(self, loss: Op, new: Mapping[str, Op]) -> Flat:
        """Return the same graph with other results."""
        self.graph.output_node().args = ([loss, *new.values()],)
        return self._replace(results=list(new))


def is_op(x: Any) -> bool:
    """Return whether an operand is another node's value rather than a constant."""
    return isinstance(x, Node)


def writes(node: Op) -> bool:
    """Return whether the operator's schema declares a write into an argument."""
    return node.op == "call_function" and getattr(getattr(node.target, "_schema", None), "is_mutable", False)


def is_view(node: Op) -> bool:
    """Return whether a result may be a view of its first operand's memory."""
    if node.target is operator.getitem:
        return is_view(node.args[0])
    returns = getattr(getattr(node.target, "_schema", None), "returns", ())
    # _unsafe_view promises autograd a new tensor, but returns the old memory
    return node.target is aten._unsafe_view.default or (not writes(node) and any(r.alias_info for r in returns))


def effect(node: Op) -> bool:
    """Return whether a node does more than return a value."""
    return node.op in {"placeholder", "output"} or writes(node) or node.target in SILENT_WRITERS


def value(node: Any) -> Tensor:
    """Return a tensor with the shape, strides and type of a node's value."""
    described: Tensor = node.meta["val"]
    return described


def insert(before: Op, target: Any, *args: Any, like: Op | None = None, **kwargs: Any) -> Op:
    """Insert a new operator before a node, described as ``like`` or by running it once on zeros.

    Meta tensors are not used: describing a mean or a gather there loads torch's compiler, which takes seconds.
    """
    with before.graph.inserting_before(before):
        node = before.graph.call_function(target, args, kwargs)
    known = like or next((a for a in args if is_op(a)), before)
    node.meta["device"] = known.meta.get("device")
    if like is None:
        tried = target(*map(_zeros, args), **{key: _zeros(a) for key, a in kwargs.items()})
        node.meta["val"] = torch.empty_strided(tried.shape, tried.stride(), dtype=tried.dtype, device="meta")
    else:
        node.meta["val"] = value(like)
    return node


def _zeros(argument: Any) -> Any:
    if not is_op(argument):
        return argument
    described = value(argument)
    return torch.empty_strided(described.shape, described.stride(), dtype=described.dtype).zero_()


def same_layout(a: Any, b: Any) -> bool:
    """Return whether two values agree in shape, strides, type and device."""
    x, y = value(a), value(b)
    alike = x.shape == y.shape and x.stride() == y.stride() and x.dtype == y.dtype
    return alike and a.meta["device"] == b.meta["device"]


def dense(x: Tensor) -> bool:
    """Return whether the elements fill a stretch of memory, in any order."""
    return x.numel() == 0 or 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True)) == x.numel()


def swap(old: Op, new: Op) -> None:
    """Replace ``old`` by ``new`` in all its users."""
    old.replace_all_uses_with(new)
    old.graph.erase_node(old)

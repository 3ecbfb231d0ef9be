"""A recorder of every torch operator that a function calls, including autograd's, as a flat graph.

It works on real tensors like ``torch.fx.experimental.proxy_tensor.make_fx``, whose imports take a second.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from fedatlas.engine.step import NotTraceable
from fedatlas.models.inspection import Watching

# Operators whose result, or its shape, depends on values: a graph would be valid only for the values of the trace.
_DEPENDS_ON_VALUES = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
# Ways out of torch that do not appear as operators; ``item`` and ``float`` do.
_WAYS_OUT = {Tensor.numpy, Tensor.tolist, Tensor.__array__, Tensor.__dlpack__}


def record(function: Callable[..., Iterable[Tensor]], values: Sequence[Tensor]) -> GraphModule:
    """Return ``function`` as a graph of operators on ``values``; NotTraceable if it looks at a value."""
    recorder = _Recorder(values)
    with recorder, _Reads(recorder):
        results = list(function(*values))
    recorder.graph.output([recorder.node(x) for x in results])
    return GraphModule(recorder.constants, recorder.graph)


class _Reads(TorchFunctionMode):
    """Detector of values that leave torch: Python or NumPy would turn them into constants of the graph."""

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _WAYS_OUT and self.recorder.holds(args[0]):
            raise NotTraceable(f"a value is read outside of torch ({func.__name__}): compute with tensors")
        return func(*args, **(kwargs or {}))


class _Recorder(Watching):
    def __init__(self, values: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = Graph()
        self.nodes: dict[int, Node] = {}  # by the tensor's id
        self.kept: list[Tensor] = []  # keeps tensors alive, so that no id is reused
        self.memory: set[int] = set()
        self.constants: dict[str, Tensor] = {}
        for k, x in enumerate(values):
            self.track(x, self.graph.placeholder(f"argument_{k}"))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operands = (args, kwargs or {})
        if _DEPENDS_ON_VALUES.intersection(func.tags) and self.reads_tracked(operands):
            raise NotTraceable(f"a value decides what is done ({func}): compute with numbers, do not branch on them")
        node = self.graph.call_function(func, *tree_map_only(Tensor, self.node, operands))
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.track(result, node)
        elif isinstance(result, tuple | list):
            for k, x in enumerate(result):
                if isinstance(x, Tensor):
                    self.track(x, self.graph.call_function(operator.getitem, (node, k)))
        return result

    def reads_tracked(self, operands: Any) -> bool:
        """Return whether any operand is a value of the graph."""
        found: list[bool] = []
        tree_map_only(Tensor, lambda x: found.append(id(x) in self.nodes), operands)
        return any(found)

    def track(self, x: Tensor, node: Node) -> None:
        node.meta["device"] = x.device
        node.meta["val"] = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
        self.nodes[id(x)] = node
        self.kept.append(x)
        self.memory.add(x.untyped_storage().data_ptr())

    def holds(self, x: Tensor) -> bool:
        """Return whether a tensor lies in memory of the graph's values."""
        return bool(x.numel()) and x.untyped_storage().data_ptr() in self.memory

    def node(self, x: Tensor) -> Node:
        """Return the node of a tensor. A tensor made elsewhere is a constant of the function's code."""
        if id(x) not in self.nodes:
            if self.holds(x):
                raise NotTraceable("the loss reads a tensor of the module or of a message around its arguments")
            name = f"constant_{len(self.constants)}"
            self.constants[name] = x
            self.track(x, self.graph.get_attr(name))
        return self.nodes[id(x)]

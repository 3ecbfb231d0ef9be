"""A fused graph as plain Python: ``bind`` prepares what stays, the ``step`` it returns does what every step must.

Three kinds of values: *fixed* ones do not change during a client's local work (computed in ``bind``); *placed* ones live
in memory that ``bind`` was given or allocates, so that views of them are made once; *passing* ones are made by each step.
"""

from __future__ import annotations

import operator
import re
from typing import Any, Literal, NamedTuple

import torch
from torch.fx import Node

from fedatlas.engine.fuse import constants
from fedatlas.engine.graph import VIEWS, Flat, dense, same_layout, value, writes

aten = torch.ops.aten

Kind = Literal["fixed", "placed", "passing"]


class Call(NamedTuple):
    """How an operator is called with a place for its result."""

    function: str
    method: str = ""  # the method that overwrites the first operand instead
    out: str = "out"
    elementwise: bool = False  # may write over its first operand


_UNARY = ("exp", "log", "log1p", "neg", "sqrt", "rsqrt", "tanh", "sigmoid", "abs", "reciprocal", "sin", "cos", "erf")
CALLS: dict[Any, Call] = {
    aten.mm.default: Call("torch.mm"),
    aten.bmm.default: Call("torch.bmm"),
    aten.addmm.default: Call("torch.addmm"),
    aten.baddbmm.default: Call("torch.baddbmm"),
    aten.add.Tensor: Call("torch.add", "add_"),
    aten.sub.Tensor: Call("torch.sub", "sub_"),
    aten.mul.Tensor: Call("torch.mul", "mul_"),
    aten.div.Tensor: Call("torch.div", "div_"),
    aten.add.Scalar: Call("torch.add", "add_"),
    aten.mul.Scalar: Call("torch.mul", "mul_"),
    aten.div.Scalar: Call("torch.div", "div_"),
    aten.pow.Tensor_Scalar: Call("torch.pow", "pow_"),
    aten.maximum.default: Call("torch.maximum"),
    aten.minimum.default: Call("torch.minimum"),
    aten.relu.default: Call("torch.ops.aten.relu.out", "relu_"),
    aten.threshold_backward.default: Call(
        "torch.ops.aten.threshold_backward.grad_input", out="grad_input", elementwise=True
    ),
    aten.tanh_backward.default: Call("torch.ops.aten.tanh_backward.grad_input", out="grad_input", elementwise=True),
    aten.sigmoid_backward.default: Call(
        "torch.ops.aten.sigmoid_backward.grad_input", out="grad_input", elementwise=True
    ),
    aten._log_softmax.default: Call("torch._log_softmax"),
    aten._softmax.default: Call("torch._softmax"),
    aten.sum.dim_IntList: Call("torch.sum"),
    aten.mean.dim: Call("torch.mean"),
    aten.amax.default: Call("torch.amax"),
    aten.gather.default: Call("torch.gather"),
    aten.scatter_add.default: Call("torch.scatter_add", "scatter_add_"),
    aten.max_pool2d_with_indices_backward.default: Call(
        "torch.ops.aten.max_pool2d_with_indices_backward.grad_input", out="grad_input"
    ),
    **{getattr(aten, name).default: Call(f"torch.{name}", f"{name}_") for name in _UNARY},
}
_COPIES = {aten.clone.default, aten._to_copy.default}
_TAKE_NUMBER = {aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.mul_.Tensor}
_COMMUTE = {aten.add.Tensor, aten.mul.Tensor}
_LARGE = 1 << 14  # elements from which memory is handed back as soon as nobody needs it


class Emitted(NamedTuple):
    """A program's text and what it expects."""

    source: str  # defines bind(T): tensors by path in, step(x, y, ...) out
    reads: dict[str, tuple[torch.Size, tuple[int, ...]]]  # what bind takes from T, with shapes and strides
    fixed: dict[str, Any]  # leaves the program holds for these values only
    note: str


def emit(flat: Flat) -> Emitted:
    """The program of a fused graph."""
    emitter = _Emitter(flat)
    source = emitter.source()
    steps = "\n".join(emitter.step)
    count = {name: len(re.findall(rf"\.{name}\(", steps)) for name in ("addmm_", "addmv_")}
    note = (
        f"{len(emitter.step)} operators a step; {count['addmm_']} gradients go straight into their parameters by addmm_, "
        f"{count['addmv_']} by addmv_"
    )
    return Emitted(source, emitter.reads, flat.fixed, note)


class _Emitter:
    def __init__(self, flat: Flat) -> None:
        self.flat = flat
        self.nodes = list(flat.graph.nodes)
        self.paths = {node: path for path, node in flat.arguments.items()}
        self.steady = constants(flat)
        self.kind: dict[Node, Kind] = {}
        self.root: dict[Node, Node] = {}  # the node whose memory a value is part of
        self.name: dict[Node, str] = {}
        self.slot: dict[Node, str] = {}  # allocated memory, by root
        self.free: dict[tuple[Any, ...], list[str]] = {}
        self.taken: set[str] = set()
        self.numbers: dict[str, str] = {}
        self.made: dict[str, str] = {}
        self.functions: dict[str, str] = {}
        self.slots = 0
        self.reads: dict[str, tuple[torch.Size, tuple[int, ...]]] = {}
        self.bind: list[str] = []
        self.step: list[str] = []
        self.plan()

    # ------------------------------------------------------------------ what each value is

    def plan(self) -> None:
        """Kind and root of every node, and the last operator that reads each root."""
        for node in self.nodes:
            self.kind[node], self.root[node] = self.classify(node)
        self.last = dict.fromkeys(self.nodes, -1)
        for place, node in enumerate(self.nodes):
            for read in [*node.all_input_nodes, node]:
                self.last[self.root[read]] = max(self.last[self.root[read]], place)

    def classify(self, node: Node) -> tuple[Kind, Node]:
        if node.op == "placeholder":
            batch = self.paths[node].startswith("batch/")
            return ("passing" if batch else "fixed" if node in self.steady else "placed"), node
        if node in self.steady or node.op == "get_attr":
            return "fixed", node
        if node.op == "output":
            return "passing", node
        first = node.args[0] if node.args else None
        if isinstance(first, Node) and (node.target in VIEWS or writes(node)):
            owner = node.kwargs.get("out", first)
            assert isinstance(owner, Node)
            return self.kind[owner], self.root[owner]
        if node.target is operator.getitem:
            pool = isinstance(first, Node) and first.target is aten.max_pool2d_with_indices.default
            return ("placed" if pool else "passing"), node
        return ("placed" if self.has_place(node) else "passing"), node

    def has_place(self, node: Node) -> bool:
        """Whether memory for the result is laid out beforehand."""
        if "val" not in node.meta or not isinstance(node.meta["val"], torch.Tensor):
            return False
        known = node.target in _COPIES or (node.target in CALLS and set(node.kwargs) <= {"alpha", "beta"})
        return known and dense(value(node)) and value(node).dim() > 0

    # ------------------------------------------------------------------ the text

    def source(self) -> str:
        for place, node in enumerate(self.nodes):
            self.place = place
            self.write(node)
            self.release()
        loss = self.flat.graph.output_node().args[0][0]  # type: ignore[index]
        end = self.name[loss] if self.kind[loss] == "passing" else f"{self.name[loss]}.clone()"
        given = ", ".join(self.name[node] for node, path in self.paths.items() if path.startswith("batch/"))
        functions = [f"{name} = {path}" for path, name in self.functions.items()]
        outer = "".join(f"    {line}\n" for line in [*functions, *self.bind])
        inner = "".join(f"        {line}\n" for line in [*self.step, f"return {end}"])
        return f"def bind(T):\n{outer}\n    def step({given}):\n{inner}\n    return step\n"

    def write(self, node: Node) -> None:
        """The lines of one node."""
        if node.op == "placeholder":
            name = self.new_name(node, self.paths[node])
            if self.kind[node] != "passing" and node.users:
                self.reads[self.paths[node]] = value(node).shape, value(node).stride()
                self.bind.append(f"{name} = T[{self.paths[node]!r}]")
        elif node.op == "get_attr":
            self.bind.append(f"{self.new_name(node)} = T['constants/{node.name}']")
        elif node.op != "call_function":
            return
        elif self.kind[node] == "fixed" or (node.target in VIEWS and self.kind[node] == "placed"):
            self.prepare(node)
        elif writes(node):
            self.overwrite(node)
        elif node.target is aten.max_pool2d_with_indices.default and len(node.users) == 2:
            self.pool(node)
        elif node.target is operator.getitem and self.kind[node] == "placed":
            pass  # named by its pool
        elif self.kind[node] == "placed":
            self.into_place(node)
        elif not self.only_loss(node):
            text = self.plain(node)
            self.step.append(f"{self.new_name(node)} = {text}")

    def prepare(self, node: Node) -> None:
        """A value that ``bind`` makes, once for all operators that ask for the same."""
        text = self.plain(node)
        if text in self.made and self.kind[node] == "fixed":
            self.name[node] = self.made[text]
            return
        self.made[text] = self.new_name(node)
        self.bind.append(f"{self.name[node]} = {text}")

    def plain(self, node: Node) -> str:
        """The operator as an expression that makes a new value."""
        first = node.args[0] if node.args else None
        if node.target is operator.getitem and isinstance(first, Node) and self.only_loss(first):
            return f"{self.function('torch._C._nn.nll_loss_nd')}({', '.join(self.text(a) for a in first.args)})"
        args = [self.text(a) for a in node.args]
        if node.target is operator.getitem:
            return f"{args[0]}[{args[1]}]"
        if node.target is aten.t.default:
            return f"{args[0]}.t()"
        if node.target in {aten.view.default, aten._unsafe_view.default, aten.unsqueeze.default}:
            return f"{args[0]}.{'unsqueeze' if node.target is aten.unsqueeze.default else 'view'}({args[1]})"
        args += [f"{key}={self.text(a)}" for key, a in node.kwargs.items()]
        name = str(node.target)  # aten.mm.default
        return f"{self.function(f'torch.ops.{name}')}({', '.join(args)})"

    def only_loss(self, node: Node) -> bool:
        """Whether a loss is wanted without the total weight that goes to its backward operator."""
        return node.target is aten.nll_loss_forward.default and all(user.args[1] == 0 for user in node.users)

    def overwrite(self, node: Node) -> None:
        """An operator that writes into memory that is there."""
        owner = node.kwargs.get("out", node.args[0])
        assert isinstance(owner, Node)
        self.name[node] = self.name[owner]
        self.step.append(self.call(node, str(node.target).split(".")[1], [*node.args], self.options(node)))

    def call(self, node: Node, method: str, args: list[Any], options: list[str]) -> str:
        """``torch.f(args, out=...)`` or ``first.f_(args)``."""
        texts = [self.operand(node, i) for i in range(len(args))]
        if method.endswith("_"):
            return f"{texts[0]}.{method}({', '.join([*texts[1:], *options])})"
        return f"{self.function(f'torch.{method}')}({', '.join([*texts, *options])})"

    def options(self, node: Node) -> list[str]:
        """Keyword arguments; factors of 1 go without saying."""
        out = []
        for key, a in node.kwargs.items():
            if key in {"alpha", "beta", "value"}:
                if a != 1:
                    out.append(f"{key}={self.number(a)}")
            else:
                out.append(f"{key}={self.text(a)}")
        return out

    def operand(self, node: Node, i: int) -> str:
        """A positional argument; a number without dimensions as a plain one where that is accepted."""
        a = node.args[i]
        if i == 1 and node.target in _TAKE_NUMBER and isinstance(a, Node) and self.is_number(a):
            return self.number(a)
        return self.text(a)

    def into_place(self, node: Node) -> None:
        """An operator whose result has a place laid out for it."""
        if node.target in _COMMUTE and isinstance(node.args[0], Node) and self.is_number(node.args[0]):
            node.args = (node.args[1], node.args[0])
        over = self.can_overwrite(node)
        if over is not None:
            self.name[node] = self.name[over]
            self.slot[node] = self.slot.pop(self.root[over])
        else:
            self.allocate(node)
        if node.target in _COPIES:
            self.step.append(f"{self.name[node]}.copy_({self.text(node.args[0])})")
            return
        how = CALLS[node.target]
        texts = [self.operand(node, i) for i in range(len(node.args))]
        if over is not None and how.method:
            self.step.append(f"{texts[0]}.{how.method}({', '.join([*texts[1:], *self.options(node)])})")
        else:
            texts += [*self.options(node), f"{how.out}={self.name[node]}"]
            self.step.append(f"{self.function(how.function)}({', '.join(texts)})")

    def can_overwrite(self, node: Node) -> Node | None:
        """The first operand, if nobody needs its value afterwards and the result fits into its memory."""
        how, first = CALLS.get(node.target), node.args[0]
        if how is None or not (how.method or how.elementwise) or not isinstance(first, Node):
            return None
        root = self.root[first]
        others = [a for a in node.all_input_nodes if a is not first and self.root[a] is root]
        mine = root in self.slot and self.last[root] == self.place and same_layout(first, node)
        return first if mine and not others else None

    def pool(self, node: Node) -> None:
        """Max-pooling into two places: values and indices."""
        outs = {user.args[1]: user for user in node.users}
        for user in outs.values():
            self.allocate(user)
        args = [self.text(a) for a in (*node.args, [2], [], [0, 0], [1, 1], False)[: len(node.args)]]
        defaults = ["[]", "[0, 0]", "[1, 1]", "False"]
        args += defaults[len(args) - 2 :]
        function = self.function("torch.ops.aten.max_pool2d_with_indices.out")
        self.step.append(f"{function}({', '.join(args)}, out={self.name[outs[0]]}, indices={self.name[outs[1]]})")

    # ------------------------------------------------------------------ names, numbers, memory

    def text(self, a: Any) -> str:
        if isinstance(a, Node):
            return self.name[a]
        if isinstance(a, list | tuple):
            return f"[{', '.join(self.text(x) for x in a)}]"
        if isinstance(a, torch.device):
            return f"torch.device({str(a)!r})"
        return repr(a)

    def is_number(self, node: Node) -> bool:
        device = node.meta.get("device")
        return self.kind[node] == "fixed" and value(node).dim() == 0 and device is not None and device.type == "cpu"

    def number(self, a: Any) -> str:
        """A factor as a plain number."""
        if not isinstance(a, Node):
            return repr(a)
        if self.kind[a] != "fixed":
            return f"{self.name[a]}.item()"
        name = self.name[a]
        if name not in self.numbers:
            self.numbers[name] = self.unused(f"{name}_value")
            self.bind.append(f"{self.numbers[name]} = {name}.item()")
        return self.numbers[name]

    def function(self, path: str) -> str:
        if path not in self.functions:
            parts = path.removeprefix("torch.ops.").split(".")
            self.functions[path] = self.unused(parts[1] if parts[-1] == "default" else "_".join(parts[1:]))
        return self.functions[path]

    def new_name(self, node: Node, path: str = "") -> str:
        source = node.args[0] if node.target is operator.getitem else node
        wish = path.partition("/")[2] if path else f"{str(source.target).split('.')[1]}_1"  # type: ignore[union-attr]
        self.name[node] = self.unused(re.sub(r"\W", "_", wish))
        return self.name[node]

    def unused(self, wish: str) -> str:
        wish = wish.lstrip("_")
        stem, n = wish.removesuffix("_1"), 1
        name = wish
        while name in self.taken or name in {"T", "torch", "bind", "step"}:
            name, n = f"{stem}_{n}", n + 1
        self.taken.add(name)
        return name

    def allocate(self, node: Node) -> None:
        """Memory for a result: some that is free again, or new."""
        x = value(node)
        device = node.meta["device"]
        key = (x.numel(), x.dtype, device)
        if self.free.get(key):
            slot = self.free[key].pop()
        else:
            slot = self.unused(f"memory_{self.slots}")
            self.slots += 1
            self.bind.append(f"{slot} = torch.empty({x.numel()}, dtype={x.dtype}, device={self.text(device)})")
        self.slot[node] = slot
        self.bind.append(f"{self.new_name(node)} = {slot}.as_strided({tuple(x.shape)}, {x.stride()})")

    def release(self) -> None:
        """Gives back memory whose last reader is behind us."""
        here = self.nodes[self.place]
        for node in {self.root[a] for a in [*here.all_input_nodes, here]}:
            if self.last[node] != self.place:
                continue
            if node in self.slot:
                x = value(node)
                self.free.setdefault((x.numel(), x.dtype, node.meta["device"]), []).append(self.slot.pop(node))

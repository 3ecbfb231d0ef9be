"""A fused graph as plain Python: ``bind`` prepares what is constant, and the ``step`` it returns does the rest."""

from __future__ import annotations

import keyword
import operator
import re
from typing import Any, NamedTuple

import torch

from fedatlas.engine.calls import CALLS, COMMUTE, COPIES, METHODS, TAKE_NUMBER
from fedatlas.engine.graph import Flat, Op, dense, is_op, is_view, same_layout, value, writes
from fedatlas.engine.placement import Placement, pools

aten = torch.ops.aten


ADAM = "Adam in one pass over all parameters"


class Emitted(NamedTuple):
    """The text of a program, and the tensors and values it expects."""

    source: str  # defines bind(T): takes tensors by path, returns step(x, y, ...)
    reads: dict[str, tuple[torch.Size, tuple[int, ...]]]  # the tensors that bind takes from T, with shapes and strides
    fixed: dict[str, Any]  # leaves whose values the program relies on
    note: str
    code: str = ""  # C of a step written by `native`; ``bind`` finds it as ``native``


def emit(flat: Flat) -> Emitted:
    """Return the program of a fused graph."""
    emitter = Emitter(flat)
    source = emitter.source()
    text = "\n".join(emitter.step)
    products, sums = (len(re.findall(rf"\.{name}\(", text)) for name in ("b?addb?mm_", "addmv_"))
    count = sum(1 for path in flat.results if path.startswith("params/"))
    how = f"{products + sums} of {count} parameters take their gradient straight from a product"
    note = f"{len(emitter.step)} operators; {how if flat.adam is None else ADAM}"
    return Emitted(source, emitter.reads, flat.fixed, note)


class Emitter:
    """Writer of a program, node by node. Subclasses write the operators of a step in another language."""

    def __init__(self, flat: Flat) -> None:
        self.flat, self.places = flat, Placement(flat)
        self.reads: dict[str, tuple[torch.Size, tuple[int, ...]]] = {}
        self.name: dict[Op, str] = {}
        self.taken = {"T", "torch", "bind", "step", "adam", "adam_pass", "Optimizer", "params", "first", "second"}
        self.functions: dict[str, str] = {}
        self.made: dict[str, str] = {}  # expression -> name of the value that bind made with it
        self.memory: dict[Op, str] = {}  # allocated memory in use, by root
        self.free: dict[tuple[Any, ...], list[str]] = {}
        self.bind: list[str] = []
        self.step: list[str] = []

    def source(self) -> str:
        """Return the whole text."""
        self.write_all()
        self.step += self.optimiser()
        loss = self.flat.graph.output_node().args[0][0]  # type: ignore[index]
        end = self.name[loss] if self.places.kind[loss] == "passing" else f"{self.name[loss]}.clone()"
        given = ", ".join(self.name[node] for node, path in self.places.paths.items() if path.startswith("batch/"))
        return self.text_of(self.bind, given, [*self.step, f"return {end}"])

    def text_of(self, bind: list[str], given: str, step: list[str], *behind: str) -> str:
        """Return the text of ``bind`` and the ``step`` in it; ``behind``: lines between step and return."""
        functions = [f"{name} = {path}" for path, name in self.functions.items()]
        lines = [*functions, *bind, "", f"def step({given}):", *(f"    {line}" for line in step), "", *behind]
        return "def bind(T):\n" + "".join(f"    {line}\n" if line else "\n" for line in [*lines, "return step"])

    def optimiser(self) -> list[str]:
        """Return the lines of the optimiser's separate pass over all parameters, if the graph ends in gradients."""
        if self.flat.adam is None:
            return []
        grads = self.flat.gradients
        copies = [line for name, node in grads.items() for line in self.as_parameter(name, node)]
        for what in ("params", "memory/first", "memory/second"):
            held = ", ".join(self.read(f"{what}/{name}") for name in grads)
            self.bind.append(f"{what.rpartition('/')[2]} = [{held}]")
        self.read("inputs/lr")
        rate, steps = self.number(self.flat.arguments["inputs/lr"]), self.read("memory/steps")
        given = ", ".join(self.name[node] for node in grads.values())
        self.bind.append(f"adam = {self.flat.adam!r}")
        return [*copies, f"adam_pass(adam, params, [{given}], first, second, {steps}, {rate})"]

    def as_parameter(self, name: str, grad: Op) -> list[str]:
        """Return the lines that copy a gradient into memory laid out like its parameter, if its layout differs."""
        like = self.flat.arguments[f"params/{name}"]
        if same_layout(grad, like) and dense(value(grad)):
            return []
        x, source = value(like), self.name[grad]
        place = self.call_it(grad, f"grad_{name}")
        device = str(like.meta["device"])
        self.bind.append(
            f"{place} = torch.empty_strided({tuple(x.shape)}, {x.stride()}, dtype={x.dtype}, device={device!r})"
        )
        return [f"{place}.copy_({source})"]

    def read(self, path: str) -> str:
        """Return the name of an argument, which the graph's operators need not have read."""
        node = self.flat.arguments[path]
        if path not in self.reads:
            self.reads[path] = value(node).shape, value(node).stride()
            self.bind.append(f"{self.name[node]} = T[{path!r}]")
        return self.name[node]

    def write_all(self) -> None:
        """Write all nodes in turn, and release memory after its last reader."""
        for place, node in enumerate(self.places.nodes):
            self.write(node)
            self.release(place, node)

    def owner_of(self, node: Op) -> Op:
        """Return the argument that an operator writes into, and give the node its name."""
        assert self.places.sound(node), f"{node.target} reads what it writes"
        owner = node.kwargs.get("out", node.args[0])
        self.name[node] = self.name[owner]
        return owner

    def takes_over(self, node: Op) -> bool:
        """Give a result its place, and return whether that is its first operand's memory."""
        over = node in self.places.over
        if over:
            self.name[node] = self.name[node.args[0]]
        else:
            self.allocate(node)
        return over

    def write(self, node: Op) -> None:
        """Write the lines of one node."""
        kind = self.places.kind[node]
        if node.op == "placeholder":
            self.argument(node)
        elif node.op == "get_attr":
            self.bind.append(f"{self.call_it(node, node.name)} = T['constants/{node.target}']")
        elif node.op == "output" or only_loss(node):
            pass
        elif kind == "fixed" or (is_view(node) and kind == "placed"):
            self.prepare(node)
        elif writes(node):
            self.overwrite(node)
        elif pools(node):
            self.pool(node)
        elif node in self.places.over or (kind == "placed" and node.target is not operator.getitem):
            self.into_place(node)
        elif kind == "passing":
            self.passing(node)

    def passing(self, node: Op) -> None:
        """Write a value that each step computes."""
        text = self.expression(node)
        self.step.append(f"{self.call_it(node)} = {text}")

    def argument(self, node: Op) -> None:
        path = self.places.paths[node]
        name = self.call_it(node, path.partition("/")[2])
        if node.users and self.places.kind[node] != "passing":
            self.reads[path] = value(node).shape, value(node).stride()
            self.bind.append(f"{name} = T[{path!r}]")

    def prepare(self, node: Op) -> None:
        """Write a value that ``bind`` computes, once for all operators that use the same."""
        text = self.expression(node)
        if self.places.kind[node] == "fixed" and text in self.made:
            self.name[node] = self.made[text]
            return
        self.made[text] = self.call_it(node)
        self.bind.append(f"{self.name[node]} = {text}")

    def overwrite(self, node: Op) -> None:
        """Write an operator that writes into an argument."""
        self.owner_of(node)
        method, overload = str(node.target).split(".")[1:]
        texts = self.operands(node)
        if overload == "out":
            line = f"{self.function(f'torch.{method}')}({', '.join([*texts, *self.options(node)])})"
        else:
            line = f"{texts[0]}.{method}({', '.join([*texts[1:], *self.options(node)])})"
        self.step.append(line)

    def into_place(self, node: Op) -> None:
        """Write an operator whose result has a place: its first operand's memory, or memory laid out for it."""
        if node.target in COMMUTE and self.is_number(node.args[0]):
            node.args = (node.args[1], node.args[0])
        over = self.takes_over(node)
        texts = self.operands(node)
        if node.target in COPIES:
            self.step.append(f"{self.name[node]}.copy_({texts[0]})")
            return
        how = CALLS[node.target]
        if over and how.method:
            self.step.append(f"{texts[0]}.{how.method}({', '.join([*texts[1:], *self.options(node)])})")
        else:
            texts += [*self.options(node), f"{how.out}={self.name[node]}"]
            self.step.append(f"{self.function(how.function)}({', '.join(texts)})")

    def pool(self, node: Op) -> None:
        """Write a max-pooling into two places: values and indices."""
        outs = {user.args[1]: user for user in node.users}
        for user in outs.values():
            self.allocate(user)
        defaults = ["()", "(0, 0)", "(1, 1)", "False"]
        texts = self.operands(node)
        texts += defaults[len(texts) - 2 :]
        function = self.function("torch.ops.aten.max_pool2d_with_indices.out")
        self.step.append(f"{function}({', '.join(texts)}, out={self.name[outs[0]]}, indices={self.name[outs[1]]})")

    # ------------------------------------------------------------------ expressions

    def expression(self, node: Op) -> str:
        """Return the operator as an expression that makes a new value."""
        if node.target is operator.getitem and only_loss(node.args[0]):
            texts = self.operands(node.args[0])
            return f"{self.function('torch._C._nn.nll_loss_nd')}({', '.join(texts)})"
        texts = self.operands(node)
        if node.target is operator.getitem:
            return f"{texts[0]}[{texts[1]}]"
        if node.target in METHODS and not node.kwargs:
            return f"{texts[0]}.{METHODS[node.target]}({', '.join(texts[1:])})"
        texts += [f"{key}={self.text(a)}" for key, a in node.kwargs.items()]
        return f"{self.function(f'torch.ops.{node.target}')}({', '.join(texts)})"

    def operands(self, node: Op) -> list[str]:
        """Return the positional arguments; a number without dimensions becomes a plain one if that is accepted."""
        texts = [self.text(a) for a in node.args]
        if node.target in TAKE_NUMBER and self.places.kind[node] != "fixed" and self.is_number(node.args[1]):
            texts[1] = self.number(node.args[1])
        return texts

    def options(self, node: Op) -> list[str]:
        """Return the keyword arguments; factors of 1 are left out."""
        factors = {key: a for key, a in node.kwargs.items() if key in {"alpha", "beta", "value"}}
        others = [f"{key}={self.text(a)}" for key, a in node.kwargs.items() if key not in factors]
        return [f"{key}={self.number(a)}" for key, a in factors.items() if is_op(a) or a != 1] + others

    def is_number(self, a: Any) -> bool:
        """Return whether an operand is a fixed tensor without dimensions on the CPU."""
        return is_op(a) and self.places.kind[a] == "fixed" and value(a).dim() == 0 and a.meta["device"].type == "cpu"

    def number(self, a: Any) -> str:
        """Return a factor as a plain number."""
        if not is_op(a):
            return repr(a)
        text = f"{self.name[a]}.item()"
        if self.places.kind[a] != "fixed":
            return text
        if text not in self.made:
            self.made[text] = self.unused(f"{self.name[a]}_value")
            self.bind.append(f"{self.made[text]} = {text}")
        return self.made[text]

    def text(self, a: Any) -> str:
        if is_op(a):
            return self.name[a]
        if isinstance(a, list | tuple):
            return str(tuple(a)) if all(isinstance(x, int) for x in a) else f"[{', '.join(map(self.text, a))}]"
        if isinstance(a, torch.device):
            return f"torch.device({str(a)!r})"
        return repr(a)

    def function(self, path: str) -> str:
        """Return a short name for a function, looked up once."""
        if path not in self.functions:
            parts = [part for part in path.split(".")[1:] if part not in {"ops", "aten", "default", "_C", "_nn"}]
            self.functions[path] = self.unused("_".join(parts))
        return self.functions[path]

    def call_it(self, node: Op, wish: str = "") -> str:
        source = node.args[0] if node.target is operator.getitem else node
        self.name[node] = self.unused(re.sub(r"\W", "_", wish or f"{str(source.target).split('.')[1]}_1"))
        return self.name[node]

    def unused(self, wish: str) -> str:
        """Return a free name, as close to the wish as possible."""
        wish = wish.lstrip("_")
        name = wish = wish if wish[:1].isalpha() else f"v{wish}"
        n = 1
        while name in self.taken or keyword.iskeyword(name):
            name, n = f"{wish.removesuffix('_1')}_{n}", n + 1
        self.taken.add(name)
        return name

    # ------------------------------------------------------------------ memory

    def allocate(self, node: Op) -> None:
        """Reserve memory for a result: a block that is free again, or a new one."""
        x = value(node)
        if not (pieces := self.free.setdefault(_size(node), [])):
            pieces.append(self.unused("memory_1"))
            self.bind.append(
                f"{pieces[-1]} = torch.empty({x.numel()}, dtype={x.dtype}, device={str(node.meta['device'])!r})"
            )
        self.memory[node] = pieces.pop()
        self.bind.append(f"{self.call_it(node)} = {self.memory[node]}.as_strided({tuple(x.shape)}, {x.stride()})")

    def release(self, place: int, node: Op) -> None:
        """Release memory whose last reader has been written."""
        for root in {self.places.root[a] for a in [*node.all_input_nodes, node]}:
            if root in self.memory and self.places.last[root] == place:
                self.free[_size(root)].append(self.memory.pop(root))


def _size(node: Op) -> tuple[Any, ...]:
    return value(node).numel(), value(node).dtype, node.meta["device"]


def only_loss(node: Op) -> bool:
    """Return whether a loss is used without the total weight that its backward operator reads."""
    return node.target is aten.nll_loss_forward.default and all(user.args[1] == 0 for user in node.users)

"""One step for several clients at once: every tensor has a leading client dimension, products are batched products.

A stack is faster if calling a step's operators costs more than their work. It is derived from the flat graph of one
client's step by `vmap`. The number of clients stays open, so that a stack can shrink as clients finish.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap
from torch.fx import GraphModule

from fedatlas.algorithm import Batch
from fedatlas.engine.emit import emit
from fedatlas.engine.fuse import fuse
from fedatlas.engine.graph import SILENT_WRITERS, Flat, Op, insert, swap, value
from fedatlas.engine.optim import Memory
from fedatlas.engine.program import Program, check, example_of, parted, whatever_fails, with_values
from fedatlas.engine.recorder import record
from fedatlas.engine.rewrite import rewrite
from fedatlas.engine.rowwise import RowValues
from fedatlas.engine.step import (
    InputForm,
    Inputs,
    NotTraceable,
    StepSpec,
    batch_arguments,
    form_of,
    fresh_memory,
    is_number,
    leaves,
    local_copy,
    number,
)
from fedatlas.engine.trace import Example, flat_of, trace
from fedatlas.engine.tuned import Step
from fedatlas.models.dropout import training
from fedatlas.tree import Tensors, Tree, stack

aten = torch.ops.aten

_SMALL = 4_000_000  # parameters times rows
_COUNTS = (7, 11, 13)  # derived for these numbers of clients; the text for any number follows and is checked


class StackedProgram(Program):
    """A step for several clients."""

    def __init__(
        self, source: str, reads: Mapping[str, bool], constants: Tensors, spec: StepSpec, form: InputForm
    ) -> None:
        super().__init__(source, spec, constants, form)
        self.reads = dict(reads)
        self.note = (
            f"stacked over clients: {source.split('def step')[1].count(chr(10)) - 3} operators for all of them together"
        )

    def fits(self, inputs: Sequence[Inputs]) -> bool:
        """Return whether these clients can share a stack: their inputs have the derived form, with equal shared numbers."""
        numbers = [path for path, stacked in self.reads.items() if path.startswith("inputs/") and not stacked]
        found = [dict(leaves({"inputs": one})) for one in inputs]
        if any(form_of(one) != self.form for one in inputs):
            return False
        return all(one[path] == found[0][path] for one in found for path in numbers)

    def bind(
        self, params: Tree, memory: Memory | None, inputs: Sequence[Inputs], buffers: Tensors | None = None
    ) -> Step:
        """Return the step of two or more clients: ``step(x, y, ...) -> losses``, all with a leading client dimension.

        ``params``, ``memory`` and ``buffers`` are also stacked, and written in place. Each of ``inputs`` belongs to one client.
        """
        memory = fresh_memory(self.optimizer, params) if memory is None else memory
        given = dict(leaves({"params": params, "buffers": buffers or {}, "memory": memory._asdict()}))
        found = [dict(leaves({"inputs": one})) for one in inputs]
        taken: dict[str, Any] = {"M": len(inputs)}
        for path, stacked in self.reads.items():
            if path in given:
                taken[path] = given[path]
            elif stacked:
                taken[path] = torch.stack([one[path] for one in found])
            else:
                taken[path] = number(found[0][path]) if is_number(found[0][path]) else found[0][path]
        return self.loaded(taken)


def worth_stacking(params: Tensors, rows: int) -> bool:
    """Return whether clients with such parameters and batches should share a stack (benchmarks/stacked_speed.py).

    Half the time of a small step goes into calling its operators, which a stack shares. Above four million multiplications in a
    batch's forward pass, a stack gains nothing.
    """
    return sum(x.numel() for x in params.values()) * rows <= _SMALL


def derive_stacked(spec: StepSpec, batch: Batch, inputs: Inputs, apart: bool = False) -> StackedProgram:
    """Return the stacked program for batches shaped like ``batch``; NotTraceable, with the reason, if it cannot be derived.

    ``apart``: values that depend only on rows get a separate graph, as in `derive`.
    """
    example = example_of(spec, batch, inputs)
    if spec.optimizer.name == "adam":
        raise NotTraceable("Adam's step count may differ from client to client")
    if any(x.dim() > 2 for x in example.params.values()):
        raise NotTraceable("convolutions are faster one client at a time")
    flat = trace(spec, example)
    if any(node.target in SILENT_WRITERS for node in flat.graph.nodes):
        raise NotTraceable("batch statistics are kept client by client")
    with whatever_fails("the stacked step"), training(spec.module):
        one, rows = parted(rewrite(flat), example, apart)
        plain_loss(one)
        program = StackedProgram(*text_of(one), spec, form_of(inputs))
        verify(spec, program, example, rows)
    return program


class StackText(NamedTuple):
    """The text of a stacked step, which arguments it reads (True: with a client dimension), and the tensors that it holds."""

    source: str
    reads: dict[str, bool]
    constants: Tensors


_KEPT = 64
# Of the graphs stacked last in this process: its runs often train the same small network.
_TEXTS: dict[str, StackText] = {}


def text_of(one: Flat) -> StackText:
    """Return the text for any number of clients of one client's step; a graph met before has the text that it had then."""
    if one.constants:  # their values are not in the description
        return written(one)
    graph = description(one)
    found = _TEXTS.pop(graph, None) or written(one)
    _TEXTS[graph] = found
    if len(_TEXTS) > _KEPT:
        del _TEXTS[next(iter(_TEXTS))]
    return found


def description(one: Flat) -> str:
    """Return a text that two graphs share only if they do the same with arguments of the same names, shapes, strides and types."""
    lines = [
        f"{node.name} = {node.op} {node.target} {node.args} {node.kwargs} {layout(node)}" for node in one.graph.nodes
    ]
    names = {path: node.name for path, node in one.arguments.items()}
    return "\n".join([*lines, f"{names} {one.results} {one.fixed} {one.adam}"])


def layout(node: Op) -> str:
    """Return the shape, the strides, the type and the device of a node's value; "" for a node without."""
    if not isinstance(described := node.meta.get("val"), Tensor):
        return ""
    return f"{tuple(described.shape)} {described.stride()} {described.dtype} {node.meta['device']}"


def written(one: Flat) -> StackText:
    """Derive the text: the graphs for some numbers of clients, each rewritten, fused and written, and what is common to them."""
    made = [fuse(rewrite(stacked(one, count))) for count in _COUNTS]
    emitted = [emit(each) for each in made]
    reads = {path: bool(shape) for path, (shape, _) in emitted[0].reads.items()}
    return StackText(any_count([each.source for each in emitted]), reads, made[0].constants)


def stacked(flat: Flat, count: int) -> Flat:
    """Return the graph of ``count`` clients' steps, made from one client's; numbers are shared."""
    places = {path: value(node) for path, node in flat.arguments.items()}
    dims = tuple(0 if x.dim() else None for x in places.values())
    _, new = flat.returned
    out_dims = (0, *(0 if value(node).dim() else None for node in new.values()))
    devices = [node.meta["device"] for node in flat.arguments.values()]
    values = [
        torch.zeros((count, *x.shape) if x.dim() else (), dtype=x.dtype, device=device)
        for x, device in zip(places.values(), devices, strict=True)
    ]
    step = GraphModule(flat.constants, flat.graph)
    many: Any = vmap(lambda *one: tuple(step(*one)), dims, out_dims)  # type: ignore[arg-type]  # None = not stacked
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # an operator that vmap would run client by client raises
        module = record(many, values)
    return flat_of(module, places, flat.results, flat.fixed)


def plain_loss(flat: Flat) -> None:
    """Write mean cross entropy of the rows' own labels as a gather, which stacks in three operators instead of twelve."""
    y = flat.arguments.get("batch/y")
    for node in flat.graph.find_nodes(op="call_function", target=aten.nll_loss_forward.default):
        log_p, labels, weight, reduction, ignored = node.args
        plain = labels is y and weight is None and (reduction, ignored) == (1, -100)
        if plain and all(user.args[1] == 0 for user in node.users):
            for user in list(node.users):
                picked = insert(user, aten.gather.default, log_p, 1, insert(user, aten.unsqueeze.default, labels, 1))
                swap(user, insert(user, aten.neg.default, insert(user, aten.mean.dim, picked, [0, 1])))
            node.graph.erase_node(node)


def any_count(texts: Sequence[str]) -> str:
    """Return one text for any number of clients M: a number that differs between the texts must be a + b M."""
    pieces = [re.split(r"(\d+)", text) for text in texts]
    if len({len(each) for each in pieces}) > 1:
        raise NotTraceable("the stacked step has another form for another number of clients")
    text = "".join(at_count(each) for each in zip(*pieces, strict=True))
    return text.replace("def bind(T):\n", "def bind(T):\n    M = T['M']\n", 1)


def at_count(piece: tuple[str, ...]) -> str:
    """Return a piece of text shared by all counts, or its number as a formula in M."""
    if len(set(piece)) == 1:
        return piece[0]
    if not all(each.isdigit() for each in piece):
        raise NotTraceable("the stacked step has another form for another number of clients")
    (first, second), values = _COUNTS[:2], [int(each) for each in piece]
    slope = (values[1] - values[0]) // (second - first)
    start = values[0] - slope * first
    if [start + slope * count for count in _COUNTS] != values:
        raise NotTraceable(f"a size in the stacked step is not linear in the number of clients: {values}")
    return f"({slope} * M + {start})" if start else f"({slope} * M)"


def verify(spec: StepSpec, program: StackedProgram, example: Example, rows: RowValues | None) -> None:
    """Raise NotTraceable if the stack departs from autograd on any of its clients."""

    def together(clients: list[Example]) -> list[dict[str, Tensor]]:
        batches = [batch_arguments(with_values(rows, at)) for at in clients]
        arguments = [torch.stack(each) for each in zip(*batches, strict=True)]
        params = stack([local_copy(at.params) for at in clients])
        with program.mode():
            step = program.bind(params, None, [at.inputs for at in clients], stack([at.buffers for at in clients]))
            losses = torch.stack([step(*arguments).clone() for _ in range(2)], dim=1)
        return [
            {"loss": losses[k], **{f"params/{name}": x[k] for name, x in params.items()}} for k in range(len(clients))
        ]

    check(spec, example, 3, together)

"""One local step as a flat graph of torch operators: gradient, direction and update together, with no value fixed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import functionalize
from torch.fx import GraphModule

from fedatlas.algorithm import Batch
from fedatlas.engine import optim
from fedatlas.engine.gradient import gradient, with_grad
from fedatlas.engine.graph import Flat, writes
from fedatlas.engine.optim import Memory
from fedatlas.engine.precision import convolutions_in
from fedatlas.engine.recorder import record
from fedatlas.engine.step import (
    Inputs,
    NotTraceable,
    StepSpec,
    channels_last,
    is_number,
    laid_out,
    leaves,
    number,
    rebuilt,
)
from fedatlas.errors import first_line
from fedatlas.models.dropout import training
from fedatlas.models.inspection import is_recurrent
from fedatlas.tree import Tensors, Tree

LIMIT = 5000  # operators; emitting a longer graph (an unrolled recurrence) takes longer than it saves


class Example(NamedTuple):
    """Example values to trace a step with; only shapes, strides and types of the tensors matter."""

    params: Tree
    buffers: Tree
    memory: Memory
    inputs: Inputs
    batch: Batch


def given_as(path: str, x: Any) -> Any:
    """Return a leaf as the step reads it: numbers as tensors, tensors of the inputs laid out like parameters."""
    if is_number(x):
        return number(x)
    return laid_out(x) if path.startswith("inputs/") and isinstance(x, Tensor) else x


def trace(spec: StepSpec, example: Example) -> Flat:
    """Return the flat graph of one step; NotTraceable, with the reason, if it cannot be traced."""
    if is_recurrent(spec.module):
        raise NotTraceable("recurrent layers would have to be unrolled")
    given = dict(leaves(example._asdict()))
    values = {path: given_as(path, x) for path, x in given.items()}
    tensors = {path: x.detach() for path, x in values.items() if isinstance(x, Tensor)}
    fixed = {path: x for path, x in values.items() if not isinstance(x, Tensor)}
    names: list[str] = []

    def flat_step(*flat: Tensor) -> list[Tensor]:
        loss, new = one_step(spec, Example(**rebuilt(example._asdict(), dict(zip(tensors, flat, strict=True)))))
        names[:] = new
        return [loss, *new.values()]

    try:
        with training(spec.module):
            module = graph_of(flat_step, list(tensors.values()))
    except NotTraceable:
        raise
    except Exception as error:
        raise NotTraceable(f"tracing stopped at: {first_line(error)}") from error
    refuse(spec, module, tensors)
    adam = spec.optimizer if spec.optimizer.name == "adam" else None
    return flat_of(module, list(tensors), names, fixed)._replace(adam=adam)


def flat_of(module: GraphModule, arguments: Iterable[str], results: Sequence[str], fixed: Mapping[str, Any]) -> Flat:
    """Return a traced module as a flat graph whose arguments, and results after the loss, have these paths."""
    placeholders = module.graph.find_nodes(op="placeholder")
    constants = {str(node.target): getattr(module, str(node.target)) for node in module.graph.find_nodes(op="get_attr")}
    return Flat(module.graph, dict(zip(arguments, placeholders, strict=True)), list(results), constants, dict(fixed))


def one_step(spec: StepSpec, at: Example) -> tuple[Tensor, dict[str, Tensor]]:
    """Return (loss, new values by path) of one step, written with the optimisers of the loop.

    If a separate pass follows (`optim.adam_pass`), the gradients replace the new values.
    """

    def objective(weights: Tree, batch: Batch) -> Tensor:
        return spec.loss(weights, at.buffers, batch, at.inputs)

    with convolutions_in(spec.precision):
        convolves = any(x.dim() == 4 for x in at.params.values())
        batch = at.batch._replace(x=channels_last(at.batch.x)) if convolves else at.batch
        loss, grads = gradient(objective, with_grad(at.params), batch)
    with torch.no_grad():
        if "weight_decay" in at.inputs:
            grads = grads + at.inputs["weight_decay"] * at.params
        if spec.direction is not None:
            grads = spec.direction(grads, at.params, at.inputs)
        grads = optim.clip(grads, spec.clip)
        if spec.optimizer.name == "adam":
            return loss.detach(), {f"grads/{name}": g for name, g in at.params.map(lambda w, g: g, grads).items()}
        params, memory = optim.step(spec.optimizer, at.params, grads, at.memory, at.inputs["lr"])
        memory = memory._replace(steps=at.memory.steps)  # only Adam counts
    new = dict(leaves({"params": params, "memory": memory._asdict()}))
    return loss.detach(), {path: x for path, x in new.items() if isinstance(x, Tensor)}


def graph_of(step: Callable[..., list[Tensor]], values: list[Tensor]) -> GraphModule:
    """Trace a step. If the code writes into tensors (as ReLU(inplace=True) does), trace it again through `functionalize`."""
    module = record(step, values)
    if any(writes(node) for node in module.graph.nodes):
        module = record(functionalize(module, remove="mutations"), values)
    return module


def refuse(spec: StepSpec, module: GraphModule, tensors: Tensors) -> None:
    """Raise NotTraceable for a graph that draws random numbers, is too long, or has captured an input as a constant."""
    nodes = [node for node in module.graph.nodes if node.op == "call_function"]
    if len(nodes) > LIMIT:
        raise NotTraceable(f"the step has {len(nodes)} operators, more than {LIMIT}")
    for node in nodes:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            raise NotTraceable(f"the model draws random numbers in its forward pass ({node.target})")
    own = [*spec.module.parameters(), *spec.module.state_dict().values(), *tensors.values()]
    held = {x.untyped_storage().data_ptr() for x in own if x.numel()}
    for node in module.graph.nodes:
        if node.op == "get_attr":
            value = getattr(module, str(node.target))
            if isinstance(value, Tensor) and value.numel() and value.untyped_storage().data_ptr() in held:
                raise NotTraceable("the loss reads a tensor of the module or of a message around its arguments")

"""The step program: one local step as plain Python, derived once per (task, model, batch shape, local optimiser).

spec -> trace (one flat graph: gradient, direction, update) -> rewrite -> fuse -> emit -> check against autograd
"""

from __future__ import annotations

import ctypes
import math
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor

from fedatlas.algorithm import Batch
from fedatlas.engine.compiler import compiled, library
from fedatlas.engine.emit import Emitted, emit
from fedatlas.engine.fuse import fuse
from fedatlas.engine.graph import Flat
from fedatlas.engine.model import parts_of
from fedatlas.engine.native import NotNative, emit_native
from fedatlas.engine.optim import Memory, Optimizer, adam_pass
from fedatlas.engine.rewrite import rewrite
from fedatlas.engine.rowwise import RowValues, part_rows
from fedatlas.engine.step import (
    InputForm,
    Inputs,
    NotTraceable,
    StepSpec,
    batch_arguments,
    form_of,
    fresh_memory,
    laid_out,
    leaves,
    local_copy,
    rebuilt,
)
from fedatlas.engine.trace import Example, given_as, trace
from fedatlas.engine.tuned import Step, TunedStep
from fedatlas.errors import first_line
from fedatlas.models.dropout import training
from fedatlas.rng import torch_stream
from fedatlas.tree import Tensors, Tree

# Largest distance of one step from autograd's, relative to the length of the step. Sums in another order and decisions
# (ReLU, arg-max) at the edge stay within it; a wrong formula does not.
_TOLERANCE = {"float64": 1e-8, "float32": 1e-3, "bfloat16": 0.1}


class Program:
    """The text of a derived step, loaded where it is first bound. It can be pickled.

    It is valid only for inputs of its ``form``: an objective or a direction may treat other inputs differently.
    """

    def __init__(self, source: str, spec: StepSpec, constants: Tensors, form: InputForm, code: str = "") -> None:
        self.source, self.code, self.optimizer, self.form = source, code, spec.optimizer, form
        self.constants = {f"constants/{name}": x for name, x in constants.items()}
        self._bind: Callable[[Mapping[str, Any]], Step] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_bind": None}

    def mode(self) -> AbstractContextManager[Any]:
        """Return the context in which to copy, bind and step: without autograd's bookkeeping."""
        return torch.inference_mode()

    def loaded(self, taken: Mapping[str, Any]) -> Step:
        """Return the step that the text's function ``bind`` makes of tensors by path. Only emit.py and native.py write the text."""
        if self._bind is None:
            space: dict[str, Any] = {"torch": torch, "adam_pass": adam_pass, "Optimizer": Optimizer}
            if self.code:
                space |= {"ctypes": ctypes, "native": compiled(self.code, "step")}
            exec(compile(self.source, "<step program>", "exec"), space)
            self._bind = space["bind"]
        return self._bind({**self.constants, **taken})


class StepProgram(Program):
    """The step of one client; ``note`` describes the fusing."""

    def __init__(
        self,
        emitted: Emitted,
        spec: StepSpec,
        constants: Tensors,
        form: InputForm,
        rows: RowValues | None = None,
    ) -> None:
        super().__init__(emitted.source, spec, constants, form, emitted.code)
        self.rows, self.emitted, self.note = rows, emitted, emitted.note

    def takes(self, params: Tree, inputs: Inputs) -> bool:
        """Return whether parameters and inputs have the form and the shapes that the step was derived for."""
        if form_of(inputs) != self.form:
            return False
        given = dict(leaves({"params": params, "inputs": inputs}))
        wanted = {path: shape for path, (shape, _) in self.emitted.reads.items()}
        wanted |= dict(zip(self.rows.paths, self.rows.reads, strict=True)) if self.rows else {}
        return all(getattr(given[path], "shape", ()) == shape for path, shape in wanted.items() if path in given)

    def bind(self, params: Tree, memory: Memory | None, inputs: Inputs, buffers: Tensors | None = None) -> Step:
        """Return the step of one client: ``step(x, y, row weights if any, masks in order, values of `rows`) -> loss``.

        ``params`` (from `local_copy`), ``memory`` (`fresh_memory`) and ``buffers`` are written in place; steps of other
        batch shapes may share them. Values that are constant during the client's local work are computed here.
        """
        memory = fresh_memory(self.optimizer, params) if memory is None else memory
        given = dict(leaves({"params": params, "buffers": buffers or {}, "memory": memory._asdict(), "inputs": inputs}))
        for path, value in self.emitted.fixed.items():
            if path in given and given[path] != value:
                raise ValueError(f"this step was derived for {path} = {value!r}, not {given[path]!r}")
        taken: dict[str, Any] = {}
        for path, (shape, stride) in self.emitted.reads.items():
            x = given_as(path, given[path])
            if (x.shape, x.stride()) != (shape, stride):
                raise ValueError(f"{path} has shape {tuple(x.shape)} and strides {x.stride()}: use local_copy()")
            taken[path] = x
        return self.loaded(taken)


Made = StepProgram | TunedStep


def derive(
    spec: StepSpec, batch: Batch, inputs: Inputs, native: bool = False, apart: bool = False, params: Tree | None = None
) -> StepProgram:
    """Return the program of ``spec`` for batches shaped like ``batch``; NotTraceable, with the reason, if it cannot be derived.

    It is compared with autograd once, and refused if it disagrees. ``native``: its step in C
    if every operator has a C form. ``apart``: values that depend only on rows get a separate graph, ``rows``. ``params``:
    the trained tensors, if they are not those of the module.
    """
    example = example_of(spec, batch, inputs, params)
    flat = trace(spec, example)
    try:
        with whatever_fails("the derived step"), training(spec.module):
            flat, rows = parted(rewrite(flat), example, apart)
            program = StepProgram(written(fuse(flat), native), spec, flat.constants, form_of(inputs), rows)
            check(spec, example, 1, lambda points: [outcome(program, at) for at in points])
    except NotTraceable:
        if apart:  # without a split it may be derivable
            return derive(spec, batch, inputs, native, params=params)
        raise
    return program


def written(flat: Flat, native: bool) -> Emitted:
    """Return a fused graph as text: in C if requested and possible, else as calls of torch."""
    if not native:
        return emit(flat)
    try:
        found = emit_native(flat)
        library(found.code)
        return found
    except (NotNative, OSError, subprocess.SubprocessError) as reason:
        plain = emit(flat)
        return plain._replace(note=f"{plain.note}; not native: {first_line(reason)}")


def parted(flat: Flat, example: Example, apart: bool) -> tuple[Flat, RowValues | None]:
    """Split off the part of a step that depends only on its rows, if ``apart``, and check that it works row by row."""
    flat, rows = part_rows(flat) if apart else (flat, None)
    if rows is not None:
        at, other = disturbed(example), disturbed(example, 1)
        values = rows.of(at.inputs, at.buffers)
        both, each = values(torch.cat([at.batch.x, other.batch.x])), (values(at.batch.x), values(other.batch.x))
        for name, x in both.items():
            one = torch.cat([found[name] for found in each]).nan_to_num(0.0)
            if not distance(x.nan_to_num(0.0), one) <= _TOLERANCE["float32"] * float(one.double().norm()):
                raise NotTraceable("values of one row depend on other rows")
    return flat, rows


def step_for(
    spec: StepSpec, batch: Batch, inputs: Inputs, native: bool = False, apart: bool = False, params: Tree | None = None
) -> Made:
    """Return the derived program, or the tuned step if none can be derived; ``note`` gives the choice and its reason."""
    try:
        return derive(spec, batch, inputs, native, apart, params)
    except NotTraceable as reason:
        return TunedStep(spec, batch, str(reason))


def example_of(spec: StepSpec, batch: Batch, inputs: Inputs, params: Tree | None = None) -> Example:
    """Return the module's own state (or other ``params``), laid out for a step, with the batch and the inputs given."""
    own, buffers = parts_of(spec.module)
    params = (own if params is None else params).map(laid_out)
    return Example(params, buffers, fresh_memory(spec.optimizer, params), inputs, batch)


@contextmanager
def whatever_fails(what: str) -> Iterator[None]:
    """Raise an error inside the block as NotTraceable, so that the tuned step is used instead."""
    try:
        yield
    except NotTraceable:
        raise
    except Exception as error:
        raise NotTraceable(f"{what} fails: {first_line(error)}") from error


# ---------------------------------------------------------------------- comparison with autograd


def check(
    spec: StepSpec, example: Example, count: int, run: Callable[[list[Example]], list[dict[str, Tensor]]]
) -> None:
    """Raise NotTraceable if ``run`` departs from autograd on ``count`` disturbed examples.

    If autograd gives NaN there, only the rows are changed, since comparing two NaN would prove nothing.
    """
    tuned = TunedStep(spec, example.batch)
    for change in (disturbed, other_rows):
        points = [change(example, key) for key in range(count)]
        expected = [outcome(tuned, at) for at in points]
        if all(ways_of(at, ends) is not None for at, ends in zip(points, expected, strict=True)):
            for at, ends, got in zip(points, expected, run(points), strict=True):
                compare(spec, at, ends, got)
            return
    raise NotTraceable("autograd's own step gives NaN or infinity, so the program cannot be checked")


def other_rows(example: Example, key: int = 0) -> Example:
    """Return the example with its batch's rows in another order, to expose values that the trace took from its rows."""
    found = {
        path: x.roll(key + 1, 0) for path, x in leaves(example._asdict()) if path.startswith("batch/") and x is not None
    }
    return Example(**rebuilt(example._asdict(), found))


def disturbed(example: Example, key: int = 0) -> Example:
    """Return the example with noise on every tensor and with other numbers and rows, so that no zero hides a term.

    Labels, row weights and masks stay as they are, since they may have to be 0 or 1.
    """
    stream = torch_stream(0, "check", key)

    def moved(x: Any) -> Any:
        if isinstance(x, Tensor) and x.is_floating_point():
            noise = torch.rand(x.shape, device="cpu", generator=stream, dtype=x.dtype)
            return x + 0.01 * noise.to(x.device)
        return 0.75 * x if isinstance(x, float) else x

    given = dict(leaves(other_rows(example, key)._asdict()))
    found = {path: moved(x) for path, x in given.items() if path == "batch/x" or not path.startswith("batch/")}
    return Example(**rebuilt(example._asdict(), {**given, **found}))


def outcome(made: Made, at: Example) -> dict[str, Tensor]:
    """Return parameters, buffers and losses after two steps."""
    with made.mode():
        params, buffers = local_copy(at.params), at.buffers.clone()
        step = made.bind(params, None, at.inputs, buffers)
        batch = at.batch if isinstance(made, TunedStep) else with_values(made.rows, at)
        losses = [
            torch.as_tensor(step(*batch_arguments(batch)), dtype=torch.float64).reshape(1).clone() for _ in range(2)
        ]
        return {"loss": torch.cat(losses), **dict(leaves({"params": params, "buffers": buffers}))}


def with_values(rows: RowValues | None, at: Example) -> Batch:
    """Return an example's batch with the values computed from its rows."""
    if rows is None:
        return at.batch
    return at.batch._replace(extra={**at.batch.extra, **rows.of(at.inputs, at.buffers)(at.batch.x)})


def compare(spec: StepSpec, start: Example, expected: Tensors, got: Tensors) -> None:
    """Raise NotTraceable if two outcomes differ by more than a small share of the distance from the start.

    For a parameter that distance is its own plus a tenth of the whole model's. A convolution's bias before a BatchNorm
    changes only by rounding.
    """
    name = str(next(iter(start.params.values())).dtype).removeprefix("torch.") if start.params else "float32"
    tolerance = _TOLERANCE["bfloat16" if spec.precision == "bfloat16" else name]
    begin, ways = begin_of(start), ways_of(start, expected)
    assert ways is not None
    whole = math.hypot(*(way for path, way in ways.items() if path.startswith("params/")))
    for path in got:
        room = ways[path] + (0.1 * whole if path.startswith("params/") else 0.0)
        if path in begin:
            room += 1e-4 * float(begin[path].double().nan_to_num(0.0, 0.0, 0.0).norm())
        if not distance(got[path], expected[path]) <= tolerance * room:
            raise NotTraceable(f"the derived step departs from autograd's at {path}")


def begin_of(start: Example) -> dict[str, Tensor]:
    """Return, by path, the tensors that a step changes, with their values before it."""
    return dict(leaves({"params": start.params, "buffers": start.buffers}))


def ways_of(start: Example, expected: Tensors) -> dict[str, float] | None:
    """Return how far each tensor moved, and the loss from zero; None if a value is NaN or infinite."""
    begin = begin_of(start)
    ways = {path: distance(x, begin.get(path, torch.zeros(()))) for path, x in expected.items()}
    return ways if all(map(math.isfinite, ways.values())) else None


def distance(a: Tensor, b: Tensor) -> float:
    """Return the Euclidean distance; equal elements count 0, even where a mask holds minus infinity."""
    return float((a.double() - b.double()).masked_fill(a == b, 0.0).norm())

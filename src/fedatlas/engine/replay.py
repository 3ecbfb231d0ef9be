"""Steps on a GPU, recorded once and replayed: one start in place of one for every kernel.

A small step is over before the processor has started its kernels one by one. CUDA can record them as a graph, with the memory that they
read and write, and start all of them at once. So the clients of one sort of job take turns with one set of tensors. The kernels are the
same, and so are the bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedatlas.algorithm import Batch
from fedatlas.engine.optim import Memory
from fedatlas.engine.program import StepProgram
from fedatlas.engine.step import Inputs, batch_arguments, fresh_memory, leaves, local_copy
from fedatlas.engine.tuned import Step
from fedatlas.tree import Tensors

WARM = 3  # runs before a recording: libraries choose kernels and take workspace in the first ones
KEPT = 4  # recorded steps of one sort of job: sizes of batches, and rates that follow a schedule
COMMON = frozenset({"inputs/lr", "inputs/weight_decay"})  # numbers that all clients of a round share


class Recorded:
    """One recorded step, the tensors that its batch is copied to, and its loss. ``step`` holds the memory that the graph uses."""

    def __init__(self, step: Step, graph: torch.cuda.CUDAGraph, arguments: Sequence[Tensor], loss: Tensor) -> None:
        self.step, self.graph, self.arguments, self.loss = step, graph, arguments, loss

    def __call__(self, *batch: Tensor) -> Tensor:
        """Do the step on a batch; return the loss."""
        for place, x in zip(self.arguments, batch, strict=True):
            place.copy_(x)
        self.graph.replay()
        return self.loss.clone()


class Replays:
    """The tensors that clients of one sort of job take turns with, and the steps recorded on them, by batch size."""

    def __init__(self, program: StepProgram, params: Tensors) -> None:
        self.params = local_copy(params)
        self.memory: Memory = fresh_memory(program.optimizer, self.params)
        self.steps: dict[Any, Step] = {}

    def begin(self, params: Tensors) -> None:
        """Take a client's start."""
        self.write({**params, **{path: torch.zeros_like(x) for path, x in self.moving().items()}})

    def moving(self) -> dict[str, Tensor]:
        """Return the optimizer's tensors by path."""
        return {path: x for path, x in leaves(self.memory._asdict(), "memory") if isinstance(x, Tensor) and x.dim()}

    def write(self, values: Tensors) -> None:
        """Write parameters and the optimizer's tensors in place."""
        with torch.no_grad():
            for path, place in self.places().items():
                place.copy_(values[path])

    def places(self) -> dict[str, Tensor]:
        """Return all tensors that steps change, by path."""
        return {**self.params, **self.moving()}

    def step(self, program: StepProgram, inputs: Inputs, batch: Batch) -> Step:
        """Return the recorded step for batches of this shape and these constants; it is recorded if it is new.

        A step with an operator that cannot be recorded is returned as it is.
        """
        numbers = tuple(float(x) for path, x in leaves(inputs, "inputs") if path in program.emitted.reads)
        arguments = batch_arguments(batch)
        key = numbers, tuple(x.shape for x in arguments)
        if key not in self.steps:
            self.steps[key] = self.record(program, inputs, arguments)
            if len(self.steps) > KEPT:
                del self.steps[next(iter(self.steps))]
        return self.steps[key]

    def record(self, program: StepProgram, inputs: Inputs, given: Sequence[Tensor]) -> Step:
        """Record a step, and leave all tensors as they were."""
        before = {path: x.clone() for path, x in self.places().items()}
        arguments = tuple(x.clone() for x in given)
        step = program.bind(self.params, self.memory, inputs)
        beside, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()  # type: ignore[no-untyped-call]
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(WARM):
                step(*arguments)
        torch.cuda.current_stream().wait_stream(beside)
        try:
            with torch.cuda.graph(graph):
                loss = torch.as_tensor(step(*arguments))
        except RuntimeError:
            return step
        finally:
            self.write(before)
        return Recorded(step, graph, arguments, loss)


def replayable(program: StepProgram) -> bool:
    """Return whether a step may be recorded for all clients: it reads what it changes, its batch, and numbers that all share.

    What it makes of a client's own tensors when it is bound would be that of the first client. Adam counts its steps on the processor.
    """
    own = {path for path in program.emitted.reads if path.startswith(("inputs/", "buffers/"))}
    return program.optimizer.name == "sgd" and own <= COMMON

"""The tuned step: plain autograd without overhead, for every module, traceable or not. Programs are checked against it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from fedatlas.algorithm import Batch
from fedatlas.engine import optim
from fedatlas.engine.device import CPU, placing
from fedatlas.engine.gradient import with_grad
from fedatlas.engine.optim import Memory
from fedatlas.engine.precision import convolutions_in
from fedatlas.engine.step import Inputs, StepSpec, fresh_memory
from fedatlas.tree import Tensors, Tree

Step = Callable[..., Tensor]
"""(x, y, row weights if there are any, masks in their order) -> loss; writes the new parameters into the old ones."""


class TunedStep:
    """A step that binds like a `StepProgram`, but uses autograd with updates in place."""

    source = ""

    def __init__(self, spec: StepSpec, batch: Batch, reason: str = "asked for") -> None:
        self.spec, self.note = spec, f"tuned step: {reason}"
        self.weighted, self.masks = batch.weight is not None, tuple(batch.extra)

    def mode(self) -> AbstractContextManager[Any]:
        """Return the context in which to bind and step: outside inference mode, whose tensors autograd refuses."""
        return nullcontext()

    def bind(self, params: Tree, memory: Memory | None, inputs: Inputs, buffers: Tensors | None = None) -> Step:
        """Return the step of one client. ``params``, ``memory`` (`fresh_memory`) and ``buffers`` are written in place."""
        spec, weights, state = self.spec, with_grad(params), Tree(buffers or {})
        device = next((x.device for x in params.values()), CPU)
        memory = fresh_memory(spec.optimizer, params) if memory is None else memory
        update = _update(spec, params, memory, inputs)
        spec.module.train()

        def objective(weights: Tree, batch: Batch) -> Tensor:
            return spec.loss(weights, state, batch, inputs)

        def step(x: Tensor, y: Tensor, *more: Tensor) -> Tensor:
            extra = dict(zip(self.masks, more[self.weighted :], strict=False))  # the rest are values for programs
            batch = Batch(x, y, more[0] if self.weighted else None, extra)
            with convolutions_in(spec.precision), placing(device):
                loss, grads = spec.gradient(objective, weights, batch)
            with torch.no_grad(), placing(device):
                update(grads)
            return loss.detach()

        return step


def _update(spec: StepSpec, params: Tree, memory: Memory, inputs: Inputs) -> Callable[[Tree], None]:
    """Return a function that applies decay, direction, clip and optimiser in place."""
    optimizer, lr, decay = spec.optimizer, float(inputs["lr"]), inputs.get("weight_decay")
    held, first = list(params.values()), list(memory.first.values())

    def corrected(grads: Tree) -> Tree:
        if decay is not None:
            grads = grads + decay * params
        if spec.direction is not None:
            grads = spec.direction(grads, params, inputs)
        return optim.clip(grads, spec.clip)

    def sgd(grads: Tree) -> None:
        # by name: a direction may have another order
        moves = list(params.map(lambda w, g: g, corrected(grads)).values())
        if optimizer.momentum:
            torch._foreach_mul_(first, optimizer.momentum)
            torch._foreach_add_(first, moves)
            if optimizer.nesterov:
                torch._foreach_add_(held, moves, alpha=-lr)
            torch._foreach_add_(held, first, alpha=-lr * (optimizer.momentum if optimizer.nesterov else 1.0))
        else:
            torch._foreach_add_(held, moves, alpha=-lr)

    def adam(grads: Tree) -> None:
        moves = list(params.map(lying_as, corrected(grads)).values())
        optim.adam_pass(optimizer, held, moves, first, list(memory.second.values()), memory.steps, lr)  # type: ignore[arg-type]  # a tensor, see fresh_memory

    return adam if optimizer.name == "adam" else sgd


def lying_as(like: Tensor, x: Tensor) -> Tensor:
    """Return ``x`` in memory laid out like ``like``."""
    return x if x.stride() == like.stride() else torch.empty_like(like).copy_(x)

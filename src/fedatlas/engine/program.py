"""The step program: one local step, derived once per (task, model, batch shape, local optimiser), as plain Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from fedatlas.algorithm import Batch
from fedatlas.engine import optim
from fedatlas.engine.emit import emit
from fedatlas.engine.fuse import fuse
from fedatlas.engine.optim import Memory
from fedatlas.engine.rewrite import rewrite
from fedatlas.engine.step import Inputs, StepSpec, is_number, leaves, number
from fedatlas.engine.trace import Example, channels_last, trace
from fedatlas.tree import Tree

Step = Callable[..., Tensor]


class StepProgram:
    def __init__(self, source, fixed, constants, spec):
        self.source, self.fixed, self.constants, self.spec = source, fixed, constants, spec
        space = {"torch": torch}
        exec(compile(source, "<step program>", "exec"), space)
        self._bind = space["bind"]

    def local_copy(self, params):
        return Tree({n: channels_last(x).clone() for n, x in params.items()})

    def bind(self, params, memory, inputs, buffers=None):
        memory = memory or optim.start(self.spec.optimizer, params)
        given = leaves({"params": params, "memory": memory._asdict(), "inputs": inputs, "buffers": buffers or {}})
        T = {path: number(x) if is_number(x) else x for path, x in given}
        T.update({f"constants/{k}": v for k, v in self.constants.items()})
        return self._bind(T)


def derive(spec: StepSpec, batch: Batch, inputs: Inputs) -> StepProgram:
    with torch.no_grad():
        params = Tree({n: channels_last(p.detach()) for n, p in spec.module.named_parameters() if p.requires_grad})
        state = spec.module.state_dict()
        buffers = Tree({n: x.detach().clone() for n, x in state.items() if n not in params})
    flat = trace(spec, Example(params, buffers, optim.start(spec.optimizer, params), inputs, batch))
    flat = fuse(rewrite(flat))
    return StepProgram(emit(flat), flat.fixed, flat.constants, spec)

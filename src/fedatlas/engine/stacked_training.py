"""The local work of several clients in one stack, which shrinks as clients finish."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedatlas.algorithm import Batch
from fedatlas.engine.optim import Memory
from fedatlas.engine.program import Made
from fedatlas.engine.stacked import StackedProgram
from fedatlas.engine.step import Inputs, batch_arguments, fresh_memory, local_copy
from fedatlas.engine.tuned import Step
from fedatlas.tree import Tree, stack

Alone = Callable[[int], Made]
"""The step of one client for a batch size."""


class Member(NamedTuple):
    """A client's work: its start, its constants, and its batches in order."""

    params: Tree
    buffers: Tree
    inputs: Inputs
    batches: Iterator[Batch]


class Trained(NamedTuple):
    """The result of a client's work. ``loss`` is the sum over the examples of all steps."""

    params: Tree
    buffers: Tree
    steps: int
    examples: int
    loss: float


def train_together(
    programs: Mapping[int, StackedProgram], alone: Alone, members: Sequence[Member], usual: int = 0
) -> list[Trained]:
    """Do the local work of clients that can share a stack (`StackedProgram.fits`). Stacked programs are given by batch size.

    Clients do not wait for each other's epochs. Each tick gives every unfinished client one batch. Next batches of one common
    size are taken as they are. Otherwise each client gets a whole one (of ``usual`` rows, or of the largest size), after the others
    before it have been done one by one. A client's bits depend on its stack, since they depend on where a row falls in the
    processor's vectors. A stack must therefore be run whole.
    """
    training = _Stack(programs, alone, members, usual if usual in programs else max(programs))
    while training.rows:
        training.step(training.next_batches())
    return [training.done[k] for k in range(len(members))]


class _Stack:
    def __init__(
        self, programs: Mapping[int, StackedProgram], alone: Alone, members: Sequence[Member], whole: int
    ) -> None:
        self.programs, self.alone, self.members = programs, alone, members
        self.whole = whole
        self.rows = list(range(len(members)))  # the client in each position
        with torch.inference_mode(mode=False):
            self.params = stack([local_copy(member.params) for member in members])
            self.buffers = stack([member.buffers for member in members])
        self.memory = fresh_memory(programs[self.whole].optimizer, self.params)
        device = next(iter(self.params.values())).device
        self.loss = torch.zeros(len(members), dtype=torch.float64, device=device)
        self.count = [[0, 0] for _ in members]  # steps and examples of each client
        self.bound: dict[int, Step] = {}
        self.singles: dict[tuple[int, int], Step] = {}
        self.done: dict[int, Trained] = {}

    def next_batches(self) -> list[Batch]:
        """Return one batch of each client with batches left, all of one size; finished clients leave the stack."""
        batches = [next(self.members[k].batches, None) for k in self.rows]
        sizes = {len(batch.x) for batch in batches if batch is not None}
        if len(sizes) > 1 or not sizes <= self.programs.keys():
            batches = [self.whole_batch(place, batch) for place, batch in enumerate(batches)]
        self.keep([place for place, batch in enumerate(batches) if batch is not None])
        return [batch for batch in batches if batch is not None]

    def whole_batch(self, place: int, batch: Batch | None) -> Batch | None:
        """Return the client's next whole batch; do the others before it."""
        while batch is not None and len(batch.x) != self.whole:
            self.step_alone(place, batch)
            batch = next(self.members[self.rows[place]].batches, None)
        return batch

    def step_alone(self, place: int, batch: Batch) -> None:
        """Do one step of one client, on its slice of the stack."""
        size = len(batch.x)
        made = self.alone(size)
        with made.mode():
            if (place, size) not in self.singles:
                memory = Memory(_slice(self.memory.first, place), _slice(self.memory.second, place), self.memory.steps)
                inputs = self.members[self.rows[place]].inputs
                params, buffers = _slice(self.params, place), _slice(self.buffers, place)
                self.singles[place, size] = made.bind(params, memory, inputs, buffers)
            self.loss[place] += self.singles[place, size](*batch_arguments(batch)) * size
        self.tally(place, size)

    def step(self, batches: Sequence[Batch]) -> None:
        """Do one batch of every client."""
        if len(batches) == 1:
            self.step_alone(0, batches[0])
        if len(batches) < 2:
            return
        size = len(batches[0].x)
        program = self.programs[size]
        with program.mode():
            if size not in self.bound:
                inputs = [self.members[k].inputs for k in self.rows]
                self.bound[size] = program.bind(self.params, self.memory, inputs, self.buffers)
            arguments = [torch.stack(each) for each in zip(*map(batch_arguments, batches), strict=True)]
            self.loss.add_(self.bound[size](*arguments), alpha=size)
        for place in range(len(batches)):
            self.tally(place, size)

    def tally(self, place: int, size: int) -> None:
        self.count[self.rows[place]][0] += 1
        self.count[self.rows[place]][1] += size

    def keep(self, places: list[int]) -> None:
        """Drop all clients but those in ``places``; their work is done."""
        if len(places) == len(self.rows):
            return
        with torch.inference_mode(mode=False):
            for place in set(range(len(self.rows))) - set(places):
                k = self.rows[place]
                params, buffers = _slice(self.params, place).clone(), _slice(self.buffers, place).clone()
                self.done[k] = Trained(params, buffers, self.count[k][0], self.count[k][1], float(self.loss[place]))
            index = torch.tensor(places, dtype=torch.long).to(self.loss.device)
            pick: Callable[[Tensor], Tensor] = lambda x: x[index]  # noqa: E731
            self.params, self.buffers, self.loss = self.params.map(pick), self.buffers.map(pick), pick(self.loss)
            self.memory = self.memory._replace(first=self.memory.first.map(pick), second=self.memory.second.map(pick))
        self.rows = [self.rows[place] for place in places]
        self.bound, self.singles = {}, {}


def _slice(tree: Tree, place: int) -> Tree:
    return Tree({name: x[place] for name, x in tree.items()})

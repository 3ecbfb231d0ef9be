"""A client's work by step programs: the work of `loop.run_job`, with the step derived, fused and run without autograd."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from itertools import count, islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedatlas.algorithm import Batch
from fedatlas.data.batches import Values, cut, examples_of
from fedatlas.engine import optim
from fedatlas.engine.device import placing
from fedatlas.engine.failing import rehearsed
from fedatlas.engine.job import (
    Bench,
    Job,
    Prepared,
    Result,
    answered,
    batch_size_of,
    budget_of,
    job_batches,
    prepare,
    question_of,
    result_of,
    training_of,
)
from fedatlas.engine.patience import watching
from fedatlas.engine.private_steps import acts_on_steps, gradient_of
from fedatlas.engine.program import Made, StepProgram, step_for
from fedatlas.engine.rowwise import RowValues
from fedatlas.engine.step import (
    InputForm,
    Inputs,
    StepSpec,
    batch_arguments,
    form_of,
    fresh_memory,
    local_copy,
    shapes_of,
)
from fedatlas.engine.tuned import Step, TunedStep
from fedatlas.tree import Tree

ASKED, RARE, FEW = "asked for", "a rare batch size", "few steps with tensors of a new shape"
ROW_BY_ROW = "gradients are clipped row by row"
"""Reasons for a tuned step although a program could be derived."""

WORTH = 0.1  # a batch size with at least this share of all steps gets its own program; rarer ones take the tuned step


UNREAD = 1000  # most losses held before they are read
LONG = 200  # steps of a job from which a program for tensors of a new shape pays off
SHAPES = 32  # number of shapes of a task's tensors whose programs are kept
SHAPED = "\0"  # separates the name of such a task from the number of its shapes
ROOM = 1 << 25  # numbers that may be stored with a client's rows


class Worth(NamedTuple):
    """The batch sizes worth a program, decided by the rows of all clients.

    A process that holds only one client's rows is given this value, because its steps would otherwise have other bits.
    """

    sizes: frozenset[int]  # batch sizes that get a program
    most: int  # rows of the largest client


def worth_of(batch: int, sizes: Sequence[int], merge: bool = False) -> Worth:
    """Return the `Worth` of clients with these numbers of rows."""
    return Worth(batch_sizes(batch, sizes, merge), max(sizes, default=0))


class FastRunner:
    """Runner of jobs by programs, one per kind of job and batch size. It is made before the workers are forked, so they share programs."""

    def __init__(
        self,
        bench: Bench,
        sizes: Iterable[int],
        step: str,
        precision: str,
        together: int = 1,
        worth: Worth | None = None,
    ) -> None:
        self.step, self.precision = step, precision
        self.room = ROOM // together  # clients whose rows are held at once
        sizes = list(sizes)
        self.usual, self.most = worth or worth_of(bench.local.batch_size, sizes, bench.local.merge)
        self.numbers = count(1)
        self.sorts: dict[tuple[str, InputForm], str] = {}  # by kind of job, and the contents of its message and state
        self.examples: dict[str, Batch] = {}  # a batch of each sort of job, for shapes
        self.derived: dict[str, frozenset[int]] = {}  # batch sizes of each sort that have a program
        self.steps: dict[tuple[str, int], Made] = {}
        self.rows: dict[str, RowValues] = {}  # of each sort whose programs take values computed only from rows

    def sort_of(self, bench: Bench, job: Job) -> str:
        """Return the sort of a job. Jobs of one sort share their programs.

        An objective may branch on whether its state is filled yet, so the sort depends on the forms of message and state.
        """
        kind, told = job.kind, {"message": told_to(job), "client": job.state}
        if self.tuned(bench, job):
            return kind
        key = kind, form_of(told)
        if training_of(bench, job).reshapes:
            return self.shaped(kind, key[1] | shapes_of(told))
        if key not in self.sorts:
            number = 1 + sum(each == kind for each, _ in self.sorts)
            self.sorts[key] = kind if number == 1 else f"{kind} ({number})"
        return self.sorts[key]

    def tuned(self, bench: Bench, job: Job) -> str:
        """Return why a job takes the tuned step only; "" if programs may be derived for it."""
        if self.step != "tuned" and acts_on_steps(bench.protection, job.word):
            return ROW_BY_ROW
        return ASKED if self.step == "tuned" else FEW if self.short(bench, job) else ""

    def short(self, bench: Bench, job: Job) -> bool:
        """Return whether a job whose tensors may have a new shape ends before deriving a program would pay off."""
        options, n = training_of(bench, job).options, int(job.facts.n_k)
        if not training_of(bench, job).reshapes:
            return False
        size = batch_size_of(options, bench.local.batch_size, n, bench.network.least) or max(n, 1)
        return examples_of(budget_of(job, options), n, size) < LONG * size

    def shaped(self, kind: str, form: InputForm) -> str:
        """Return the sort of jobs with tensors of these shapes; the least recently used sorts are forgotten."""
        name = self.sorts.pop((kind, form), None) or f"{kind}{SHAPED}{next(self.numbers)}"
        self.sorts[kind, form] = name
        old = [key for key, each in self.sorts.items() if each.startswith(kind + SHAPED)][:-SHAPES]
        for gone in [self.sorts.pop(key) for key in old]:
            for kept in (self.rows, self.examples, self.derived):
                kept.pop(gone, None)
            self.steps = {key: made for key, made in self.steps.items() if key[0] != gone}
        return name

    def warm(self, bench: Bench, job: Job) -> bool:
        """Derive the programs of a task from one of its jobs; return True if there was something to derive."""
        bench = rehearsed(bench, job).of(job)
        if question_of(bench, job) is not None or training_of(bench, job).options.steps == 0:
            return False
        sort = self.sort_of(bench, job)
        if (sort, -1) in self.steps:
            return False
        ready = prepare(bench, job)
        batch = next(iter(islice(job_batches(ready), 1)), None)
        if batch is None:
            return False
        spec = spec_of(bench, job, self.precision)
        self.examples[sort], self.derived[sort] = batch, self.sizes(bench, job, ready)
        self.steps[sort, -1] = TunedStep(spec, batch, self.tuned(bench, job) or RARE)
        with placing(bench.device):
            self.steps |= self.derive(sort, spec, ready, batch, max(self.most, ready.rows.n))
        return True

    def derive(
        self, sort: str, spec: StepSpec, ready: Prepared, batch: Batch, most: int
    ) -> dict[tuple[str, int], Made]:
        """Return the programs of a sort of job.

        Values that depend only on rows are computed separately if all programs agree on them and those of ``most`` rows fit.
        """
        inputs, native, params = inputs_of(ready), self.step == "native", ready.params if SHAPED in sort else None

        def step(size: int, apart: bool) -> Made:
            return step_for(spec, resized(batch, size), inputs, native, apart, params)

        sizes = self.derived[sort]
        made = (
            {} if 1 in sizes else {size: step(size, True) for size in sorted(sizes)}
        )  # with one row, nothing is split off
        rows = [one.rows for one in made.values() if isinstance(one, StepProgram)]
        first = rows[0] if rows else None
        if first is not None and all(map(first.same_as, rows)) and first.numbers * most <= self.room:
            self.rows[sort] = first
        else:
            made = {} if any(rows) else made
            made |= {size: step(size, False) for size in sorted(sizes - made.keys())}
        return {(sort, size): one for size, one in made.items()}

    def sizes(self, bench: Bench, job: Job, ready: Prepared) -> frozenset[int]:
        """Return the batch sizes worth a program: by all clients' rows, or by this job's if the task has custom rows or batches."""
        options = training_of(bench, job).options
        if self.tuned(bench, job):
            return frozenset()
        own = options.public is not None or options.solver.batch_size is not None
        return batch_sizes(ready.draw.batch_size, [ready.rows.n], ready.draw.merge) if own else self.usual

    def step_of(self, sort: str, own: bool, size: int) -> Made:
        """Return the step of a sort of job for a batch size; the tuned one unless the sort's programs are valid (``own``)."""
        return (self.steps.get((sort, size)) if own else None) or self.steps[sort, -1]

    def owns(self, sort: str, params: Tree, inputs: Inputs) -> bool:
        """Return whether the programs of its sort are valid for a job, whose start and survey may differ."""
        return all(one.takes(params, inputs) for one in self.programs(sort)[:1])

    def programs(self, sort: str) -> list[StepProgram]:
        """Return the programs of a sort of job."""
        return [one for (each, _), one in self.steps.items() if each == sort and isinstance(one, StepProgram)]

    def values(self, sort: str, inputs: Inputs, buffers: Tree) -> Values | None:
        """Return the values computed from the rows of jobs of a sort."""
        rows = self.rows.get(sort)
        return None if rows is None else rows.of(inputs, buffers)

    def notes(self) -> list[str]:
        """List how the step of each sort of job is computed, by batch size; rare sizes last."""
        latest = {(sort.partition(SHAPED)[0], size): made for (sort, size), made in self.steps.items()}
        found = sorted(latest.items(), key=lambda step: (step[0][0], step[0][1] < 0, step[0][1]))
        return [
            f"{sort}, {f'batches of {size}' if size >= 0 else 'other batches'}: {made.note}"
            for (sort, size), made in found
        ]

    def __call__(self, bench: Bench, job: Job) -> Result:
        """Do the local work of one client."""
        bench = bench.of(job)
        if question_of(bench, job) is not None:
            return answered(bench, job)
        self.warm(bench, job)
        ready = prepare(bench, job)
        if not ready.params:
            return result_of(bench, job, ready, ready.params, ready.buffers, 0, 0, 0.0)
        return result_of(bench, job, ready, *self.train(bench, job, ready))

    def train(self, bench: Bench, job: Job, ready: Prepared) -> tuple[Tree, Tree, int, int, float]:
        """Do all steps of a job: (params, buffers, steps, examples, sum of the losses over these)."""
        inputs, watch = inputs_of(ready), watching(bench, job, ready)
        sort = self.sort_of(bench, job)
        own = self.owns(sort, ready.params, inputs)
        buffers, steps, examples, loss_sum = ready.buffers, 0, 0, 0.0
        unread: list[tuple[Tensor, int]] = []  # losses with their numbers of rows; reading one waits for the device

        def read() -> None:
            nonlocal loss_sum
            for loss, rows in unread:
                loss_sum += float(loss) * rows
            unread.clear()

        params = local_copy(ready.params)
        memory = fresh_memory(bench.local.optimizer, params)
        bound: dict[int, Step] = {}
        bench.network.module.train()
        # once, not per batch: entering it costs as much as a small product
        with torch.inference_mode() if self.programs(sort) else nullcontext():
            for batch in job_batches(ready, self.values(sort, inputs, buffers) if own else None):
                size = batch.x.shape[0]
                step = bound.get(size)
                if step is None:
                    made = self.step_of(sort, own, size)
                    step = bound[size] = bind(made, params, memory, inputs, buffers)
                loss = step(*batch_arguments(batch))
                steps, examples = steps + 1, examples + size
                unread.append((loss, size))
                if watch is not None or len(unread) == UNREAD:
                    read()
                if watch is not None and watch.over(params, buffers, examples, loss_sum):
                    break
            read()
            if watch is not None:
                params, buffers = watch.kept(params, buffers)
        return params.map(lambda x: x.detach().contiguous()), buffers, steps, examples, loss_sum


def bind(made: Made, params: Tree, memory: optim.Memory, inputs: Inputs, buffers: Tree) -> Step:
    """Return the step of one client, callable inside and outside inference mode, since autograd refuses inference tensors."""
    if isinstance(made, StepProgram) or not torch.is_inference_mode_enabled():
        return made.bind(params, memory, inputs, buffers)
    with torch.inference_mode(mode=False):
        tuned = made.bind(params, memory, inputs, buffers)

    def step(*batch: Tensor) -> Tensor:
        with torch.inference_mode(mode=False):
            return tuned(*(x.clone() for x in batch))

    return step


def batch_sizes(batch: int, sizes: Iterable[int], merge: bool = False) -> frozenset[int]:
    """Return the batch sizes worth a program if parties with so many rows take batches of ``batch`` (0 = all their rows).

    ``merge`` as in `cut`.
    """
    counts: Counter[int] = Counter()
    for n in sizes:
        whole, rest = cut(n, batch, merge)
        counts[batch] += whole
        counts[rest] += 1
    counts.pop(0, None)
    total = sum(counts.values())
    return frozenset(size for size, steps in counts.items() if steps >= WORTH * total)


def spec_of(bench: Bench, job: Job, precision: str) -> StepSpec:
    """Return the step of a task, with its algorithm's own objective and direction."""
    task = training_of(bench, job)

    def loss(params: Tree, buffers: Tree, batch: Batch, inputs: Mapping[str, Any]) -> Tensor:
        batch = batch._replace(extra={**buffers, **batch.extra})
        return task.objective(bench.network, params, batch, inputs["message"], inputs["client"], inputs["facts"])

    def direction(grads: Tree, params: Tree, inputs: Mapping[str, Any]) -> Tree:
        assert task.direction is not None
        return task.direction(grads, params, inputs["message"], inputs["client"], inputs["facts"])

    module, local = bench.network.module, bench.local
    moved, form = direction if task.direction else None, gradient_of(bench.protection, job.word, task.objective, module)
    return StepSpec(module, loss, moved, local.optimizer, local.clip, precision, form)


def told_to(job: Job | Prepared) -> dict[str, Any]:
    """Return the parts of a message that objective and direction see."""
    return {name: value for name, value in job.message.items() if name != "buffers"}


def inputs_of(ready: Prepared) -> dict[str, Any]:
    """Return the constants of a client's local work. A weight decay of zero is left out."""
    decay = {"weight_decay": ready.weight_decay} if ready.weight_decay else {}
    return {"message": told_to(ready), "client": dict(ready.state), "facts": ready.facts, "lr": ready.lr, **decay}


def resized(batch: Batch, size: int) -> Batch:
    """Return a batch of another size, made of repeated rows: only its shapes matter."""
    index = torch.arange(size) % len(batch.x)
    weight = None if batch.weight is None else batch.weight[index]
    return Batch(batch.x[index], batch.y[index], weight, {name: mask[index] for name, mask in batch.extra.items()})

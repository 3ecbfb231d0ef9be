"""Small dense models: the work of several clients as one stack in this process, instead of one client after another."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice

from fedatlas.engine.device import placing
from fedatlas.engine.fast import FastRunner, inputs_of, resized, spec_of
from fedatlas.engine.job import (
    Bench,
    Job,
    Prepared,
    Result,
    job_batches,
    prepare,
    question_of,
    result_of,
    training_of,
)
from fedatlas.engine.loop import timed
from fedatlas.engine.stacked import StackedProgram, derive_stacked
from fedatlas.engine.step import NotTraceable
from fedatlas.engine.together import Member, train_together


class StackedExecutor:
    """An executor that runs jobs in stacks of ``width`` clients. Only the cohort decides which clients share a stack."""

    def __init__(self, bench: Bench, run_job: FastRunner, width: int) -> None:
        self.bench, self.run_job, self.width = bench, run_job, width
        self.programs: dict[str, dict[int, StackedProgram] | None] = {}

    def run(self, jobs: Iterable[Job]) -> Iterator[Result]:
        """Yield the results in the order of the jobs."""
        waiting = iter(jobs)
        while stack := list(islice(waiting, self.width)):
            yield from self.run_stack(stack)

    def close(self) -> None:
        """Do nothing: this executor holds no resources."""

    def run_stack(self, jobs: Sequence[Job]) -> Iterator[Result]:
        """Yield the results of one stack. Clients that cannot share one (other numbers, no rows, no steps) run one by one."""
        kinds = {job.kind for job in jobs}
        if len(kinds) > 1:  # models of several architectures: one stack each, results in the jobs' order
            results = {
                r.client: r for kind in sorted(kinds) for r in self.run_stack([j for j in jobs if j.kind == kind])
            }
            yield from (results[job.client] for job in jobs)
            return
        bench = self.bench.of(jobs[0])
        if question_of(bench, jobs[0]) is not None:
            yield from (timed(self.run_job, self.bench, job) for job in jobs)
            return
        started = time.perf_counter()
        self.run_job.warm(bench, jobs[0])
        first = prepare(bench, jobs[0])
        sort = self.run_job.sort_of(bench, jobs[0])
        programs = self.programs_for(sort, jobs[0], first)
        others = (prepare(self.bench.of(job), job) for job in jobs[1:])  # a malicious client has its own source of rows
        ready = [first, *others] if programs else [first]
        inputs = [inputs_of(one) for one in ready]
        if not programs or len(jobs) < 2 or not all(p.fits(inputs) for p in programs.values()):
            yield from (timed(self.run_job, self.bench, job) for job in jobs)
            return
        bench.network.module.train()
        members = [
            Member(
                one.params, one.buffers, given, iter(job_batches(one, self.run_job.values(sort, given, one.buffers)))
            )
            for one, given in zip(ready, inputs, strict=True)
        ]
        ends = train_together(programs, partial(self.run_job.step_of, sort, True), members)
        each = (time.perf_counter() - started) / len(jobs)
        for job, one, done in zip(jobs, ready, ends, strict=True):
            began = time.perf_counter()
            result = result_of(bench, job, one, *done)
            yield result._replace(seconds=each + time.perf_counter() - began)

    def programs_for(self, sort: str, job: Job, ready: Prepared) -> dict[int, StackedProgram] | None:
        """Return the stacked programs of a sort of job by batch size; None, or an empty mapping, if it cannot be stacked."""
        if training_of(self.bench.of(job), job).reshapes:
            return None
        if sort not in self.programs:
            self.programs[sort] = self.derived(sort, job, ready)
        return self.programs[sort]

    def derived(self, sort: str, job: Job, ready: Prepared) -> dict[int, StackedProgram] | None:
        batch, bench = self.run_job.examples.get(sort), self.bench.of(job)
        task = training_of(bench, job)
        if batch is None or task.options.patience is not None:
            return None  # clients that stop early, each at its own time, run one by one
        spec, inputs = spec_of(bench, job, self.run_job.precision), inputs_of(ready)
        sizes = self.run_job.derived[sort]
        try:
            with placing(bench.device):
                apart = sort in self.run_job.rows
                return {size: derive_stacked(spec, resized(batch, size), inputs, apart) for size in sizes}
        except NotTraceable:
            return None

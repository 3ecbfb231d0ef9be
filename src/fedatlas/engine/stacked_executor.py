"""Small dense models: the work of several clients as one stack in this process, instead of one client at a time."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice

import torch

from fedatlas.engine.device import placing
from fedatlas.engine.failing import guarded, quiet, rehearsed
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
from fedatlas.engine.stacked_training import Member, Trained, train_together
from fedatlas.engine.step import NotTraceable


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
        """Yield the results of one stack. Clients that cannot share it (other numbers, no rows, no steps) run one at a time."""
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
        try:
            stack = self.trained(bench, jobs)
        except Exception:
            if not quiet(self.bench, jobs[0]):
                raise
            stack = None  # one at a time, so that a client that fails changes nothing
        if stack is None:
            yield from (timed(self.run_job, self.bench, job) for job in jobs)
            return
        each = (time.perf_counter() - started) / len(jobs)
        for job, (one, done) in zip(jobs, stack, strict=True):
            began = time.perf_counter()
            result = guarded(partial(ended, one, done), self.bench, job)
            yield result._replace(seconds=each + time.perf_counter() - began)

    def trained(self, bench: Bench, jobs: Sequence[Job]) -> list[tuple[Prepared | Exception, Trained]] | None:
        """Return each prepared job and its trained result, from one stack; None if the jobs cannot share one."""
        lead = jobs[0]
        if quiet(self.bench, lead):  # programs must not depend on whether the first job fails
            lead = next(job for job in jobs if isinstance(prepared(self.bench, job), Prepared))
        self.run_job.warm(self.bench, lead)
        sort = self.run_job.sort_of(bench, lead)
        programs = self.programs_for(sort, lead)
        if not programs or len(jobs) < 2:
            return None
        # a malicious client has its own source of rows
        found = [prepared(self.bench, job) for job in jobs]
        good = next(one for one in found if isinstance(one, Prepared))
        ready = [
            one if isinstance(one, Prepared) else in_place(good, job) for one, job in zip(found, jobs, strict=True)
        ]
        inputs = [inputs_of(one) for one in ready]
        if not all(p.fits(inputs) for p in programs.values()):
            return None
        bench.network.module.train()
        members = [
            Member(
                one.params, one.buffers, given, iter(job_batches(one, self.run_job.values(sort, given, one.buffers)))
            )
            for one, given in zip(ready, inputs, strict=True)
        ]
        usual = good.draw.batch_size if good.draw.merge else 0  # merged batches are larger, and rare
        alone = partial(self.run_job.step_of, sort, True)
        return [*zip(found, train_together(programs, alone, members, usual), strict=True)]

    def programs_for(self, sort: str, job: Job) -> dict[int, StackedProgram] | None:
        """Return the stacked programs of a sort of job by batch size; None, or an empty mapping, if it cannot be stacked."""
        if training_of(self.bench.of(job), job).reshapes:
            return None
        if sort not in self.programs:
            self.programs[sort] = self.derived(sort, job)
        return self.programs[sort]

    def derived(self, sort: str, job: Job) -> dict[int, StackedProgram] | None:
        batch, bench = self.run_job.examples.get(sort), rehearsed(self.bench, job).of(job)
        task = training_of(bench, job)
        if batch is None or task.options.patience is not None:
            return None  # clients that stop early, each at a different time, run one by one
        spec, inputs = spec_of(bench, job, self.run_job.precision), inputs_of(prepare(bench, job))
        sizes = self.run_job.derived[sort]
        try:
            with placing(bench.device):
                apart = sort in self.run_job.rows
                return {size: derive_stacked(spec, resized(batch, size), inputs, apart) for size in sizes}
        except NotTraceable:
            return None


def prepared(bench: Bench, job: Job) -> Prepared | Exception:
    """Return a job made ready; if it fails and noise covers it, return the error."""
    try:
        return prepare(bench.of(job), job)
    except Exception as error:
        if not quiet(bench, job):
            raise
        return error


def in_place(good: Prepared, job: Job) -> Prepared:
    """Return work on the same number of rows as a job that cannot be prepared, so that the other clients' bits do not change."""
    return good._replace(rows=good.rows.take(torch.arange(int(job.facts.n_k)) % good.rows.n))


def ended(ready: Prepared | Exception, done: Trained, bench: Bench, job: Job) -> Result:
    """Return the result of a job that was prepared and trained."""
    if isinstance(ready, Exception):
        raise ready
    return result_of(bench.of(job), job, ready, *done)

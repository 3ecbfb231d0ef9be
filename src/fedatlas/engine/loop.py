"""The reference: one client after another, with plain autograd. Every other engine is compared with this file."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from torch import Tensor

from fedatlas.algorithm import Batch
from fedatlas.engine import optim
from fedatlas.engine.device import placing
from fedatlas.engine.failing import guarded
from fedatlas.engine.gradient import with_grad
from fedatlas.engine.job import (
    Bench,
    Job,
    Result,
    answered,
    job_batches,
    prepare,
    question_of,
    result_of,
    training_of,
)
from fedatlas.engine.model import detached
from fedatlas.engine.patience import watching
from fedatlas.engine.private_steps import gradient_of
from fedatlas.tree import Tree


def run_job(bench: Bench, job: Job) -> Result:
    """Do the local work of one client: every step is gradient + decay -> direction -> clip -> optimiser."""
    bench = bench.of(job)
    if question_of(bench, job) is not None:
        return answered(bench, job)
    task, ready = training_of(bench, job), prepare(bench, job)
    watch = watching(bench, job, ready)
    params, buffers = ready.params, ready.buffers
    memory = optim.start(bench.local.optimizer, params)
    bench.network.module.train()

    gradient = gradient_of(bench.protection, job.word, task.objective, bench.network.module)

    def objective(weights: Tree, batch: Batch) -> Tensor:
        batch = batch._replace(extra={**buffers, **batch.extra})
        return task.objective(bench.network, weights, batch, ready.message, ready.state, ready.facts)

    steps, examples, loss_sum = 0, 0, 0.0
    for batch in job_batches(ready):
        with placing(bench.device):
            loss, grads = gradient(objective, with_grad(params), batch)
            if ready.weight_decay:
                grads = grads + ready.weight_decay * params
            if task.direction is not None:
                grads = task.direction(grads, params, ready.message, ready.state, ready.facts)
        grads = optim.clip(grads, bench.local.clip)
        params, memory = optim.step(bench.local.optimizer, params, grads, memory, ready.lr)
        steps, examples, loss_sum = steps + 1, examples + len(batch.x), loss_sum + float(loss.detach()) * len(batch.x)
        if watch is not None and watch.over(params, buffers, examples, loss_sum):
            break
    if watch is not None:
        params, buffers = watch.kept(params, buffers)
    return result_of(bench, job, ready, detached(params), buffers, steps, examples, loss_sum)


def timed(run_job: Callable[[Bench, Job], Result], bench: Bench, job: Job) -> Result:
    """Return a job's result with the seconds that it took. A job that fails under noise changes nothing."""
    started = time.perf_counter()
    return guarded(run_job, bench, job)._replace(seconds=time.perf_counter() - started)


class SerialExecutor:
    """An executor that runs jobs one after another in this process."""

    def __init__(self, bench: Bench, run_job: Callable[[Bench, Job], Result] = run_job) -> None:
        self.bench, self.run_job = bench, run_job

    def run(self, jobs: Iterable[Job]) -> Iterator[Result]:
        """Yield the results in the order of the jobs."""
        for job in jobs:
            yield timed(self.run_job, self.bench, job)

    def close(self) -> None:
        """Do nothing: this executor holds no resources."""

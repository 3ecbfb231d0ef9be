"""A client whose work fails under noise: its change is zero, and otherwise it does and sends the same as every client.

Differential privacy promises that those who see the models hardly see whether one client took part. A run that ended with the client's
name, or a client that sent nothing, would reveal it. So a change or loss that is not finite, and any error in training, become a change
of zero before clip and noise. Only the simulation's own view records the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from fedatlas.algorithm import Task, Update, Work
from fedatlas.data.batches import Rows
from fedatlas.engine.job import Bench, Job, Result, protected, told_buffers, training_of
from fedatlas.errors import PrivacyError, ProtocolError, first_line
from fedatlas.privacy.protection import covered
from fedatlas.rng import torch_stream
from fedatlas.transforms.change import BUFFERS
from fedatlas.tree import Tree


def guarded(run_job: Callable[[Bench, Job], Result], bench: Bench, job: Job) -> Result:
    """Return the result of a job. If it fails and noise covers it, return a change of zero."""
    try:
        return run_job(bench, job)
    except (PrivacyError, ProtocolError):  # from sealing: due to numbers with noise, or the server's words
        raise
    except Exception as error:
        if not quiet(bench, job):
            raise
        return unchanged(bench.of(job), job, f"{type(error).__name__}: {first_line(error)}")


def quiet(bench: Bench, job: Job) -> bool:
    """Whether a job is a training whose failure nobody must notice."""
    return covered(bench.protection, job.word) and isinstance(bench.tasks(job.client)[job.what], Task)


def unchanged(bench: Bench, job: Job, why: str) -> Result:
    """Return the result of a client that changes nothing: the usual parts with their noise. ``bench``: from `Bench.of`."""
    task, message, n = training_of(bench, job), job.message, int(job.facts.n_k)
    model, buffers = Tree(message["model"]), told_buffers(bench, message)
    update: Update = {"model": model, **dict.fromkeys(task.sealing.tracked, model.zeros())}
    if buffers:
        update = {**update, BUFFERS: buffers}
    done, sealing, bare = protected(bench, job, task, update, n)
    work, state = Work(n, 0, 0, 0.0, math.nan), job.state
    if task.settle is not None:
        state = task.settle(done.seen, work, message, state, job.facts)
    sent = Result(job.client, done.sent, state, work, memory=done.memory, sealing=sealing, bare=bare)
    return sent._replace(session=done.session, failed=why)


def rehearsed(bench: Bench, job: Job) -> Bench:
    """Return the bench on which steps are derived and checked. If noise covers a job, its rows reveal nothing of the client's rows."""
    if not quiet(bench, job):
        return bench
    rows, drift = bench.rows, bench.drift
    now = drift and (lambda number: lambda party: standing_in(drift(number)(party)))
    return bench._replace(rows=lambda party: standing_in(rows(party)), drift=now)


def standing_in(rows: Rows) -> Rows:
    """Return rows with the same shapes and labels but with drawn numbers."""
    stream = torch_stream(0, "stand-in")

    def drawn(x: Tensor) -> Tensor:
        made = torch.rand(x.shape, generator=stream, dtype=torch.float64)
        return made.to(x) if x.is_floating_point() else x

    weight = None if rows.weight is None else torch.ones_like(rows.weight)
    return rows._replace(x=drawn(rows.x), y=drawn(rows.y), weight=weight)


def warmed(warm: Callable[[Bench, Job], bool], bench: Bench, job: Job) -> bool:
    """Return whether a job gave something to share before its work (`engine.fast`). A job that fails under noise gives nothing."""
    try:
        return warm(bench, job)
    except Exception:
        if not quiet(bench, job):
            raise
        return False

"""One single-threaded worker process per core. Each runs whole clients, the longest first.

Workers are forked, so they have the data, the model and a notebook's classes without a ``__main__`` guard or pickles.
Messages, states and results are exchanged as the codec's bytes in anonymous shared memory made before the fork, which
leaves nothing behind if a process is killed; only small control messages use pipes. Each client's work is done by one
thread and depends only on its job, and results are yielded in the order of the jobs, so the number of workers changes no
bit.
"""

from __future__ import annotations

import gc
import mmap
import multiprocessing
import os
import threading
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple, cast

import torch

from fedatlas import errors
from fedatlas.algorithm import Work
from fedatlas.data.batches import examples_of
from fedatlas.engine.failing import quiet, warmed
from fedatlas.engine.job import Bench, Job, Result
from fedatlas.engine.loop import timed
from fedatlas.errors import ConfigError, FedatlasError, ProtocolError, first_line, named, own_frame, raised
from fedatlas.wire import codec

RunJob = Callable[[Bench, Job], Result]
"""A function that does a job. If it derives programs, it has `warm(bench, job)`: True if workers must share something new."""

ROOM = 1 << 16  # bytes besides the tensors: headers, plain numbers


class Worker(NamedTuple):
    """A forked process and the parent's end of its pipe."""

    process: BaseProcess
    pipe: Connection


class Arena(NamedTuple):
    """Shared memory: the parent's messages to the workers of a chunk, and one slot per client's answer."""

    told: mmap.mmap
    answers: mmap.mmap
    slot: int  # bytes per slot


def can_fork() -> bool:
    """Return whether workers can be forked here.

    Once autograd has used a GPU, it keeps threads for it and refuses to work in a process forked afterwards.
    """
    return "fork" in multiprocessing.get_all_start_methods() and torch.accelerator.device_count() == 0


class PoolExecutor:
    """An executor that runs jobs on forked workers, and holds the updates of ``chunk`` clients at once."""

    def __init__(self, bench: Bench, run_job: RunJob, workers: int, chunk: int) -> None:
        self.bench, self.run_job, self.count, self.chunk = bench, run_job, workers, max(chunk, 1)
        self.workers: list[Worker] = []
        self.arena: Arena | None = None

    def run(self, jobs: Iterable[Job]) -> Iterator[Result]:
        """Yield the results in the order of the jobs, chunk by chunk."""
        waiting = iter(jobs)
        while chunk := list(islice(waiting, self.chunk)):
            yield from self._run_chunk(chunk)

    def close(self) -> None:
        """End the workers."""
        for worker in self.workers:
            worker.pipe.close()
        for worker in self.workers:
            worker.process.join(timeout=1)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        self.workers = []

    def _run_chunk(self, jobs: list[Job]) -> Iterator[Result]:
        warm = getattr(self.run_job, "warm", None)
        if warm is not None and sum(warmed(warm, self.bench, job) for job in jobs):
            self.close()
        layout = lay_out(jobs)
        room = max(length for _, length in layout.messages) + max(length for _, length in layout.states) + ROOM
        arena = self._ready(layout.total, room, len(jobs))
        for value, (at, length) in layout.values:
            codec.encode_into(value, memoryview(arena.told)[at : at + length])
        answers = self._deal(jobs, layout)
        for slot in range(len(jobs)):
            yield self._take(slot, answers[slot])

    def _deal(self, jobs: list[Job], layout: Layout) -> dict[int, int | bytes]:
        """Hand out the jobs, longest first; return by slot the answer's length, or the answer if it did not fit."""
        size, merge = self.bench.local.batch_size, self.bench.local.merge
        work = [examples_of(job.budget, int(job.facts.n_k), size, merge=merge) for job in jobs]
        queue = deque(sorted(range(len(jobs)), key=lambda slot: -work[slot]))
        free, busy, answers = list(self.workers), dict[Connection, tuple[Worker, int]](), dict[int, int | bytes]()
        while queue or busy:
            while queue and free:
                worker, slot = free.pop(), queue.popleft()
                self._send(worker, jobs[slot], (slot, layout.messages[slot], layout.states[slot]))
                busy[worker.pipe] = (worker, slot)
            for pipe in cast(list[Connection], wait(list(busy))):
                worker, slot = busy.pop(pipe)
                answers[slot] = self._hear(worker, jobs[slot])
                free.append(worker)
        return answers

    def _send(self, worker: Worker, job: Job, places: tuple[Any, ...]) -> None:
        try:
            worker.pipe.send((*places, bare(job)))
        except OSError:
            raise self._dead(worker, job) from None

    def _hear(self, worker: Worker, job: Job) -> int | bytes:
        try:
            kind, value = worker.pipe.recv()
        except (EOFError, OSError):
            raise self._dead(worker, job) from None
        if kind == "error":
            raise failed(value, job.client)
        out: int | bytes = value
        return out

    def _dead(self, worker: Worker, job: Job) -> ProtocolError:
        worker.process.join(timeout=1)
        code = worker.process.exitcode
        why = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        memory = " (killed, perhaps for lack of memory; try fewer engine.workers)" if code == -9 else ""
        whose = "a worker" if quiet(self.bench, job) else f"the worker that trained client {job.client}"
        return ProtocolError(f"{whose} died with {why}{memory}; continue the run with --resume.")

    def _take(self, slot: int, answer: int | bytes) -> Result:
        """Return the result in a slot. Its update is a view that lives until the next chunk; its state is a copy."""
        assert self.arena is not None
        if isinstance(answer, int):
            at = slot * self.arena.slot
            value = codec.decode(memoryview(self.arena.answers)[at : at + answer], own=True)
        else:
            value = codec.decode(answer, own=True)
        kept = {name: value[name] for name in ("state", "memory", "session")}
        kept = codec.decode(codec.encode(kept), own=True)
        return Result(**{**value, **kept, "work": Work(*value["work"])})

    def _ready(self, told: int, slot: int, slots: int) -> Arena:
        """Make sure that workers and an arena with room for this chunk exist; replace them if there is too little."""
        arena = self.arena
        if arena is not None and self.workers:
            if len(arena.told) >= told and arena.slot >= slot and len(arena.answers) >= slots * arena.slot:
                return arena
        self.close()
        slot = -(-slot // mmap.PAGESIZE) * mmap.PAGESIZE
        arena = self.arena = None  # released before the next is requested
        self.arena = arena_of(told + told // 4 + ROOM, slot, max(slots, min(16, self.chunk)))
        self.workers = []
        others = gc.get_freeze_count()  # frozen by the importing program: kept so
        gc.collect()
        gc.freeze()  # otherwise garbage collection would copy pages in every worker
        try:
            for _ in range(self.count):
                self.workers.append(self._fork(self.arena))
        finally:
            if not others:
                gc.unfreeze()
        return self.arena

    def _fork(self, arena: Arena) -> Worker:
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        inherited = [worker.pipe for worker in self.workers] + [ours]
        arguments = (self.bench, self.run_job, theirs, arena, inherited, os.getpid())
        process = context.Process(target=_work, args=arguments, daemon=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of threads; workers use none
            process.start()
        theirs.close()
        return Worker(process, ours)


def arena_of(told: int, slot: int, slots: int) -> Arena:
    """Return shared memory of so many bytes and slots; ConfigError if it cannot be allocated."""
    try:
        return Arena(mmap.mmap(-1, told), mmap.mmap(-1, slot * slots), slot)
    except (OSError, OverflowError) as error:
        needed = (told + slot * slots) / 2**20
        raise ConfigError(
            f"cannot allocate {needed:,.0f} MB for the messages and answers of {slots} clients ({first_line(error)}): "
            "lower engine.chunk, or set engine.workers = 1."
        ) from error


class Layout(NamedTuple):
    """Positions of each job's message and state in the shared memory; equal messages are stored once."""

    values: list[tuple[Any, tuple[int, int]]]  # values to be written, with place and length
    messages: list[tuple[int, int]]
    states: list[tuple[int, int]]
    total: int


def kept_by(job: Job) -> dict[str, Any]:
    """Return what the client kept: its state, the memory of the transform that will seal its update, a protocol's session."""
    memory = {} if job.memory is None else {"memory": dict(job.memory)}
    session = {} if job.session is None else {"session": job.session}
    return {"state": dict(job.state), **memory, **session, **({} if job.word is None else {"word": dict(job.word)})}


def bare(job: Job) -> Job:
    """Return a job without its message and what the client kept, which travel as the codec's bytes."""
    return job._replace(message={}, state={}, memory=None, session=None, word=None)


def lay_out(jobs: list[Job]) -> Layout:
    """Give a place to every message and state; those made of the same objects under the same names share one."""
    layout = Layout([], [], [], 0)
    known: dict[tuple[tuple[str, int], ...], tuple[int, int]] = {}
    at = 0
    for job in jobs:
        for value, places in ((dict(job.message), layout.messages), (kept_by(job), layout.states)):
            key = tuple((name, id(x)) for name, x in value.items())
            if key not in known:
                known[key] = (at, codec.size(value))
                layout.values.append((value, known[key]))
                at += -(-known[key][1] // codec.ALIGN) * codec.ALIGN
            places.append(known[key])
    return layout._replace(total=at)


def _work(
    bench: Bench, run_job: RunJob, pipe: Connection, arena: Arena, inherited: list[Connection], parent: int
) -> None:
    """Run a worker: one job after another until the pipe is closed or the parent has ended."""
    import signal

    for other in inherited:
        other.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    torch.set_num_threads(1)
    told = memoryview(arena.told)
    while True:
        try:
            slot, message, state, job = pipe.recv()
        except (EOFError, OSError):
            os._exit(0)
        try:
            said, had = (codec.decode(told[at : at + length], own=True) for at, length in (message, state))
            result = timed(run_job, bench, job._replace(message=said, **had))
            answer: tuple[str, Any] = ("done", _answer(result, arena, slot))
        except Exception as error:  # noqa: BLE001  # for any error, the parent names the client and raises it
            answer = ("error", failure_of(error))
        try:
            pipe.send(answer)
        except OSError:  # the run was stopped: the pipe has no reader
            os._exit(0)


def plain_of(result: Result) -> dict[str, Any]:
    """Return a result as values that the codec writes."""
    plain = result._replace(update=dict(result.update), state=dict(result.state))
    return {**plain._asdict(), "work": list(result.work)}


Failure = tuple[str, str, str]
"""An error that leaves its process: name of its type, message, and the words for one that is not fedatlas' own."""


def failure_of(error: Exception) -> Failure:
    """Return an error as texts."""
    return type(error).__name__, str(error), _told(error)


def failed(failure: Failure, client: int) -> FedatlasError:
    """Return the error that another process met in a client's work."""
    name, message, told = failure
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, FedatlasError):
        return kind(message)
    return ProtocolError(f"the work of client {client} failed with {told}")


def _told(error: Exception) -> str:
    """Return one sentence with the line if the error was raised by code of the user's own, else the whole traceback."""
    return f"{raised(error)}." if own_frame(error) else f"{named(error)}\n{traceback.format_exc()}"


def _answer(result: Result, arena: Arena, slot: int) -> int | bytes:
    """Write the result into its slot and return its length, or return it whole if it does not fit."""
    value = plain_of(result)
    if codec.size(value) > arena.slot:
        return bytes(codec.encode(value))
    at = slot * arena.slot
    return codec.encode_into(value, memoryview(arena.answers)[at : at + arena.slot])


def _watch(parent: int) -> None:
    """End this worker within half a second of its parent's end, even in the middle of a client."""
    while os.getppid() == parent:
        time.sleep(0.4)
    os._exit(1)

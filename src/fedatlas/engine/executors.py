"""The plan of a run: engine, number of workers, precision. It is resolved before round 1, recorded, and reused by resume."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch

from fedatlas.engine.device import CPU, find_device, free_memory
from fedatlas.engine.fast import FastRunner, Worth
from fedatlas.engine.job import Bench, Executor
from fedatlas.engine.loop import SerialExecutor
from fedatlas.engine.memory import keep_freed_memory
from fedatlas.engine.pool import PoolExecutor
from fedatlas.engine.resident import ResidentRows
from fedatlas.engine.stacked_executor import StackedExecutor

ROOM = 1 << 30  # bytes that clients' rows may take on a device that does not say what is free; else a quarter of that


class Plan(NamedTuple):
    """Engine, workers and precision of a run.

    Bits are equal within a plan, for any number of ``workers``; across plans results agree within tolerance.
    """

    engine: str  # "loop" | "fast"
    step: str  # "loop" | "program" | "stacked" | "tuned" | "native"
    workers: int  # processes that train, one thread each; 1 = only this one
    chunk: int  # clients whose updates are held at once
    threads: int  # threads of the evaluation
    precision: str
    device: str
    reason: str  # why this plan was chosen

    def plain(self) -> dict[str, Any]:
        """Return the plan as plain values, for the record."""
        return dict(self._asdict())


def restore(plain: Mapping[str, Any]) -> Plan:
    """Return the plan stored in a checkpoint."""
    return Plan(**plain)


def steps_of(executor: Executor) -> list[str]:
    """List how each step that the executor derived is computed; empty for the loop."""
    return executor.run_job.notes() if isinstance(executor.run_job, FastRunner) else []


def make_executor(plan: Plan, bench: Bench, sizes: Iterable[int], worth: Worth | None = None) -> Executor:
    """Return the executor of a plan. ``sizes``: the clients' numbers of rows; ``worth``: given instead of deriving it from them."""
    torch.set_num_threads(1)
    device = find_device(plan.device)
    bench = bench.on(device)
    if device != CPU:
        free = free_memory(plan.device)
        bench = bench._replace(rows=ResidentRows(bench.rows, device, ROOM if free is None else free // 4))
    if plan.engine == "loop":
        return SerialExecutor(bench)
    keep_freed_memory()
    sizes = list(sizes)
    together = max(min(plan.chunk, len(sizes)), 1) if plan.step == "stacked" else 1
    runner = FastRunner(bench, sizes, plan.step, plan.precision, together, worth)
    if plan.step == "stacked":
        return StackedExecutor(bench, runner, plan.chunk)
    if plan.workers > 1:
        return PoolExecutor(bench, runner, plan.workers, plan.chunk)
    return SerialExecutor(bench, runner)

"""The plan of a run: which engine, how many workers and threads, which precision. Resolved before round 1, recorded, reused by resume."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from fedatlas.engine.host import Executor
from fedatlas.engine.job import Bench
from fedatlas.engine.loop import LoopExecutor


class Plan(NamedTuple):
    """Bits are equal within a plan, whatever ``workers``; across plans results agree within tolerance."""

    engine: str  # "loop" | "fast"
    step: str  # "loop" | "program" | "stacked" | "tuned"
    workers: int  # processes that train; 1 = this one
    threads: int  # per worker
    chunk: int  # clients whose updates are held at once
    precision: str
    device: str
    reason: str  # why this step was chosen

    def plain(self) -> dict[str, Any]:
        """For the record."""
        return dict(self._asdict())


def restore(plain: Mapping[str, Any]) -> Plan:
    """The plan of a checkpoint."""
    return Plan(**plain)


def make_executor(plan: Plan, bench: Bench) -> Executor:
    """What runs the jobs of a plan."""
    torch.set_num_threads(plan.threads)
    return LoopExecutor(bench)

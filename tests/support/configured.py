"""For tests that begin with a configuration: it is checked, then set up, shared out or run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from fedatlas.config import ExperimentConfig
from fedatlas.course.progress import Run
from fedatlas.runs import ensure as ensuring
from fedatlas.runs import loop
from fedatlas.runs.finish import More
from fedatlas.setup import assembly
from fedatlas.setup.assembly import Holdings, Setup
from fedatlas.setup.refusals import checked
from fedatlas.summaries import Learner


def set_up(
    config: ExperimentConfig, seed: int = 1, module: nn.Module | None = None, learner: Learner | None = None
) -> Setup:
    return assembly.set_up(checked(config, module).with_seed(seed), learner)


def share_out(config: ExperimentConfig, seed: int = 1) -> Holdings:
    return assembly.share_out(checked(config).with_seed(seed))


def run_one(config: ExperimentConfig, folder: Path, **how: Any) -> Run:
    return loop.run_one(checked(config), folder, **how)


def ensure(
    config: ExperimentConfig, folder: Path, module: nn.Module | None = None, report: bool = True, **how: Any
) -> Run:
    return ensuring.ensure(checked(config, module), folder, more=More(report=report), **how)


def finished(config: ExperimentConfig, folder: Path) -> Run | None:
    return ensuring.finished(checked(config), folder)


def holds(folder: Path, config: ExperimentConfig) -> bool:
    return ensuring.holds(folder, checked(config))

"""The progress of a run, its result, and the criterion to stop it early."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from fedatlas.config import ExperimentConfig
from fedatlas.course.course import Course
from fedatlas.metrics.metric import METRICS
from fedatlas.record.fields import RoundRow, RunSummary


class Progress(Protocol):
    """A receiver of progress events, which shows them to people."""

    def started(self, course: Course) -> None: ...
    def said(self, notice: str) -> None: ...
    def row(self, row: RoundRow) -> None: ...
    def finished(self, folder: Path, summary: RunSummary) -> None: ...
    def beside(self, name: str) -> AbstractContextManager[Progress]: ...


class Silent:
    """Progress that shows nothing and remembers only the run's folder."""

    folder: Path | None = None

    def started(self, course: Course) -> None:
        """Remember the folder."""
        self.folder = course.keeper.folder.path

    def said(self, notice: str) -> None:
        """Do nothing."""

    def row(self, row: RoundRow) -> None:
        """Do nothing."""

    def finished(self, folder: Path, summary: RunSummary) -> None:
        """Do nothing."""

    def beside(self, name: str) -> AbstractContextManager[Progress]:  # noqa: ARG002
        """Use the same silent progress for a baseline."""
        return contextlib.nullcontext(self)

    def close(self) -> None:
        """Do nothing."""


NOBODY: Progress = Silent()


class Run(NamedTuple):
    """A finished run."""

    path: Path
    summary: RunSummary

    @property
    def answer(self) -> str:
        """The answer: should we federate, with which scheme, at which cost, for whom, how sure; "" if a run has no answer."""
        return str(self.summary.get("answer", {}).get("text", ""))


def stopped(config: ExperimentConfig, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return why ``[stop]`` ends the run (a level reached, or no better figure for ``patience`` rounds); else "".

    The figure is ``evaluation.metric`` if the experiment names it, else the headline: accuracy, or the errors of numbers.
    """
    if config.stop is None or not rows:
        return ""
    reached = [r["accuracy"] for r in rows if r.get("accuracy") is not None]
    if config.stop.accuracy is not None and reached and reached[-1] >= config.stop.accuracy:
        return f"accuracy {reached[-1]:.4f} has reached {config.stop.accuracy:g}"
    key = config.evaluation.metric or ("rmse" if "rmse" in rows[0] else "accuracy")
    sign = -1.0 if METRICS[key].lower_is_better else 1.0
    seen = [(r["round"], sign * r[key]) for r in rows if r.get(key) is not None]
    if config.stop.patience is None or not seen:
        return ""
    best_round, _ = max(seen, key=lambda pair: (pair[1], -pair[0]))
    return f"no better {key} since round {best_round}" if seen[-1][0] - best_round >= config.stop.patience else ""

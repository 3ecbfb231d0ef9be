"""The course of a run: one interface for clients that hold rows (`rounds`) and parties that hold columns (`columns`).

`runs.loop` drives a course round by round; `runs.finish` ends it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from fedatlas.config import ExperimentConfig
from fedatlas.course.guard import CommitGuard
from fedatlas.course.keeper import Keeper
from fedatlas.record.checkpoint import Restored, RunState
from fedatlas.record.fields import RoundRow, RunSummary


class Course(Protocol):
    """A run between two rounds, and the methods that run the next one.

    A round that fails leaves both sides as they were before it.
    """

    keeper: Keeper
    restored: Restored | None  # the checkpoint to resume from; None for a new run
    state: RunState  # server's state, and how many rounds have landed

    @property
    def guard(self) -> CommitGuard | None:
        """The judge of the rounds' models, if the run has one."""

    @property
    def config(self) -> ExperimentConfig: ...
    @property
    def word(self) -> str:
        """Word for the result of a round, used in sentences."""

    @property
    def number(self) -> int:
        """Number of rounds that have landed."""

    @property
    def notices(self) -> Sequence[str]:
        """Notices for the user before the run starts."""

    @property
    def lines(self) -> Sequence[str]:
        """Lines that describe the run and how it is carried out."""

    def resume(self, restored: Restored) -> None:
        """Resume from a checkpoint. CheckpointError if the data or rows differ from those that the run began with."""

    def begin(self) -> RoundRow:
        """Run round 0, which precedes training, and return its row."""

    def step(self) -> RoundRow:
        """Run one round and return its row."""

    def land(self, row: RoundRow) -> None:
        """Make a round final: at the parties, in metrics.jsonl and, when one is due, in a checkpoint."""

    def save(self) -> None:
        """Write a checkpoint of this round, unless there is one."""

    def noticed(self) -> list[str]:
        """Return the notices since the last call."""

    def figures(self, rows: Sequence[RoundRow], diverged: str) -> RunSummary:
        """Return the run's part of summary.json; ``diverged`` is the reason if it diverged."""

    def models(self) -> Mapping[str, Any]:
        """Map files to their contents: the models of a run whose figures were taken."""

    def close(self) -> None:
        """Release workers and scratch files."""

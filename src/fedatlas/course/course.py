"""The course of a run: one protocol for clients that hold rows (`rounds`) and for parties that hold columns (`columns`).

`runs.loop` drives a course round by round, `runs.finish` ends it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from fedatlas.config import ExperimentConfig
from fedatlas.course.keeper import Keeper
from fedatlas.record.checkpoint import Restored, RunState
from fedatlas.record.fields import RoundRow, RunSummary


class Course(Protocol):
    """A run between two rounds, and what its next round does.

    A round that ends in an error leaves everything as it was before it, on both sides.
    """

    keeper: Keeper
    restored: Restored | None  # the checkpoint that it goes on from; None for a new run
    state: RunState  # server's state, and how many rounds have landed

    @property
    def config(self) -> ExperimentConfig: ...
    @property
    def word(self) -> str:
        """What a round makes, in a sentence."""

    @property
    def number(self) -> int:
        """Rounds that have landed."""

    @property
    def notices(self) -> Sequence[str]:
        """Sentences for the user, before anything is done."""

    @property
    def lines(self) -> Sequence[str]:
        """The run in a sentence, and how it is done."""

    def resume(self, restored: Restored) -> None:
        """Go on from a checkpoint. CheckpointError for other data or rows than it began with."""

    def begin(self) -> RoundRow:
        """Round 0, what comes before training, and its row."""

    def step(self) -> RoundRow:
        """One round, and its row."""

    def land(self, row: RoundRow) -> None:
        """Make a round final: at the parties, in metrics.jsonl, and where it is due in a checkpoint."""

    def save(self) -> None:
        """Write a checkpoint of this round, unless there is one."""

    def noticed(self) -> list[str]:
        """Sentences for the user since the last call."""

    def figures(self, rows: Sequence[RoundRow], diverged: str) -> RunSummary:
        """What summary.json says of the run; ``diverged``: why it did, of one that did."""

    def models(self) -> Mapping[str, Any]:
        """file -> what is in it: the models of a run whose figures were taken."""

    def close(self) -> None:
        """Release workers and scratch files."""

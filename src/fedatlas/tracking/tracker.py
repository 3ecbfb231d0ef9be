"""What a tool for tracking has to do, as a record: begin a run, or go on with one, and hear it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from fedatlas.config.tracking import TrackingConfig

Ended = Literal["finished", "failed", "stopped"]


class TrackedRun(Protocol):
    """A run at a tool. Every method may raise whatever the tool raises."""

    id: str  # by which the same run is continued

    def parameters(self, values: Mapping[str, str]) -> None: ...
    def figures(self, step: int, values: Mapping[str, float]) -> None: ...
    def artefact(self, file: Path) -> None: ...
    def end(self, how: Ended) -> None: ...


class Beginning(NamedTuple):
    """What a tool has to know to begin a run."""

    how: TrackingConfig
    path: Path  # the run's folder
    name: str
    several: bool  # whether it stands for several seeds, which follow as runs of their own
    parent: str = ""  # id of the run of all seeds
    before: str = ""  # id of the run to go on with
    told: int = -1  # the last round that it has heard


class Tracker(NamedTuple):
    """A tool for tracking."""

    name: str
    begin: Callable[[Beginning], TrackedRun]

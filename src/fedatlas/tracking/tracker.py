"""The interface of a tracking tool, as a record: begin a run or continue one, and take its figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from fedatlas.config.tracking import TrackingConfig

Ended = Literal["finished", "failed", "stopped"]


class TrackedRun(Protocol):
    """A run at a tool. Every method may raise any error of the tool."""

    id: str  # with which the same run is continued

    def parameters(self, values: Mapping[str, str]) -> None: ...
    def figures(self, step: int, values: Mapping[str, float]) -> None: ...
    def artefact(self, file: Path) -> None: ...
    def end(self, how: Ended) -> None: ...


class Beginning(NamedTuple):
    """Facts that a tool needs to begin a run."""

    how: TrackingConfig
    path: Path  # the run's folder
    name: str
    several: bool  # whether it covers several seeds, which follow as separate runs
    parent: str = ""  # id of the run of all seeds
    before: str = ""  # id of the run to continue
    told: int = -1  # the last round sent to it


class Tracker(NamedTuple):
    """A tool for tracking."""

    name: str
    begin: Callable[[Beginning], TrackedRun]

"""Progress that also informs a tracking tool. A tool that fails gets nothing more, with one notice; the run goes on."""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from fedatlas.config import ExperimentConfig
from fedatlas.config.tracking import TrackingConfig
from fedatlas.course.course import Course
from fedatlas.course.progress import Progress
from fedatlas.errors import first_line
from fedatlas.files import write_json, write_text
from fedatlas.record.fields import RoundRow, RunSummary
from fedatlas.record.run_folder import SUMMARY, RunFolder
from fedatlas.tracking.told import of_end, of_round, parameters, shows_rows, summary_of
from fedatlas.tracking.tracker import Beginning, Ended, TrackedRun, Tracker

STATE = "tracking.json"  # in a run's folder: the tool, its id of the run, and the last round sent to it
TRACKERS = {"mlflow": "by_mlflow.MLFLOW", "tensorboard": "by_tensorboard.TENSORBOARD", "wandb": "by_wandb.WANDB"}


def tracker(name: str) -> Tracker:
    """Return the record of a tool."""
    module, _, record = TRACKERS[name].partition(".")
    found: Tracker = getattr(import_module(f"fedatlas.tracking.{module}"), record)
    return found


@contextmanager
def tracked(config: ExperimentConfig, path: Path, progress: Progress) -> Iterator[Progress]:
    """Yield progress that also informs the tool of ``[tracking]`` about the run in ``path``; the same progress without it."""
    if config.tracking is None:
        yield progress
        return
    follower = Follower(config, config.tracking, path, progress)
    try:
        yield follower
    except BaseException as error:
        follower.end("failed" if isinstance(error, Exception) else "stopped")
        raise
    follower.end("finished")


class Follower:
    """Progress of one run, or of all its seeds, that a tool follows too."""

    def __init__(self, config: ExperimentConfig, how: TrackingConfig, path: Path, inner: Progress) -> None:
        self.config, self.how, self.path, self.inner = config, how, path, inner
        self.run: TrackedRun | None = None
        self.told = -1
        self.own = False  # whether the incoming rows are this run's, not those of one of its seeds
        self.lost = False  # whether the tool has failed

    def started(self, course: Course) -> None:
        """Begin at the tool, or continue the same run there, and send the rounds that it missed."""
        self.inner.started(course)  # first that of all seeds
        self.own = course.keeper.folder.path == self.path
        if self.run is None:
            self._guarded(self._begin)
        if self.own:
            for row in RunFolder(self.path).rows():
                self._tell(row)

    def said(self, notice: str) -> None:
        """Pass a notice on. Tools get no notices, because some name columns and clients."""
        self.inner.said(notice)

    def row(self, row: RoundRow) -> None:
        """Pass a row on, and send its figures."""
        self.inner.row(row)
        self._tell(row)

    def beside(self, name: str) -> AbstractContextManager[Progress]:
        """Leave baselines to the progress that is shown."""
        return self.inner.beside(name)

    def finished(self, folder: Path, summary: RunSummary) -> None:
        """Send the final figures, the summary and the page."""
        if folder == self.path:
            self._guarded(lambda: self._hand_over(summary))
        self.inner.finished(folder, summary)

    def end(self, how: Ended) -> None:
        """End the run at the tool."""
        if self.run is not None:
            self._guarded(lambda: self._ended(how))

    def _begin(self) -> None:
        state, above = read_state(self.path), self.path.parent
        of_seed = self.config.seeds is None and self.path.name == f"seed-{self.config.seed}"
        parent = read_state(above).get("id", "") if of_seed else ""
        name = f"{above.name}-{self.path.name}" if of_seed else self.path.name
        before, self.told = state.get("id", ""), state.get("told", -1)
        several = self.config.seeds is not None
        self.run = tracker(self.how.name).begin(
            Beginning(self.how, self.path, name, several, parent, before, self.told)
        )
        if not before:
            self.run.parameters(parameters(self.config))
        self._keep()

    def _tell(self, row: Mapping[str, Any]) -> None:
        if self.own and self.run is not None and row["round"] > self.told:
            self._guarded(lambda: self._told(row))

    def _told(self, row: Mapping[str, Any]) -> None:
        assert self.run is not None
        self.run.figures(row["round"], of_round(row))
        self.told = row["round"]
        self._keep()

    def _hand_over(self, summary: RunSummary) -> None:
        if self.run is None:
            return
        self.run.figures(max(self.told, 0), of_end(summary))
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / SUMMARY
            write_text(file, json.dumps(summary_of(summary), indent=1) + "\n")
            self.run.artefact(file)
        page = self.path / "report.html"
        why = "" if self.how.report else shows_rows(self.config)
        if self.how.report is False or not page.exists():
            return
        if why:
            self.inner.said(
                f"[tracking] The report stays in the run's folder: it may show {why}. tracking.report = true hands it over."
            )
            return
        self.run.artefact(page)

    def _ended(self, how: Ended) -> None:
        assert self.run is not None
        self.run.end(how)

    def _keep(self) -> None:
        assert self.run is not None
        write_json(self.path / STATE, {"name": self.how.name, "id": self.run.id, "told": self.told})

    def _guarded(self, work: Callable[[], None]) -> None:
        """Do the work unless the tool has failed. Any error of the tool ends the tracking, not the run."""
        if self.lost or (isinstance(self.inner, Follower) and self.inner.lost):
            return
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                work()
        except Exception as error:  # noqa: BLE001  # a tool may raise anything
            self.lost = True
            if isinstance(self.inner, Follower):  # then it is not tried again for each further seed
                self.inner.lost = True
            self.inner.said(
                f"[tracking] {self.how.name} is told no more: {first_line(error).rstrip('.')}. The run continues; "
                "if it is resumed, the rounds that were missed are told, too."
            )


def read_state(path: Path) -> dict[str, Any]:
    """Return the tracking state in a run's folder; {} if it is missing or damaged."""
    try:
        found: Any = json.loads((path / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return dict(found) if isinstance(found, dict) else {}

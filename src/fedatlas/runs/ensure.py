"""A run that has to be there: given where it is finished, continued where it was stopped, else run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from fedatlas.config import ExperimentConfig
from fedatlas.course.progress import Progress, Run
from fedatlas.errors import ConfigError, DivergedError
from fedatlas.federation.link import Observer
from fedatlas.record.initial_files import own_module, same_plugins
from fedatlas.record.run_folder import CONFIG, SUMMARY, RunFolder, Start
from fedatlas.reporting import REPORT, write_report
from fedatlas.runs.loop import run_one
from fedatlas.setup.resolution import resolve


def ensure(
    config: ExperimentConfig,
    folder: Path,
    *,
    module: nn.Module | None = None,
    options: Mapping[str, Any] | None = None,
    report: bool = True,
    progress: Progress | None = None,
    observers: Iterable[Observer] = (),
    intervals: bool = True,
) -> Run:
    """The whole run of a configuration of one seed, in ``folder``; what is there of it is not done again.

    A run of fewer rounds is continued, one that diverged tries its last round again. ``config.checkpoint`` may differ from that
    of the run that is there: how often it is saved changes no result. ``module``: the network of one's own in place of ``[model]``;
    ``options``: what a new run was asked for beside its configuration; ``report``: with its report.html; ``observers`` are shown what
    crosses in the rounds that are done now. Without ``intervals`` the summary has none, which for many clients takes as long as rounds do.

    ConfigError where the folder holds a run of another configuration, or more rounds than asked for; DivergedError where the run has no
    end.
    """
    done = finished(config, folder, module)
    if done is None:
        with RunFolder(folder).claimed():
            try:
                start = start_of(folder)
                done = run_one(
                    config,
                    folder,
                    start=start,
                    module=module,
                    progress=progress,
                    options=options,
                    observers=observers,
                    intervals=intervals,
                )
            except DivergedError:
                if report and (folder / SUMMARY).exists():
                    write_report([folder])  # of what was done until then
                raise
            if report:
                write_report([folder])
    elif report and not (folder / REPORT).exists():
        write_report([folder])
    return done


def finished(config: ExperimentConfig, folder: Path, module: nn.Module | None = None) -> Run | None:
    """The run of a configuration where it is there and came to its end; ConfigError as in `ensure`."""
    if not (folder / CONFIG).exists():
        return None
    if not holds(folder, config, module):
        raise ConfigError(f"'{folder}' holds a run of another configuration: remove it, or name another folder.")
    if (done := rounds_done(folder)) > config.rounds:
        raise ConfigError(
            f"'{folder}' has done {done} rounds, more than the {config.rounds} asked for: remove it, or name another folder."
        )
    if RunFolder(folder).config().rounds != config.rounds or not came_to_its_end(folder):
        return None
    own_module(folder, module, resume=True)
    same_plugins(folder)
    return Run(folder, RunFolder(folder).summary())


def came_to_its_end(folder: Path) -> bool:
    """Whether a run wrote its summary, which comes last; one that is damaged is written anew."""
    try:
        return RunFolder(folder).finished()
    except ConfigError:
        return False


def holds(folder: Path, config: ExperimentConfig, module: nn.Module | None = None) -> bool:
    """Whether the run in a folder is of this configuration, as both are when every default is written out; rounds do not count."""
    return resolve(RunFolder.open(folder).config(), module).config.hash() == resolve(config, module).config.hash()


def start_of(path: Path) -> Start:
    """How a run goes on: from its checkpoint, or from its beginning where it had none yet; ConfigError where it has none any more."""
    if any((path / "checkpoint").glob("manifest-*.json")):
        return "resume"
    folder = RunFolder(path)
    if folder.finished() or len(folder.rows()) > 1:
        raise ConfigError(
            f"'{path}' has no checkpoint any more, so there is nothing to go on from: 'fedatlas run {path / CONFIG}' repeats the run."
        )
    return "again" if (path / CONFIG).exists() else "new"


def rounds_done(path: Path) -> int:
    """The round of a run's newest checkpoint, 0 where it has none."""
    numbers = (file.stem.removeprefix("manifest-") for file in (path / "checkpoint").glob("manifest-*.json"))
    return max((int(number) for number in numbers if number.isdigit()), default=0)

"""A run that has to be there: given where it is finished, continued where it was stopped, else run."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable
from pathlib import Path

from fedatlas.course.progress import NOBODY, Progress, Run
from fedatlas.data.sources import read_once
from fedatlas.errors import ConfigError, DivergedError
from fedatlas.federation.link import Observer
from fedatlas.record.initial_files import own_module, same_plugins
from fedatlas.record.run_folder import CONFIG, SUMMARY, RunFolder, Start
from fedatlas.reporting import REPORT, write_report
from fedatlas.runs.finish import WHOLE, More, finish
from fedatlas.runs.loop import run_one
from fedatlas.setup.checked import Checked
from fedatlas.setup.resolution import resolve


def ensure(
    whole: Checked,
    folder: Path,
    more: More = WHOLE,
    progress: Progress = NOBODY,
    observers: Iterable[Observer] = (),
) -> Run:
    """The whole run of an experiment of one seed, in ``folder``; what is there of it is not done again.

    A run of fewer rounds is continued, one that diverged tries its last round again. ``checkpoint`` may differ from that of the run that
    is there: how often it is saved changes no result. ``observers`` are shown what crosses in the rounds that are done now.

    ConfigError where the folder holds a run of another configuration, or more rounds than asked for; DivergedError where the run has no
    end.
    """
    if (done := finished(whole, folder)) is None:
        with RunFolder(folder).claimed():
            return carry_out(whole, folder, start_of(folder), more, progress, observers)
    if not more.attacks and more.baselines is False and not (more.report and not (folder / REPORT).exists()):
        return done
    with RunFolder(folder).claimed(), read_once():
        return finish(done, whole, more, progress, renew)


def carry_out(
    whole: Checked, folder: Path, start: Start, more: More, progress: Progress, observers: Iterable[Observer] = ()
) -> Run:
    """A run from its start to its report, in a folder that this process has claimed; the data are kept for its baselines."""
    with contextlib.nullcontext() if more.baselines is False else read_once():
        try:
            done = run_one(whole, folder, start, more, progress, observers)
        except DivergedError:
            if more.report and (folder / SUMMARY).exists():
                write_report([folder])  # of what was done until then
            raise
        return finish(done, whole, more, progress, renew)


def renew(whole: Checked, folder: Path, progress: Progress) -> None:
    """The run of a baseline; one that is there of another configuration goes, since the run went further."""
    if (folder / CONFIG).exists() and not holds(folder, whole):
        shutil.rmtree(folder)
    ensure(whole, folder, More(report=False), progress)


def finished(whole: Checked, folder: Path) -> Run | None:
    """The run of an experiment where it is there and came to its end; ConfigError as in `ensure`."""
    if not (folder / CONFIG).exists():
        return None
    if not holds(folder, whole):
        raise ConfigError(f"'{folder}' holds a run of another configuration: remove it, or name another folder.")
    rounds = whole.config.rounds
    if (done := rounds_done(folder)) > rounds:
        raise ConfigError(
            f"'{folder}' has done {done} rounds, more than the {rounds} asked for: remove it, or name another folder."
        )
    if RunFolder(folder).config().rounds != rounds or not came_to_its_end(folder):
        return None
    own_module(folder, whole.module)
    same_plugins(folder)
    return Run(folder, RunFolder(folder).summary())


def came_to_its_end(folder: Path) -> bool:
    """Whether a run wrote its summary, which comes last; one that is damaged is written again."""
    try:
        return RunFolder(folder).finished()
    except ConfigError:
        return False


def holds(folder: Path, whole: Checked) -> bool:
    """Whether the run in a folder is of this experiment, as both are when every default is written out; rounds do not count."""
    there, wanted = RunFolder.open(folder).config(), whole.config.hash()
    return there.hash() == wanted or resolve(there, whole.module).config.hash() == wanted


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

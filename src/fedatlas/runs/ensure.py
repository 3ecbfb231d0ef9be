"""Make sure that a run exists: return it if it is finished, continue it if it was stopped, else run it."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from fedatlas.course.progress import NOBODY, Progress, Run
from fedatlas.data.cells import read_as
from fedatlas.data.sources import read_once
from fedatlas.errors import ConfigError, DivergedError
from fedatlas.federation.link import Observer
from fedatlas.files import disk_error
from fedatlas.record.initial_files import own_module, same_plugins
from fedatlas.record.run_folder import CONFIG, LOCK, SUMMARY, RunFolder, Start
from fedatlas.reporting import REPORT, write_report
from fedatlas.runs.baselines import baseline_key
from fedatlas.runs.finish import WHOLE, More, Runner, finish
from fedatlas.runs.loop import run_one
from fedatlas.setup.checked import Checked
from fedatlas.setup.resolution import resolve
from fedatlas.tracking.follower import tracked


def ensure(
    whole: Checked,
    folder: Path,
    more: More = WHOLE,
    progress: Progress = NOBODY,
    observers: Iterable[Observer] = (),
) -> Run:
    """Return the whole run of an experiment with one seed, in ``folder``; work that is already there is not repeated.

    A run of fewer rounds is continued; one that diverged tries its last round again. ``checkpoint`` may differ from that
    of the existing run, since saving changes no result. ``observers`` see the messages of the rounds that are run now.

    ConfigError if the folder holds a run of another configuration, or more rounds than asked for. DivergedError if the
    run diverges.
    """
    if (done := finished(whole, folder)) is None:
        with RunFolder(folder).claimed():
            return carry_out(whole, folder, start_of(folder), more, progress, observers)
    if (
        not more.attacks
        and not more.price
        and more.baselines is False
        and not (more.report and not (folder / REPORT).exists())
    ):
        return done
    with RunFolder(folder).claimed(), read_as(RunFolder(folder).reading()), read_once():
        return finish(done, whole, more, progress, trainer(more))


def carry_out(
    whole: Checked, folder: Path, start: Start, more: More, progress: Progress, observers: Iterable[Observer] = ()
) -> Run:
    """Carry a run from its start to its report, in a folder that this process has claimed.

    The data are read once for the run and its baselines, by the rules that the run began with.
    """
    once = contextlib.nullcontext() if more.baselines is False and not more.price else read_once()
    with read_as(RunFolder(folder).reading()), once, tracked(whole.config, folder, progress) as told:
        try:
            done = run_one(whole, folder, start, more, told, observers)
        except DivergedError:
            if more.report and (folder / SUMMARY).exists():
                write_report([folder])  # of what was done until then
            raise
        return finish(done, whole, more, told, trainer(more))


def renew(whole: Checked, folder: Path, progress: Progress) -> None:
    """Run a baseline; one of another configuration is removed first, since the run has continued past it."""
    if (folder / CONFIG).exists() and not holds(folder, whole):
        shutil.rmtree(folder)
    ensure(whole, folder, More(report=False), progress)


def trainer(more: More) -> Runner:
    """Return the function that makes sure of a baseline: in its run's folder, or copied from the shared ones."""
    return renew if more.shared is None else partial(copied, more.shared)


def copied(shared: Path, whole: Checked, folder: Path, progress: Progress) -> None:
    """Make sure of a baseline in ``folder``, as a copy of the one in ``shared``, which is trained by the first who needs it.

    Another process that needs the same one waits. A copy, not a link: a run's folder stays whole where it is moved,
    and continuing one run changes no other.
    """
    if (folder / CONFIG).exists() and holds(folder, whole) and finished(whole, folder) is not None:
        return
    kept = shared / baseline_key(whole.config)
    kept.mkdir(parents=True, exist_ok=True)
    with RunFolder(kept).claimed(wait=True):
        if finished(whole, kept) is None:
            carry_out(whole, kept, start_of(kept), More(report=False), progress)
    part = folder.with_name(f"{folder.name}.part")
    try:
        for old in (part, folder):
            if old.exists():
                shutil.rmtree(old)
        shutil.copytree(kept, part, ignore=shutil.ignore_patterns(LOCK))
        part.rename(folder)
    except OSError as error:
        raise disk_error(folder, error) from error


def finished(whole: Checked, folder: Path) -> Run | None:
    """Return the run of an experiment if it exists and is finished, else None. ConfigError as in `ensure`."""
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
    """Return whether a run wrote its summary, which comes last; False for a damaged one, which is rewritten."""
    try:
        return RunFolder(folder).finished()
    except ConfigError:
        return False


def holds(folder: Path, whole: Checked) -> bool:
    """Return whether the run in a folder is of this experiment, with every default written out; rounds may differ."""
    there, wanted = RunFolder.open(folder).config(), whole.config.hash()
    return there.hash() == wanted or resolve(there, whole.module).config.hash() == wanted


def start_of(path: Path) -> Start:
    """Return how a run continues: from its checkpoint, or from the beginning if it had none yet.

    ConfigError if its checkpoint has been removed.
    """
    if any((path / "checkpoint").glob("manifest-*.json")):
        return "resume"
    folder = RunFolder(path)
    if folder.finished() or len(folder.rows()) > 1:
        raise ConfigError(
            f"'{path}' has lost its checkpoint and cannot be continued: 'fedatlas run {path / CONFIG}' repeats the run."
        )
    return "again" if (path / CONFIG).exists() else "new"


def rounds_done(path: Path) -> int:
    """Return the round of a run's newest checkpoint; 0 if it has none."""
    numbers = (file.stem.removeprefix("manifest-") for file in (path / "checkpoint").glob("manifest-*.json"))
    return max((int(number) for number in numbers if number.isdigit()), default=0)

"""Finish a run of any kind: models and summary after its rounds, then gain and attacks, and the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedatlas.course.course import Course
from fedatlas.course.progress import Progress, Run
from fedatlas.leakage import attack_views
from fedatlas.record.fields import RoundRow, RunSummary
from fedatlas.record.run_folder import RunFolder
from fedatlas.record.summary import write_summary
from fedatlas.reporting import write_report
from fedatlas.runs import baselines
from fedatlas.runs.answer import answer_of, told
from fedatlas.runs.columns_answer import gain_and_answer
from fedatlas.runs.columns_labels import labels_told
from fedatlas.runs.deployed_answer import deployed_answer
from fedatlas.runs.price import train_unprotected
from fedatlas.setup.checked import Checked

Runner = Callable[[Checked, Path, Progress], object]
"""Function that makes sure that an experiment's run is in a folder."""


class More(NamedTuple):
    """Work to do on a run besides its rounds."""

    baselines: bool | None = False  # whether they are trained, for the gain; None: where that is cheap
    attacks: bool = False  # those on views that the experiment declares
    report: bool = True
    intervals: bool = True  # of the final figures; for many clients they take as long as rounds do
    tested: bool = True  # whether a run judged on validation rows is also judged on test rows, at its end
    options: Mapping[str, Any] = {}  # what a new run was asked for beside its configuration
    price: bool = False  # whether the same run is made without protection, to measure what that costs
    shared: Path | None = None  # folder of baselines that several runs need, each trained once; the run gets a copy
    deployed: bool = False  # whether its parties are real, and nobody trains alone


WHOLE = More()


def write_end(course: Course, rows: Sequence[RoundRow], *, early: str = "", diverged: str = "") -> RunSummary:
    """Write models and summary of a run whose rounds are over. ``early``, ``diverged``: why it ended early."""
    folder = course.keeper.folder
    summary = course.figures(rows, diverged)
    digests = folder.save_models(course.models())
    if "sha256" in summary:  # so that no other run's model is taken for this one's
        summary["sha256"] = digests
    if diverged:
        summary["diverged"] = diverged
    if early:
        summary["stopped"] = early
    write_summary(folder, summary)
    return summary


def finish(done: Run, whole: Checked, more: More, progress: Progress, run: Runner | None = None) -> Run:
    """Add to a run, as wanted, the attacks on its views, the gain and the report. ``run`` runs its baselines.

    All of it is made from files on disk, so a run that was killed here is finished without training.
    """
    path, summary = done.path, done.summary.copy()
    summary.pop("failed_attacks", None)
    if more.attacks and whole.config.attack and (failed := attack_views(path, whole, progress.said)):
        summary["failed_attacks"] = failed
        write_summary(RunFolder(path), summary)
    if more.baselines is not False:
        if whole.columns:
            summary["gain"], between = gain_and_answer(path, whole, summary, progress.said)
            summary["answer"] = told(between)
            if (found := labels_told(path, whole, progress.said)) is not None:
                summary["labels_told"] = found
        elif run is not None and baselines.wanted(whole.config, summary, more.baselines):
            baselines.train(path, whole.module, progress, run)
            summary["gain"] = baselines.gain(path)
        write_summary(RunFolder(path), summary)
    if more.price and whole.config.privacy and run is not None and "diverged" not in summary:
        train_unprotected(path, whole.module, progress, run)
    wanted = more.report or more.price or more.baselines is not False or more.shared
    if wanted and (reached := (deployed_answer if more.deployed else answer_of)(path, summary)) is not None:
        summary["answer"] = told(reached)
        write_summary(RunFolder(path), summary)
    return closed(Run(path, summary), more, progress)


def closed(done: Run, more: More, progress: Progress) -> Run:
    """Write the report if one is wanted, and return the run."""
    if more.report:
        write_report([done.path])
    progress.finished(done.path, done.summary)
    return done

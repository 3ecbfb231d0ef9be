"""The rounds of a run, from a checked experiment to models and figures; resuming at any round changes no bit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from fedatlas import machine
from fedatlas.course.columns import Growing
from fedatlas.course.course import Course
from fedatlas.course.owners import Solving
from fedatlas.course.progress import NOBODY, Progress, Run, stopped
from fedatlas.course.rounds import Elsewhere, Simulation
from fedatlas.errors import DivergedError
from fedatlas.federation.link import Observer
from fedatlas.record import row_secret
from fedatlas.record.fields import RoundRow, RunSummary
from fedatlas.record.initial_files import same_beginning
from fedatlas.record.run_folder import RunFolder, Start
from fedatlas.runs.carried_data import listed, named_copies
from fedatlas.runs.finish import WHOLE, More, write_end
from fedatlas.runs.surroundings import surroundings
from fedatlas.setup.assembly import set_up
from fedatlas.setup.checked import Checked
from fedatlas.setup.consortium import consortium

NOTED = 0.5  # seconds: if an evaluation takes longer, the final one is announced


@machine.one_thread_an_operator()
def run_one(
    whole: Checked,
    path: Path,
    start: Start = "new",
    more: More = WHOLE,
    progress: Progress = NOBODY,
    observers: Iterable[Observer] = (),
) -> Run:
    """Run one seed of an experiment.

    ``start``: "new"; "again" from the beginning, if it stopped before its first checkpoint; "resume" from its last
    checkpoint.
    """
    resume = start == "resume"
    if resume:
        same_beginning(path, whole.module)

    def folder() -> RunFolder:  # made only after every refusal
        if resume:
            return RunFolder.open(path)
        return RunFolder.create(path, whole.config, more.options, again=start == "again")

    course: Course
    root = row_secret.read_again(path, whole) if resume else row_secret.read(path)
    if whole.columns:
        held = consortium(whole, root)
        kind = Solving if held.rows else Growing
        course = kind(held, folder(), resume=resume, observers=observers, say=progress.said)
    else:
        setup, away = set_up(whole, root=root), elsewhere_for(whole)
        course = Simulation(
            setup, folder(), resume=resume, observers=observers, intervals=more.intervals, elsewhere=away
        )
        course.evaluator.with_test = more.tested
    return Run(path, run_course(course, progress))


def elsewhere_for(whole: Checked) -> Elsewhere | None:
    """Return the function that makes the executor on the experiment's cluster; None if it names none."""
    address = whole.config.engine.cluster
    if address is None:
        return None
    from fedatlas.cluster.executor import Carried, on_cluster  # Ray is imported for no other run

    config = whole.config
    return partial(on_cluster, address, Carried(surroundings(), listed(config), partial(named_copies, config)))


def run_course(course: Course, progress: Progress) -> RunSummary:
    """Run all remaining rounds, write models and summary, and return the summary.

    DivergedError if the run diverged, unless attackers were declared; the summary is written in both cases.
    """
    config, folder = course.config, course.keeper.folder
    try:
        begin(course, progress)
        rows = folder.rows()
        if course.number < config.rounds and not ending(course, rows):
            folder.reopen()
        try:
            while course.number < config.rounds and not ending(course, rows):
                rows.append(course.step())
                course.land(rows[-1])
                tell(progress, course, rows[-1])
        except DivergedError as error:
            summary = write_end(course, rows, diverged=str(error))
            if not summary.get("attacks"):
                raise
            progress.said(f"{error} With attackers declared this is a result; the summary records it.")
            return summary
        course.save()
        early = ""
        if course.number < config.rounds:
            early = f"after {course.word} {course.number} of {config.rounds}: {ending(course, rows)} ([stop])."
            progress.said(f"Stopped {early}")
        if rows[-1]["seconds_by_phase"].get("evaluate", 0.0) > NOTED:
            progress.said("Evaluating the final models, with intervals ...")
        return write_end(course, rows, early=early)
    finally:
        course.close()


def ending(course: Course, rows: Sequence[RoundRow]) -> str:
    """Return why ``[stop]`` ends the run now; else ""."""
    return stopped(course.config, rows if course.guard is None else course.guard.since_rollback(rows))


def begin(course: Course, progress: Progress) -> None:
    """Run round 0, or load the checkpoint of a resumed run, and pass on the notices."""
    for notice in course.notices:
        progress.said(notice)
    if restored := course.restored:
        for refused in restored.refused:
            progress.said(f"{refused} The checkpoint of {course.word} {restored.run.round} is used.")
        course.resume(restored)
    progress.started(course)
    first = None if restored else course.begin()
    for notice in course.noticed():
        progress.said(notice)
    if first is not None:
        course.land(first)
        progress.row(first)


def tell(progress: Progress, course: Course, row: RoundRow) -> None:
    """Report a round's row and the notices since the last one."""
    progress.row(row)
    if why := row.get("unchanged"):
        progress.said(f"Round {row['round']} changed nothing: {why}.")
    for notice in course.noticed():
        progress.said(notice)

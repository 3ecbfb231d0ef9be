"""Runs what a study needs and the table does not have yet: two at once, each a child; nothing twice, nothing lost."""

from __future__ import annotations

import contextlib
import gc
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from fedatlas.config import ExperimentConfig, bytes_of
from fedatlas.data.sources import load_dataset, read_once
from fedatlas.errors import ConfigError, DiskError, FedatlasError
from fedatlas.machine import one_thread_an_operator
from fedatlas.record.run_folder import RunFolder
from fedatlas.runs.run_key import changed
from fedatlas.study import children
from fedatlas.study.children import Child, Ended
from fedatlas.study.design import ExecuteTable, StudyFile
from fedatlas.study.jobs import Job, Place, Plan, Rates, cell_jobs
from fedatlas.study.responses import facts, messages, prefix, responses
from fedatlas.study.table import ENDED, Entry, Outcome, Table

PARALLEL = 2
PAUSES = (0.005, 0.1)  # seconds between looks at the children, at least and at most
LATE = 0.02  # and this share of the time since one of them ended: so late its end may be seen
LOOK = 0.2  # seconds between looks at their memory, at least
SPARED = 100  # and so many times as long as a look takes, which walks through all their pages
BUSY_PAUSE = 0.5  # seconds until a run that another study has claimed is looked at again

Say = Callable[[str], None]


class Working(NamedTuple):
    """A child with its run."""

    child: Child
    job: Job


class Executor:
    """The runs of a plan that are still to be made, and those at work."""

    def __init__(self, plan: Plan, table: Table, say: Say) -> None:
        self.plan, self.table, self.say = plan, table, say
        self.how: ExecuteTable = plan.study.table.execute
        self.study: StudyFile = plan.study
        found = [place.cell for place in plan.places]
        self.rank = {cell.setting: at for at, cell in reversed(list(enumerate(found)))}
        self.rank |= {cell.levels: self.rank[cell.setting] for cell in found}
        self.waiting: list[Job] = [*plan.baselines]
        self.places: list[Place] = [place for place in plan.places if place.trials]  # whose rates are not picked yet
        self.tried: dict[str, list[Place]] = {}  # trial -> the cells that wait for it
        for place in plan.places:
            self.waiting += place.trials or place.jobs
            for job in place.trials:
                self.tried.setdefault(job.keys.run_key, []).append(place)
        self.due: list[Place] = []  # cells one of whose trials has ended since they were looked at
        self.waiting.sort(key=self.turn)
        self.working: list[Working] = []
        self.peaks: dict[str, int] = {}
        self.again: dict[str, int] = {}  # run -> how often a signal ended it here
        self.later: dict[str, float] = {}  # run -> when it is looked at again
        self.began = self.last = time.monotonic()
        self.look_again, self.done = 0.0, 0

    def run(self) -> None:
        """All of them; DiskError where the disk is full: what was done is kept."""
        most = self.how.parallel or PARALLEL
        try:
            while self.waiting or self.working or self.places:
                self.pick_rates()
                while len(self.working) < most and self.begin_one():
                    pass
                if not self.working and not self.waiting:
                    if not self.places:
                        break
                    continue
                if not self.working and self.over() and not self.due:
                    self.say(f"Stopped after {self.how.hours:g} h: the same command goes on.")
                    break
                time.sleep(min(max(LATE * (time.monotonic() - self.last), PAUSES[0]), PAUSES[1]))
                self.look()
        finally:
            for one in self.working:
                children.kill(one.child)
                self.table.release(one.job.keys.run_key, "It was stopped; the same command goes on with it.")
            self.working = []

    def turn(self, job: Job) -> tuple[int, int, int]:
        """Long runs first, which answer for shorter ones; then setting after setting, so that a study that is stopped has whole ones."""
        rounds = 0 if job.config is None else job.config.rounds
        return -rounds, self.rank[job.levels], job.seed

    def over(self) -> bool:
        """Whether the study's hours are over."""
        return self.how.hours is not None and time.monotonic() - self.began > 3600 * self.how.hours

    def pick_rates(self) -> None:
        """Cells all of whose trials have ended get the rates that did best on validation rows."""
        due, self.due = self.due, []
        for place in due:
            if place in self.places and all(self.table.status(job.keys.run_key) in ENDED for job in place.trials):
                rates = picked(self.table, place.trials)
                jobs = cell_jobs(self.study, self.plan.factors, place.cell, rates)
                self.table.enter(self.study.name, map(entry, jobs))
                self.places.remove(place)
                self.waiting = sorted([*jobs, *self.waiting], key=self.turn)

    def begin_one(self) -> bool:
        """Begins the next run that is free; False where there is none now. Runs that have ended already are passed over."""
        now = time.monotonic()
        for job in list(self.waiting):
            key = job.keys.run_key
            if self.table.status(key) in ENDED or job.checked is None:
                self.waiting.remove(job)
                self.due += self.tried.get(key, ())
                continue
            if (
                self.over()
                or any(one.job.keys.run_key == key for one in self.working)
                or self.later.get(key, 0.0) > now
            ):
                continue
            if not self.table.claim(key):
                self.later[key] = now + BUSY_PAUSE  # another process has it: waited for
                continue
            self.waiting.remove(job)
            if (known := begun_by_another(self.table, job)) is not None:
                self.table.finish(key, known)
                self.due += self.tried.get(key, ())
                continue
            warm(job.checked.config, job.seed)
            self.working.append(Working(children.begin(job.checked, self.folder(job)), job))
            return True
        return False

    def folder(self, job: Job) -> Path:
        """Where a run is made: beside the table, so that studies that share it share runs that were begun, too."""
        return self.table.path.parent / "runs" / job.keys.run_key

    def look(self) -> None:
        """Takes in children that have ended, and ends those that take too long or too much."""
        now, busy = time.monotonic(), time.process_time()
        watch = now >= self.look_again
        for one in list(self.working):
            ended = children.reaped(one.child)
            if ended is not None:
                self.last = now
                self.working.remove(one)
                self.close(one, ended)
                continue
            key = one.job.keys.run_key
            if watch:
                self.peaks[key] = max(self.peaks.get(key, 0), children.private_memory(one.child.pid))
            if self.how.seconds is not None and now - one.child.began > self.how.seconds:
                self.end(one, Outcome("timeout", f"It took more than the {self.how.seconds:g} s of execute.seconds."))
            elif self.how.memory is not None and self.peaks.get(key, 0) > bytes_of(self.how.memory):
                self.end(one, Outcome("memory", f"It took more than the {self.how.memory} of execute.memory."))
        if watch:
            self.look_again = now + max(LOOK, SPARED * (time.process_time() - busy))

    def end(self, one: Working, outcome: Outcome) -> None:
        """Kills a run for a reason."""
        children.kill(one.child)
        self.working.remove(one)
        self.finish(one.job, outcome)

    def close(self, one: Working, ended: Ended) -> None:
        """A child has ended: its outcome goes into the table, or the run back to those that wait."""
        key = one.job.keys.run_key
        if ended.status == children.DISK:
            self.table.release(key, "The disk was full; the same command goes on with it.")
            raise DiskError(ended.reason)
        if ended.status == children.BUSY:
            self.put_back(one, "Its folder is still held by another process.")
            return
        if ended.signal or ended.status == children.SPOILT:
            self.again[key] = self.again.get(key, 0) + 1
            if ended.status == children.SPOILT:
                shutil.rmtree(one.child.folder, ignore_errors=True)
            if self.again[key] <= self.how.retries:
                self.put_back(one, "It was ended by a signal, and is tried again.")
                return
            status = "memory" if ended.signal == 9 else "failed"  # what the system kills for want of memory ends so
            why = f"A signal ({ended.signal}) ended it {self.again[key]} times" if ended.signal else ended.reason
            self.finish(one.job, Outcome(status, f"{why}; 'fedatlas study --retry {status}' tries it again."))
            return
        self.finish(one.job, outcome_of(one.child.folder, ended, self.peaks.get(key, 0)))

    def put_back(self, one: Working, why: str) -> None:
        """Lets a run wait for a while."""
        self.table.release(one.job.keys.run_key, why)
        self.later[one.job.keys.run_key] = time.monotonic() + BUSY_PAUSE
        self.waiting.insert(0, one.job)

    def finish(self, job: Job, outcome: Outcome) -> None:
        """Writes an outcome; the run's folder goes where only its rows are kept."""
        self.table.finish(job.keys.run_key, outcome)
        self.due += self.tried.get(job.keys.run_key, ())
        folder = self.folder(job)
        if self.how.keep == "rows" and outcome.status in ("done", "refused", "diverged"):
            shutil.rmtree(folder, ignore_errors=True)
        self.done += 1
        self.say(progress(self, job, outcome))


def progress(at: Executor, job: Job, outcome: Outcome) -> str:
    """A line for whoever watches: what has ended, and about how long the rest takes."""
    left = len(at.waiting) + len(at.working) + sum(len(place.jobs) for place in at.places)
    pace = (time.monotonic() - at.began) / at.done
    what = ", ".join(f"{name} {level}" for name, level in job.levels) or "the base"
    figure = outcome.responses.get("accuracy")
    came = f"accuracy {figure:.4f}" if figure is not None else outcome.status
    return f"{job.kind} ({what}), seed {job.seed}: {came}; {left} left, about {left * pace / 60:.0f} min"


def warm(config: ExperimentConfig, seed: int) -> None:
    """The data are read in the parent, unless they are large; what is wrong with them the child says."""
    with contextlib.suppress(FedatlasError):
        load_dataset(config.data, seed)


def outcome_of(folder: Path, ended: Ended, peak: int) -> Outcome:
    """What came of a run, read from its folder."""
    run, said = RunFolder(folder / "run"), ended.said
    rows, summary = run.rows(), None
    if ended.status == "done" or said.get("kept"):
        summary = run.summary()
    found = responses(rows, summary) if summary is not None else {}
    if found:
        counted = messages(folder).values()
        found["messages_up"], found["messages_down"] = (sum(pair[i] for pair in counted) for i in (0, 1))
        found |= said.get("expected", {})
        memory = max(peak, said.get("memory", 0))
        found |= {"cpu_seconds": ended.cpu_seconds, "memory_mib": memory / 2**20 if memory else None}
        found |= facts(run.config(), summary or {})
    reason = ended.reason or "It came to its end."
    return Outcome(ended.status, reason, rows if summary is not None else (), summary, found)


def begun_by_another(table: Table, job: Job) -> Outcome | None:
    """The outcome of a run whose rounds are the first ones of a longer run that is there; None where there is none.

    Not of a run that releases noise, whose epsilon is that of all its rounds, nor where the longer run was not judged there.
    """
    other = table.longer(job.keys.run_key) if job.config is not None and not job.config.privacy else None
    if other is None:
        return None
    rows = table.rows(other[0])
    mine = [row for row in rows if row["round"] <= other[1]]
    if not mine or mine[-1]["round"] != other[1] or mine[-1].keys() != rows[-1].keys() or mine[-1].get("loss") is None:
        return None
    found = prefix(rows, table.responses(other[0]), other[1])
    return Outcome("done", "It came to its end.", mine, None, {**found, "prefix_of": other[0]})


def picked(table: Table, trials: Sequence[Job]) -> Rates:
    """The rates whose run did best on validation rows, the earlier in the list among equals; the first where none came to its end."""

    def figure(job: Job) -> float:
        found = table.responses(job.keys.run_key) if table.status(job.keys.run_key) == "done" else {}
        if found.get("accuracy") is not None:
            return float(found["accuracy"])
        return -float(found["rmse"]) if found.get("rmse") is not None else float("-inf")

    return max(trials, key=figure).rates


def entry(job: Job) -> Entry:
    """A run as the table takes it up."""
    return Entry(*job.keys, job.plain, job.kind, dict(job.levels), dict(job.rates), job.refused)


def begin(plan: Plan, table: Table) -> None:
    """Enters a plan; ConfigError where its data are not those that the study began with."""
    study = plan.study
    data = {name: value for job in plan.known() for name, value in job.data.items()}
    if other := changed(table.data_of(study.name), data):
        raise ConfigError(
            f"the data file '{other[0]}' has changed since the study '{study.name}' began: put it back as it was, or give the study "
            "another name or --table."
        )
    factors = {
        factor.name: {
            "role": factor.role,
            "scale": factor.scale,
            "levels": [level.name for level in factor.levels],
            "set": {level.name: dict(level.set) for level in factor.levels},
        }
        for factor in plan.factors
    }
    table.begin(study.name, factors, data, study.sha256)
    table.enter(study.name, map(entry, plan.known()))


@one_thread_an_operator()
def execute(plan: Plan, table: Table, say: Say) -> bool:
    """Runs all that is left of a plan; whether none of its runs failed: refused and diverged ones are outcomes."""
    begin(plan, table)
    with read_once():
        gc.collect()
        gc.freeze()  # what is there would be copied page by page in every child
        try:
            Executor(plan, table, say).run()
        finally:
            gc.unfreeze()
    counts = table.counts(plan.study.name)
    return not any(counts[status] for status in ("failed", "timeout", "memory"))

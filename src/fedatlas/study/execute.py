"""Execution of a plan: the runs missing from the table, several at once, each in a process of its own."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from fedatlas.errors import ConfigError, DiskError
from fedatlas.runs.run_key import changed
from fedatlas.study import children
from fedatlas.study.design import ExecuteTable
from fedatlas.study.local_runs import Ending, Runs, runs_here
from fedatlas.study.measurements import levels_text
from fedatlas.study.outcomes import outcome_of_longer
from fedatlas.study.plan import CellRuns, PlannedRun, Rates, StudyPlan
from fedatlas.study.responses import merit
from fedatlas.study.table import ENDED, NewRun, Outcome, Table
from fedatlas.wording import PARTS, seconds_text

PAUSES = (0.005, 0.1)  # shortest and longest pause in seconds between checks of the runs
LATE = 0.02  # and this share of the time since the last end: the longest delay in noticing one
BUSY_PAUSE = 0.5  # seconds before a run claimed by another study is checked again

Say = Callable[[str], None]


class StudyRunner:
    """The runs of a plan that are waiting or running, by run_key."""

    def __init__(self, plan: StudyPlan, table: Table, say: Say, runs: Runs) -> None:
        self.plan, self.table, self.say, self.runs = plan, table, say, runs
        self.how, self.study = plan.study.table.execute, plan.study
        self.rank: dict[object, int] = {}
        for one in plan.cells:
            self.rank.setdefault(one.cell.setting, len(self.rank))
        self.rank |= {one.cell.levels: self.rank[one.cell.setting] for one in plan.cells}
        self.waiting = sorted(plan.known(), key=self.turn)
        self.untuned = [one for one in plan.cells if one.trials]  # whose rates are not yet picked
        self.tried: dict[str, list[CellRuns]] = {}  # trial -> the cells that wait for it
        for one in self.untuned:
            for run in one.trials:
                self.tried.setdefault(run.keys.run_key, []).append(one)
        self.due: list[CellRuns] = []  # cells with a trial that has ended since they were checked
        self.working: dict[str, PlannedRun] = {}
        self.again: dict[str, int] = {}  # run -> how often a signal ended it here
        self.later: dict[str, float] = {}  # run -> time of the next check
        self.began = self.last = time.monotonic()
        self.done = 0

    def run_all(self) -> None:
        """Make all runs; DiskError if the disk is full, with finished runs kept."""
        try:
            while self.waiting or self.working or self.untuned:
                self.pick_rates()
                while self.runs.free() and self.begin_one():
                    pass
                if not self.working and not self.waiting:
                    if not self.untuned:
                        break
                    continue
                if not self.working and self.over() and not self.due:
                    self.say(f"Stopped after {self.how.hours:g} h; run the same command to continue.")
                    break
                pause = min(max(LATE * (time.monotonic() - self.last), PAUSES[0]), PAUSES[1])
                for key, ending in self.runs.endings(pause):
                    self.last = time.monotonic()
                    self.close(self.working.pop(key), ending)
        finally:
            self.runs.stop()
            for key in self.working:
                self.table.release(key, "It was stopped; run the same command to continue it.")
            self.working = {}

    def turn(self, run: PlannedRun) -> tuple[int, int, int]:
        """Return the sort key: long runs first, which also answer for shorter ones; then by setting, so that some are whole if it stops."""
        rounds = 0 if run.config is None else run.config.rounds
        return -rounds, self.rank[run.levels], run.seed

    def over(self) -> bool:
        """Return whether the study's hours are used up."""
        return self.how.hours is not None and time.monotonic() - self.began > 3600 * self.how.hours

    def pick_rates(self) -> None:
        """Give cells whose trials have all ended the rates that did best on validation rows."""
        due, self.due = self.due, []
        for one in due:
            if one in self.untuned and all(self.table.status(run.keys.run_key) in ENDED for run in one.trials):
                runs = self.plan.picked_runs(one.cell, best_rates(self.table, one.trials))
                self.table.enter(self.study.name, map(new_run, runs))
                self.untuned.remove(one)
                self.waiting = sorted([*runs, *self.waiting], key=self.turn)

    def begin_one(self) -> bool:
        """Start the next free run; False if there is none now. Runs that have already ended are skipped."""
        now = time.monotonic()
        for run in list(self.waiting):
            key = run.keys.run_key
            if self.table.status(key) in ENDED or run.checked is None:
                self.waiting.remove(run)
                self.due += self.tried.get(key, ())
                continue
            if self.over() or key in self.working or self.later.get(key, 0.0) > now:
                continue
            if not self.table.claim(key):
                self.later[key] = now + BUSY_PAUSE  # another process has it: wait
                continue
            self.waiting.remove(run)
            # Epsilon of a run that releases noise covers all its rounds, and the rows that a run on a fold is judged on are
            # kept of its end, so a longer run cannot answer for these.
            on_fold = run.checked.config.evaluation.fold is not None
            known = None if on_fold or run.checked.config.privacy else outcome_of_longer(self.table, key)
            if known is not None:
                self.table.finish(key, known)
                self.due += self.tried.get(key, ())
                continue
            if on_fold:
                self.take_over(key)
            self.runs.begin(key, run.checked, self.folder(key), tested=run.kind != "trial")
            self.working[key] = run
            return True
        return False

    def take_over(self, key: str) -> None:
        """Let a run go on from the folder of a shorter one, if it is kept."""
        kept = (self.folder(one) for one in self.table.shorter(key))
        if not self.folder(key).exists() and (found := next((one for one in kept if one.exists()), None)):
            found.rename(self.folder(key))

    def folder(self, key: str) -> Path:
        """Return the folder of a run, next to the table, so that studies with a common table also share unfinished runs."""
        return self.table.path.parent / "runs" / key

    def close(self, run: PlannedRun, ending: Ending) -> None:
        """Write the outcome of a run that ended into the table, or return it to the waiting ones."""
        key, ended = run.keys.run_key, ending.ended
        if ended.status == children.DISK:
            self.table.release(key, "The disk was full; run the same command to continue it.")
            raise DiskError(ended.reason)
        if ended.status in (children.BUSY, children.LOST) and not ended.signal:
            busy = ended.status == children.BUSY
            self.put_back(run, "Its folder is still held by another process." if busy else ended.reason)
            return
        if ending.outcome is not None:
            self.finish(run, ending.outcome)
            return
        self.again[key] = self.again.get(key, 0) + 1
        if ended.status == children.SPOILT:
            shutil.rmtree(self.folder(key), ignore_errors=True)
        if self.again[key] <= self.how.retries:
            self.put_back(run, "It was ended by a signal, and is retried.")
            return
        status = "memory" if ended.signal == 9 else "failed"  # the system kills this way for lack of memory
        why = f"A signal ({ended.signal}) ended it {self.again[key]} times" if ended.signal else ended.reason
        self.finish(run, Outcome(status, f"{why}; retry it with 'fedatlas study --retry {status}'."))

    def put_back(self, run: PlannedRun, why: str) -> None:
        """Return a run to the waiting ones, with a delay."""
        self.table.release(run.keys.run_key, why)
        self.later[run.keys.run_key] = time.monotonic() + BUSY_PAUSE
        self.waiting.insert(0, run)

    def finish(self, run: PlannedRun, outcome: Outcome) -> None:
        """Write an outcome; remove the run's folder if only its rows are kept."""
        key = run.keys.run_key
        self.table.finish(key, outcome)
        self.due += self.tried.get(key, ())
        if self.how.keep == "rows" and outcome.status in ("done", "refused", "diverged"):
            shutil.rmtree(self.folder(key), ignore_errors=True)
        self.done += 1
        self.say(self.progress(run, outcome))

    def progress(self, run: PlannedRun, outcome: Outcome) -> str:
        """Return a line on a run that has ended, and an estimate of the remaining time."""
        left = len(self.waiting) + len(self.working) + sum(len(one.runs) for one in self.untuned)
        more = seconds_text(left * (time.monotonic() - self.began) / self.done)
        rest = f"; {left} left{self.runs.where()}, about {more}" if left else ""
        figure = outcome.responses.get("accuracy")
        came = f"accuracy {figure:.4f}" if figure is not None else outcome.status
        what = f"{kind_text(run)} ({levels_text(run.levels)}), seed {run.seed}"
        return f"{what}: {came}{rest}"


def kind_text(run: PlannedRun) -> str:
    """Return the kind of a run in words, with which baseline it is."""
    return f"{run.kind} {PARTS[str(run.plain['algorithm']['name'])]}" if run.kind == "baseline" else run.kind


def best_rates(table: Table, trials: Sequence[PlannedRun]) -> Rates:
    """Return the rates whose run did best on validation rows, the earlier among equals; the first if no run finished."""

    def figure(run: PlannedRun) -> float:
        done = table.status(run.keys.run_key) == "done"
        found = merit(table.responses(run.keys.run_key)) if done else None
        return float("-inf") if found is None else found

    return max(trials, key=figure).rates


def new_run(run: PlannedRun) -> NewRun:
    """Return a planned run in the form that the table stores."""
    return NewRun(*run.keys, run.plain, run.kind, dict(run.levels), dict(run.rates), run.refused)


def begin(plan: StudyPlan, table: Table) -> None:
    """Enter a plan; ConfigError if its data changed since the study began."""
    study = plan.study
    data = {name: value for run in plan.known() for name, value in run.data.items()}
    if other := changed(table.data_of(study.name), data):
        raise ConfigError(
            f"the data file '{other[0]}' has changed since the study '{study.name}' began: restore it, or give the study "
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
    table.enter(study.name, map(new_run, plan.known()))


def execute(plan: StudyPlan, table: Table, say: Say, cluster: str | None = None) -> bool:
    """Make all remaining runs of a plan; return whether none failed: refused and diverged runs are valid outcomes.

    ``cluster``: address of a Ray cluster whose nodes make them, instead of this machine.
    """
    begin(plan, table)
    with contextlib.ExitStack() as opened:
        how = plan.study.table.execute
        return carry_out(plan, table, say, opened.enter_context(runs_there(cluster, how, say)) if cluster else None)


def carry_out(plan: StudyPlan, table: Table, say: Say, runs: Runs | None = None) -> bool:
    """Make the runs of a plan whose members the table has, on this machine unless ``runs`` makes them elsewhere.

    Return whether none of its study failed.
    """
    with runs_here(plan.study.table.execute) if runs is None else contextlib.nullcontext(runs) as place:
        StudyRunner(plan, table, say, place).run_all()
    counts = table.counts(plan.study.name)
    return not any(counts[status] for status in ("failed", "timeout", "memory"))


def runs_there(cluster: str, how: ExecuteTable, say: Say) -> contextlib.AbstractContextManager[Runs]:
    """Carry runs out on the nodes of a cluster. Only here is imported what needs Ray."""
    from fedatlas.study.cluster_runs import runs_on

    return runs_on(cluster, how, say)

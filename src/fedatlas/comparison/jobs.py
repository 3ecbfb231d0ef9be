"""The runs of a comparison, several at once, each in a child process that `study.children` forks."""

from __future__ import annotations

import contextlib
import gc
import shutil
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from fedatlas.course.progress import Silent
from fedatlas.errors import DiskError
from fedatlas.record.run_folder import RunFolder
from fedatlas.runs import baselines
from fedatlas.runs.ensure import ensure, finished
from fedatlas.runs.finish import More
from fedatlas.runs.price import unprotected
from fedatlas.setup.checked import Checked
from fedatlas.study import children
from fedatlas.wording import seconds_text

PAUSE = 0.02  # seconds between checks of the children
MINUTE = 60.0  # seconds without a finished run after which the rounds are reported
Say = Callable[[str], None]


class ComparedRun(NamedTuple):
    """One scheme with one seed."""

    label: str
    seed: int
    whole: Checked
    folder: Path


class JobEnd(NamedTuple):
    """The end of a run: "done", "diverged", "failed" or another status of a study's run, and the reason."""

    status: str
    reason: str = ""


class Heard(Silent):
    """Progress that keeps the notices of a run."""

    def __init__(self) -> None:
        self.notices: list[str] = []

    def said(self, notice: str) -> None:
        """Keep the notice."""
        self.notices.append(notice)


def there(job: ComparedRun, more: More) -> bool:
    """Return whether a run needs no more work: it is finished, with its baselines and the price if they are wanted."""
    done = finished(job.whole, job.folder)
    if done is None or job.whole.config.attack:
        return False
    if more.price and job.whole.config.privacy and unprotected(job.folder) is None:
        return False
    return "gain" in done.summary or not baselines.wanted(job.whole.config, done.summary, more.baselines)


def carried_out(job: ComparedRun, more: More) -> dict[str, Any]:
    """Run a job in a child, and return its outcome."""
    heard = Heard()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ensure(job.whole, job.folder, more, heard)
    except Exception as error:  # noqa: BLE001  (any error of a plug-in is an outcome of its run)
        return {"status": children.status_of(error), "reason": children.reason_of(error), "said": heard.notices}
    return {"status": "done", "said": heard.notices}


class JobRunner:
    """The waiting and the running jobs."""

    def __init__(self, jobs: Sequence[ComparedRun], notes: Path, more: More, most: int, say: Say) -> None:
        """Take the jobs. ``notes``: folder for the children's files; ``most``: how many run at once."""
        self.waiting, self.working = list(jobs), list[tuple[ComparedRun, children.Child]]()
        self.notes, self.more, self.most, self.say = notes, more, most, say
        self.ends: dict[tuple[str, int], JobEnd] = {}
        self.told = set[str]()
        self.began = self.last = time.monotonic()

    def run_all(self) -> dict[tuple[str, int], JobEnd]:
        """Make all runs, and return (label, seed) -> how each ended. DiskError if the disk is full."""
        gc.collect()
        gc.freeze()  # otherwise every child would copy these objects page by page
        try:
            while self.waiting or self.working:
                while self.waiting and len(self.working) < self.most:
                    job = self.waiting.pop(0)
                    work = partial(carried_out, job, self.more)
                    child = children.forked(work, self.notes / f"{job.label}-seed-{job.seed}")
                    self.working.append((job, child))
                time.sleep(PAUSE)
                self.look()
        finally:
            gc.unfreeze()
            for _, child in self.working:
                children.kill(child)
        shutil.rmtree(self.notes, ignore_errors=True)
        return self.ends

    def look(self) -> None:
        """Collect the children that have ended. Report the rounds of the others once a minute."""
        for job, child in list(self.working):
            ended = children.reaped(child)
            if ended is None:
                continue
            self.working = [one for one in self.working if one[1].pid != child.pid]
            if ended.status == children.DISK:
                raise DiskError(ended.reason)
            why = f"a signal ({ended.signal}) ended it" if ended.signal else ended.reason
            self.ends[job.label, job.seed] = JobEnd("failed" if ended.signal else ended.status, why)
            self.tell(job, ended.said.get("said", ()))
        if self.working and time.monotonic() - self.last > MINUTE:
            self.last = time.monotonic()
            self.say("; ".join(rounds_text(job) for job, _ in self.working))

    def tell(self, job: ComparedRun, notices: Sequence[str]) -> None:
        """Report how a run ended, its new notices, and the time left."""
        for notice in notices:
            if notice not in self.told:
                self.told.add(notice)
                self.say(f"{job.label}, seed {job.seed}: {notice}")
        end, left = self.ends[job.label, job.seed], len(self.waiting) + len(self.working)
        self.last = time.monotonic()
        more = seconds_text(left * (self.last - self.began) / len(self.ends))
        rest = f"; {left} left, about {more}" if left else ""
        self.say(f"{job.label}, seed {job.seed}: {came_text(job, end)}{rest}")


def came_text(job: ComparedRun, end: JobEnd) -> str:
    """Return the outcome of a run in a few words."""
    if end.status != "done":
        return f"{end.status}: {end.reason.rstrip('.')}"
    final = RunFolder(job.folder).summary()["final"]
    figure = "rmse" if "rmse" in final else "accuracy"
    value = final.get(figure)
    return end.status if value is None else f"{figure} {value:.4f}"


def rounds_text(job: ComparedRun) -> str:
    """Return how far a run has come, as text."""
    done = 0
    with contextlib.suppress(OSError, LookupError):
        done = RunFolder(job.folder).rows()[-1]["round"]
    return f"{job.label}, seed {job.seed}: round {done} of {job.whole.config.rounds}"

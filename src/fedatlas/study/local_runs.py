"""Where the runs of a study are carried out: on this machine, in forked children. `cluster_runs` does the same on other machines."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from fedatlas.config import ExperimentConfig, bytes_of
from fedatlas.data.sources import load_dataset, read_once
from fedatlas.errors import FedatlasError
from fedatlas.machine import one_thread_an_operator
from fedatlas.setup.checked import Checked
from fedatlas.study import children
from fedatlas.study.children import Child, Ended
from fedatlas.study.design import ExecuteTable
from fedatlas.study.outcomes import outcome_of
from fedatlas.study.table import Outcome

PARALLEL = 2
LOOK = 0.2  # shortest pause in seconds between checks of the children's memory
SPARED = 100  # and this many times as long as a check takes, which walks through all their pages
REPEATED = (children.SPOILT, children.BUSY, children.DISK)


class Ending(NamedTuple):
    """The end of a run; ``outcome`` is None if the run has to be repeated."""

    ended: Ended
    outcome: Outcome | None


class Runs(Protocol):
    """Where runs are carried out."""

    def free(self) -> bool:
        """Return whether another run can begin now."""

    def begin(self, key: str, whole: Checked, folder: Path, *, tested: bool) -> None:
        """Begin a run in ``folder / "run"``; ``tested`` as in `More`."""

    def endings(self, pause: float) -> list[tuple[str, Ending]]:
        """Wait for at most ``pause`` seconds; return the keys of runs that have ended, and how."""

    def stop(self) -> None:
        """End all runs."""

    def where(self) -> str:
        """Return where the runs in hand are, for the progress; "" for this machine."""


class LocalRuns:
    """Runs in forked children, which are ended if they exceed their time or memory."""

    def __init__(self, how: ExecuteTable) -> None:
        self.how, self.most = how, how.parallel or PARALLEL
        self.memory = None if how.memory is None else bytes_of(how.memory)
        self.working: dict[str, Child] = {}
        self.peaks: dict[str, int] = {}
        self.look_again = 0.0

    def free(self) -> bool:
        """As in `Runs`."""
        return len(self.working) < self.most

    def begin(self, key: str, whole: Checked, folder: Path, *, tested: bool) -> None:
        """As in `Runs`."""
        preload(whole.config, whole.config.seed)
        self.working[key] = children.begin(whole, folder, tested=tested)

    def endings(self, pause: float) -> list[tuple[str, Ending]]:
        """As in `Runs`."""
        time.sleep(pause)
        now, busy, out = time.monotonic(), time.process_time(), list[tuple[str, Ending]]()
        watch = now >= self.look_again
        for key, child in list(self.working.items()):
            ended = children.reaped(child)
            if ended is None:
                if watch:
                    self.peaks[key] = max(self.peaks.get(key, 0), children.private_memory(child.pid))
                ended = self.exceeded(key, now - child.began)
                if ended is None:
                    continue
                children.kill(child)
            del self.working[key]
            again = ended.signal or ended.status in REPEATED
            out.append((key, Ending(ended, None if again else outcome_of(child.folder, ended, self.peaks.get(key, 0)))))
        if watch:
            self.look_again = now + max(LOOK, SPARED * (time.process_time() - busy))
        return out

    def exceeded(self, key: str, seconds: float) -> Ended | None:
        """Return the end of a run that exceeds its limits; None for none."""
        if self.how.seconds is not None and seconds > self.how.seconds:
            return Ended("timeout", f"It took longer than execute.seconds = {self.how.seconds:g} s.", 0, 0.0, {})
        if self.memory is not None and self.peaks.get(key, 0) > self.memory:
            return Ended("memory", f"It used more than execute.memory = {self.how.memory}.", 0, 0.0, {})
        return None

    def stop(self) -> None:
        """As in `Runs`."""
        for child in self.working.values():
            children.kill(child)
        self.working = {}

    def where(self) -> str:
        """As in `Runs`."""
        return ""


def preload(config: ExperimentConfig, seed: int) -> None:
    """Read the data in the parent, unless they are large; the child reports any error in them, and reads columns itself."""
    if config.columns:
        return
    with contextlib.suppress(FedatlasError):
        load_dataset(config.data, seed)


@contextlib.contextmanager
def warm() -> Iterator[None]:
    """Have this process ready to fork: data read once, one thread per operator, no garbage collection of what is shared."""
    with one_thread_an_operator(), read_once():
        gc.collect()
        gc.freeze()  # otherwise every child would copy these objects page by page
        try:
            yield
        finally:
            gc.unfreeze()


@contextlib.contextmanager
def runs_here(how: ExecuteTable) -> Iterator[Runs]:
    """Carry runs out on this machine."""
    with warm():
        yield LocalRuns(how)

"""Runs as children of one warm parent: forked with torch and the data loaded, and killed when the parent ends.

A child calls `ensure` in the run's folder and writes its outcome into a file next to it; only the parent writes the table.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from fedatlas.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    DiskError,
    DivergedError,
    FedatlasError,
    PrivacyError,
    first_line,
    lacks_memory,
)
from fedatlas.files import write_json
from fedatlas.privacy.mechanisms import made
from fedatlas.record.run_folder import LOCK, SUMMARY, RunFolder
from fedatlas.runs.ensure import came_to_its_end, ensure
from fedatlas.runs.finish import More
from fedatlas.runs.preview import dry_run
from fedatlas.setup.checked import Checked
from fedatlas.study.messages import MESSAGES, MessageCounter
from fedatlas.study.plain import Plain, Row

END, LOG = "end.json", "log.txt"
BUSY = "busy"  # another process still holds the run's folder
SPOILT = "spoilt"  # its checkpoint is unusable: the run restarts
DISK = "disk"  # the whole study stops
LOST = "lost"  # the node of a cluster that had it is gone: the run restarts elsewhere
STATUS_OF: dict[type[Exception], str] = {
    DivergedError: "diverged",
    CheckpointError: SPOILT,
    DiskError: DISK,
    ConfigError: "refused",
    DataError: "refused",
    PrivacyError: "refused",
}
PR_SET_PDEATHSIG = 1


class Child(NamedTuple):
    """A running child."""

    pid: int
    folder: Path
    began: float  # by time.monotonic


class Ended(NamedTuple):
    """The end of a child: by itself, with a status and a sentence, or by a signal."""

    status: str
    reason: str
    signal: int
    cpu_seconds: float
    said: Row


def begin(whole: Checked, folder: Path, *, tested: bool = True) -> Child:
    """Fork a child that runs an experiment in ``folder / "run"``; ``tested`` as in `More`."""
    return forked(partial(run_and_report, whole, folder / "run", tested), folder)


def forked(work: Callable[[], Plain], folder: Path) -> Child:
    """Fork a child that does this work and leaves its outcome in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / END).unlink(missing_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns about threads; a child uses none
        pid = os.fork()
    if pid:
        return Child(pid, folder, time.monotonic())
    code = 1
    try:
        die_with(parent)
        redirect_output(folder / LOG)
        write_json(folder / END, work())
        code = 0
    finally:
        os._exit(code)  # skip the parent's clean-up: nothing is closed, flushed or caught here


def die_with(parent: int) -> None:
    """Have this process killed when its parent ends, or now if the parent has already ended.

    On systems without this request (macOS), a run whose parent was killed runs to its end, and others wait for its folder's lock.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles it and kills its children
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def redirect_output(log: Path) -> None:
    """Redirect the child's output to a file, which may be the only trace of why it ended."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for number in (1, 2):
        os.dup2(file, number)


def run_and_report(whole: Checked, folder: Path, tested: bool = True) -> Plain:
    """Run the experiment; return its outcome."""
    counter = MessageCounter(folder.parent)
    said: Plain = {"status": "done"}
    try:
        if any(made(table.name).sums_only for table in whole.config.privacy):  # its sums can be opened only once
            empty_unfinished(folder)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run = ensure(whole, folder, More(report=False, intervals=False, tested=tested), observers=[counter])
        if any(row["bytes_up"] is None for row in RunFolder.open(folder).rows()):
            said["expected"] = expected(whole, run.summary)
    except Exception as error:  # noqa: BLE001  (any error of a plug-in is an outcome of its run)
        said = {"status": status_of(error), "reason": reason_of(error)}
        said["kept"] = said["status"] == "diverged" and (folder / SUMMARY).exists()
    finally:
        counter.close()
    return {**said, "memory": private_memory(os.getpid())}


def status_of(error: Exception) -> str:
    """Return the status of a run that ended with an error."""
    if "is being run by another process" in str(error):
        return BUSY
    known = next((status for kind, status in STATUS_OF.items() if isinstance(error, kind)), "failed")
    return "memory" if not isinstance(error, FedatlasError) and lacks_memory(error) else known


def reason_of(error: Exception) -> str:
    """Return the sentence that says why a run ended."""
    if isinstance(error, FedatlasError):
        return str(error).partition(" Everything up to")[0]
    return f"{type(error).__name__}: {first_line(error)}."


def empty_unfinished(folder: Path) -> None:
    """Empty the folder of a run that was killed, so that it restarts and equals an uninterrupted run.

    A sum that was opened and then lost is never requested again, so resuming under masks or encryption would leave a round without
    a result.
    """
    if folder.exists() and not came_to_its_end(folder):
        with RunFolder(folder).claimed():
            for each in folder.iterdir():
                if each.is_dir():
                    shutil.rmtree(each)
                elif each.name != LOCK:
                    each.unlink()
            os.truncate(folder.parent / MESSAGES, 0)


def expected(whole: Checked, summary: Row) -> Plain:
    """Return the expected bytes, messages and operations of a run with secret cohorts, whose real values would reveal who took part.

    Operations: a backward pass counts as two forward passes, for each example of a round.
    """
    found, rounds = dry_run(whole, baselines=False), summary["rounds"]
    trained = 3 * summary["forward_flops"] * found["examples_per_round"]
    out = {"bytes_up": found["bytes_up_per_round"], "bytes_down": found["bytes_down_per_round"], "flops": trained}
    out |= {"messages_up": found["returning"], "messages_down": found["cohort"]}
    return {key: value * rounds for key, value in out.items()}


def private_memory(pid: int) -> int:
    """Return the bytes that a process does not share with the parent it was forked from; 0 if the system does not report it."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))
    return 0


def reaped(child: Child) -> Ended | None:
    """Return how a child ended; None while it runs."""
    pid, status, usage = os.wait4(child.pid, os.WNOHANG)
    if not pid:
        return None
    killed = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    spent = usage.ru_utime + usage.ru_stime
    try:
        said = json.loads((child.folder / END).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        code = os.waitstatus_to_exitcode(status)
        said = {"status": "failed", "reason": f"The run ended without a report (exit code {code})."}
    else:
        killed = 0
    return Ended(said["status"], said.get("reason", ""), killed, spent, said)


def kill(child: Child) -> None:
    """Kill a child and wait for it."""
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(child.pid, signal.SIGKILL)
        os.waitpid(child.pid, 0)

"""Runs as children of one warm parent: forked when torch and the data are there already, dead when the parent is.

A child calls `ensure` in the run's folder and writes how it ended into a file beside it; only the parent writes the table.
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
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedatlas.config import ExperimentConfig
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
from fedatlas.record.run_folder import LOCK, SUMMARY, RunFolder
from fedatlas.runs.ensure import came_to_its_end, ensure
from fedatlas.runs.preview import dry_run
from fedatlas.study.messages import MESSAGES, MessageCounter

END, LOG = "end.json", "log.txt"
BUSY = "busy"  # another process still holds the run's folder
SPOILT = "spoilt"  # its checkpoint cannot be used: the run begins anew
DISK = "disk"  # the study stops, whole
SEALED = {"secagg", "paillier"}  # mechanisms whose sums are opened once
PR_SET_PDEATHSIG = 1


class Child(NamedTuple):
    """A run at work."""

    pid: int
    folder: Path
    began: float  # by time.monotonic


class Ended(NamedTuple):
    """How a child ended: by itself, with a status and a sentence, or by a signal."""

    status: str
    reason: str
    signal: int
    cpu_seconds: float
    said: Mapping[str, Any]


def begin(config: ExperimentConfig, folder: Path) -> Child:
    """Fork a child that runs a configuration in ``folder / "run"``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / END).unlink(missing_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of threads; a child uses none of them
        pid = os.fork()
    if pid:
        return Child(pid, folder, time.monotonic())
    code = 1
    try:
        die_with(parent)
        redirect_output(folder / LOG)
        write_json(folder / END, run_and_report(config, folder / "run"))
        code = 0
    finally:
        os._exit(code)  # nothing of the parent's is closed, flushed or caught here


def die_with(parent: int) -> None:
    """Have this process killed when its parent ends; at once where that has happened already.

    Where the system cannot be asked for it (macOS), a run whose parent was killed ends by itself, and its folder's lock is waited for.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides, and kills
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def redirect_output(log: Path) -> None:
    """Send what the child prints to a file, which tells why it ended where nothing else does."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for number in (1, 2):
        os.dup2(file, number)


def run_and_report(config: ExperimentConfig, folder: Path) -> dict[str, Any]:
    """Run the configuration; return how it ended."""
    counter = MessageCounter(folder.parent)
    try:
        if any(table.name in SEALED for table in config.privacy):
            empty_unfinished(folder)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run = ensure(config, folder, report=False, observers=[counter], intervals=False)
        secret = any(row["bytes_up"] is None for row in RunFolder.open(folder).rows())
        return {"status": "done", **ending(), **(expected(config, run.summary) if secret else {})}
    except DivergedError as error:
        kept = (folder / SUMMARY).exists()
        return {"status": "diverged", "reason": str(error).partition(" Everything up to")[0], "kept": kept, **ending()}
    except CheckpointError as error:
        return {"status": SPOILT, "reason": str(error)}
    except DiskError as error:
        return {"status": DISK, "reason": str(error)}
    except (ConfigError, DataError, PrivacyError) as error:
        status = BUSY if "is being run by another process" in str(error) else "refused"
        return {"status": status, "reason": str(error), **ending()}
    except FedatlasError as error:
        return {"status": "failed", "reason": str(error), **ending()}
    except Exception as error:  # noqa: BLE001  (whatever a plug-in raises is an outcome of its run)
        status = "memory" if lacks_memory(error) else "failed"
        return {"status": status, "reason": f"{type(error).__name__}: {first_line(error)}.", **ending()}
    finally:
        counter.close()


def empty_unfinished(folder: Path) -> None:
    """Empty the folder of a run that was killed, so that it begins again and equals an uninterrupted run.

    A sum that was opened and then lost is never asked for again: a resumed run under masks or encryption would have a round without result.
    """
    if folder.exists() and not came_to_its_end(folder):
        with RunFolder(folder).claimed():
            for each in folder.iterdir():
                if each.is_dir():
                    shutil.rmtree(each)
                elif each.name != LOCK:
                    each.unlink()
            os.truncate(folder.parent / MESSAGES, 0)


def ending() -> dict[str, Any]:
    """The child's memory at its end."""
    return {"memory": private_memory(os.getpid())}


def expected(config: ExperimentConfig, summary: Mapping[str, Any]) -> dict[str, Any]:
    """The expected bytes, messages and operations of a run whose cohorts are secret: what was seen would show who took part.

    Operations: a backward pass counts as two forward passes, for each example of a round.
    """
    found, rounds = dry_run(config, baselines=False), summary["rounds"]
    trained = 3 * summary["forward_flops"] * found["examples_per_round"]
    out = {"bytes_up": found["bytes_up_per_round"], "bytes_down": found["bytes_down_per_round"], "flops": trained}
    out |= {"messages_up": found["returning"], "messages_down": found["cohort"]}
    return {"expected": {key: value * rounds for key, value in out.items()}}


def private_memory(pid: int) -> int:
    """Bytes that a process holds beyond what it shares with the parent that it was forked from; 0 where the system does not say."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))
    return 0


def reaped(child: Child) -> Ended | None:
    """How a child ended; None while it is at work."""
    pid, status, usage = os.wait4(child.pid, os.WNOHANG)
    if not pid:
        return None
    killed = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    spent = usage.ru_utime + usage.ru_stime
    try:
        said = json.loads((child.folder / END).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        said = {}
    if said:
        return Ended(said["status"], said.get("reason", ""), 0, spent, said)
    return Ended(
        "failed", f"The run ended without a report (exit code {os.waitstatus_to_exitcode(status)}).", killed, spent, {}
    )


def kill(child: Child) -> None:
    """End a child at once, and wait for it."""
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(child.pid, signal.SIGKILL)
        os.waitpid(child.pid, 0)

"""Kills a run in every way a machine can, continues it, and prints as JSON whether it ended as one never stopped.

A script of its own, started by test_interruptions.py: it forks many short lives from one warm process.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedatlas import Experiment, api, files
from fedatlas.errors import FedatlasError
from fedatlas.rng import numpy_stream

TABLES: dict[str, Any] = {
    "rounds": 6,
    "partition": {"name": "majority_even", "clients": 12},
    "cohort": {"fraction": 0.5},
    "failures": {"dropout": 0.2},
    "algorithm": {"name": "scaffold"},
    "local": {"lr": 0.01},
    "model": {"hidden": [200]},
    "engine": {"plan": "program"},  # deriving a stack would take half of each life
}


def start_or_resume(path: Path) -> None:
    """One life: begins the run, or continues it where there is a checkpoint."""
    if any((path / "checkpoint").glob("manifest-*.json")):
        api.resume(path, baselines=False)
        return
    shutil.rmtree(path, ignore_errors=True)
    api.run(Experiment.of(**TABLES), out=path, baselines=False)


def fork(work: Callable[[], None]) -> int:
    """A child that does ``work`` and exits: 0, or 2 with an error of ours."""
    pid = os.fork()
    if pid:
        return pid
    code = 0
    try:
        work()
    except FedatlasError:
        code = 2
    except KeyboardInterrupt:
        code = 130
    os._exit(code)


def result(path: Path) -> dict[str, Any]:
    """What must not depend on interruptions."""
    skip = {"seconds", "seconds_by_phase", "peak_memory_bytes"}
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    kept = [{k: v for k, v in row.items() if k not in skip} for row in rows]
    return {"rows": kept, "model": (path / "model.safetensors").read_bytes().hex()}


def kills_at_random_times(base: Path, kills: int, seconds: float) -> int:
    """``kill -9`` after a random part of the time a whole run takes, again and again; returns how often it hit."""
    draw, hit, number = numpy_stream(0, "test", "kill"), 0, 0
    while hit < kills:
        path = base / f"random-{number}"
        number += 1
        for _ in range(100):
            pid = fork(lambda path=path: start_or_resume(path))
            time.sleep(draw.uniform(0, seconds))
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            status = os.waitpid(pid, 0)[1]
            if os.WIFEXITED(status):
                break
            hit += 1
        check(path)
    return hit


def kills_at_writes(base: Path, apart: int) -> int:
    """``kill -9`` just before and just after every ``apart``-th replacement of a file, through two rounds of writing."""
    count = 0
    for after in (False, True):
        for nth in range(3, 40, apart):
            path = base / f"write-{after}-{nth}"

            def work(path: Path = path, nth: int = nth, after: bool = after) -> None:
                replace, calls = os.replace, 0

                def deadly(*arguments: Any) -> None:
                    nonlocal calls
                    calls += 1
                    if calls == nth and not after:
                        os.kill(os.getpid(), signal.SIGKILL)
                    replace(*arguments)
                    if calls == nth:
                        os.kill(os.getpid(), signal.SIGKILL)

                files.os.replace = deadly  # type: ignore[assignment]
                start_or_resume(path)

            status = os.waitpid(fork(work), 0)[1]
            count += os.WIFSIGNALED(status)
            os.waitpid(fork(lambda path=path: start_or_resume(path)), 0)
            check(path)
    return count


def full_disk(base: Path, limit: int) -> int:
    """A limit on the size of files: the run ends with our error, and continues once there is room."""
    path = base / f"full-{limit}"

    def work() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        start_or_resume(path)

    status = os.waitpid(fork(work), 0)[1]
    code = os.waitstatus_to_exitcode(status)
    os.waitpid(fork(lambda: start_or_resume(path)), 0)
    check(path)
    return code


def polite(base: Path, number: int) -> int:
    """Ctrl-C and SIGTERM, as soon as the first rows are written: however fast the machine is at that moment."""

    def work() -> None:
        for each in (signal.SIGINT, signal.SIGTERM):  # a shell's background job begins with SIGINT ignored
            signal.signal(each, signal.default_int_handler)
        start_or_resume(path)

    path = base / f"signal-{number}"
    pid, rows = fork(work), path / "metrics.jsonl"
    while not rows.exists() or rows.stat().st_size == 0:
        time.sleep(0.001)
    os.kill(pid, number)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.waitpid(fork(lambda: start_or_resume(path)), 0)
    check(path)
    return code


def check(path: Path) -> None:
    """The run must be finished and the same as the reference."""
    while not (path / "model.safetensors").exists() or not (path / "summary.json").exists():
        os.waitpid(fork(lambda: start_or_resume(path)), 0)
    if result(path) != REFERENCE:
        sys.exit(f"{path.name} ended differently")


def main(base: Path, kills: int, apart: int) -> None:
    """So many kills at random times, the other ways to stop, and kills at every ``apart``-th write; prints the counts."""
    global REFERENCE  # noqa: PLW0603  # one value, set once, read by every check
    started = time.perf_counter()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(
            0, {min(os.sched_getaffinity(0))}
        )  # OpenMP threads do not survive a fork: one core, no threads
    start_or_resume(base / "warm")
    start = time.perf_counter()
    os.waitpid(fork(lambda: start_or_resume(base / "reference")), 0)
    seconds = time.perf_counter() - start
    REFERENCE = result(base / "reference")
    counts = {
        "random": kills_at_random_times(base, kills, seconds),
        "writes": kills_at_writes(base, apart),
        "full": [full_disk(base, limit) for limit in (2_000, 20_000, 60_000)],
        "signals": [polite(base, number) for number in (signal.SIGINT, signal.SIGTERM)],
        "seconds": time.perf_counter() - started,
    }
    sys.stdout.write(json.dumps(counts) + "\n")


REFERENCE: dict[str, Any] = {}

if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))

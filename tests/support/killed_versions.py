"""Kills a run around a rejected round and around a rollback, continues it, and compares it with one never stopped.

A script of its own, started by test_versions.py: ``python killed_versions.py FOLDER TABLES``. It forks short lives from one
warm process, and prints how many were killed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedatlas import Experiment, api, files
from interruptions import fork, result

KILLS = [(name, after) for name in ("000003.json", "manifest-000003.json") for after in (False, True)]
BACK = 1  # the version of the rollback


def deadly(name: str, *, after: bool) -> None:
    """Kill this process at the replacement of a file of this name, before or after it."""
    replace = os.replace

    def replaced(part: Any, path: Any) -> None:
        if Path(path).name == name and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        replace(part, path)
        if Path(path).name == name:
            os.kill(os.getpid(), signal.SIGKILL)

    files.os.replace = replaced  # type: ignore[assignment]


def lived(work: Callable[[], object]) -> bool:
    """Do work in a process of its own; return whether it was killed. SystemExit if it failed otherwise."""
    status = os.waitpid(fork(lambda: (work(), None)[1]), 0)[1]
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        sys.exit("a life failed")
    return os.WIFSIGNALED(status)


def begun(path: Path, tables: dict[str, Any]) -> None:
    api.run(Experiment.of(**tables), out=path, baselines=False)


def outcome(path: Path) -> Any:
    """What must not depend on kills."""
    return result(path), [one._replace(time=0.0) for one in api.versions(path)]


def main(base: Path, tables: dict[str, Any]) -> None:
    """Kill in every place; print the number of kills."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # one core, no threads: they do not survive a fork
    begun(base / "reference", tables)
    shutil.copytree(base / "reference", base / "rolled")
    hit, there = 0, outcome(base / "reference")
    api.rollback(base / "rolled", BACK)
    api.resume(base / "rolled")
    rolled = outcome(base / "rolled")
    for name, after in KILLS:
        path = base / f"round-{name}-{after}"

        def first(path: Path = path, name: str = name, after: bool = after) -> None:
            deadly(name, after=after)
            begun(path, tables)

        hit += lived(first)
        lived(lambda path=path: api.resume(path))
        if outcome(path) != there:
            sys.exit(f"{path.name} ended differently")
    for after in (False, True):
        path = base / f"rollback-{after}"
        shutil.copytree(base / "reference", path)

        def back(path: Path = path, after: bool = after) -> None:
            deadly("manifest-000004.json", after=after)
            api.rollback(path, BACK)

        hit += lived(back)
        if not after:
            api.rollback(path, BACK)
        lived(lambda path=path: api.resume(path))
        if outcome(path) != rolled:
            sys.exit(f"{path.name} ended differently")
    sys.stdout.write(f"{hit}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))

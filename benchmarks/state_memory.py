"""Many clients that keep a state: ``python benchmarks/state_memory.py [--clients 1000] [--rounds 1] [--algorithm scaffold]``.

CNN2 (1.66 million parameters) on MNIST, ten rows a client, every client in every round: a whole run, checkpoint and report included, with
``engine.state_memory`` as it is by default. Prints the peak memory over all processes (sum of PSS, looked at four times a second), the
most that lay on disk, and what the clients' states amount to. Wants about twice that much room below ``--folder``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from contest import watched

LIMIT = 6 << 30
ROWS = 10
EVERY = 0.25  # seconds between two looks
GIB = 1 << 30


def tables(clients: int, rounds: int, algorithm: str) -> dict[str, Any]:
    """The experiment."""
    return {
        "rounds": rounds,
        "data": {"name": "mnist", "limit": ROWS * clients},
        "partition": {"name": "iid", "clients": clients},
        "model": {"name": "cnn2"},
        "algorithm": {"name": algorithm},
        "local": {"batch_size": ROWS, "lr": 0.01},
        "evaluation": {"every": max(rounds, 1), "on": "validation", "validation": 0.25},
        "checkpoint": {"every": max(rounds, 1), "keep": 1},
    }


def inside(folder: Path, given: dict[str, Any]) -> None:
    """The run, in a process that is watched."""
    from fedatlas import Experiment, run

    run(Experiment.of(**given), out=folder / "run", baselines=False)


def on_disk(folder: Path) -> int:
    """Bytes of all files below a folder; files come and go while one looks."""
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(where) / name).stat().st_size
            except FileNotFoundError:
                continue
    return total


def measure(clients: int, rounds: int, algorithm: str, base: Path | None) -> dict[str, Any]:
    """Runs it in a process of its own; the run and what spills lie in a folder that is removed."""
    folder = Path(tempfile.mkdtemp(prefix="fedatlas-states-", dir=base))
    most, over = [0], threading.Event()

    def look() -> None:
        while not over.wait(4 * EVERY):
            most[0] = max(most[0], on_disk(folder))

    thread = threading.Thread(target=look)
    started = time.perf_counter()
    given = json.dumps(tables(clients, rounds, algorithm))
    command = [sys.executable, __file__, "--inside", str(folder), given]
    process = subprocess.Popen(command, env={**os.environ, "TMPDIR": str(folder)})
    thread.start()
    try:
        with watched(process.pid, EVERY) as peak:
            code = process.wait()
        seconds = time.perf_counter() - started
        if code:
            raise SystemExit(f"the run ended with exit code {code}.")
        summary = json.loads((folder / "run" / "summary.json").read_text(encoding="utf-8"))
        states = sum(path.stat().st_size for path in (folder / "run" / "checkpoint").glob("client-*"))
        rows = (folder / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    finally:
        over.set()
        thread.join()
        process.kill()
        shutil.rmtree(folder, ignore_errors=True)
    found = {"clients": clients, "rounds": rounds, "algorithm": algorithm, "parameters": summary["parameters"]}
    found |= {"states": states, "memory": peak.bytes, "disk": most[0], "seconds": seconds}
    return found | {"took_part": len(json.loads(rows[-1])["clients"]), "met": peak.bytes <= LIMIT}


def said(found: dict[str, Any]) -> str:
    """One row of Markdown."""
    sizes = " | ".join(f"{found[key] / GIB:.2f}" for key in ("states", "memory", "disk"))
    return f"| {found['algorithm']} | {found['took_part']:,} | {found['rounds']} | {sizes} | {found['seconds']:.0f} |"


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--algorithm", default="scaffold")
    parser.add_argument(
        "--folder", type=Path, help="where the run's files go; the system's temporary folder by default"
    )
    parser.add_argument("--inside", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside:
        inside(Path(given.inside[0]), json.loads(given.inside[1]))
        return
    found = measure(given.clients, given.rounds, given.algorithm, given.folder)
    print("| algorithm | clients | rounds | states, GiB | peak memory, GiB | on disk at most, GiB | seconds |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    print(said(found))
    print(f"{LIMIT / GIB:.0f} GiB are allowed: {'met' if found['met'] else 'MISSED'}.")


if __name__ == "__main__":
    main()

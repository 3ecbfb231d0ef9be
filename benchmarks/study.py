"""What a study costs and withstands: ``python benchmarks/study.py costs|kills|planted [--json FILE]``.

``costs``    overhead of a run beside the same run in a bare loop of forks; ``--table FILE``: seconds, hours and bytes a run
``kills``    SIGKILL at ``--moments`` moments of a study, of its process and of its children; its table beside one that was never killed
``planted``  how often simultaneous intervals hold every effect that was planted, over ``--tables`` tables

`kills` works through one part of ten moments after another and keeps each in ``--out``: the same command goes on.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import resource
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from fedatlas.data.sources import load_dataset, read_once
from fedatlas.files import write_json
from fedatlas.rng import numpy_stream
from fedatlas.study import children
from fedatlas.study.design import study_of
from fedatlas.study.effects import effects
from fedatlas.study.measurements import measurements_of
from fedatlas.study.plan import plan_of
from fedatlas.study.study import Study
from fedatlas.study.table import Table, started

DIGITS: dict[str, Any] = {
    "seeds": [1, 2, 3],
    "base": {"rounds": 10, "data": {"limit": 600}, "partition": {"name": "iid", "clients": 4}},
    "factor": [
        {"name": "nodes", "role": "setting", "key": "partition.clients", "levels": [4, 10]},
        {
            "name": "scheme",
            "role": "choice",
            "level": [
                {"name": "fedavg", "set": {"algorithm.name": "fedavg"}},
                {"name": "fedprox", "set": {"algorithm.name": "fedprox", "algorithm.mu": 0.1}},
                {"name": "masked", "set": {"privacy": [{"name": "secagg"}]}},
            ],
        },
    ],
}
"""24 runs of half a second: 18 of cells, 6 baselines."""
PART = 10  # moments of a part
OVERHEAD, MOST_BYTES = 0.020, 10_000  # seconds and bytes of a run
VOLATILE = ("attempts", "owner", "host", "pid", "start")
TIMED = ("seconds", "seconds_by_phase", "peak_memory_bytes", "cpu_seconds", "memory_mib")


def digits(parallel: int) -> Study:
    """The study that is measured and killed."""
    return Study(study_of({**DIGITS, "execute": {"parallel": parallel}}, "digits", Path()))


# ---------------------------------------------------------------------- costs


def spent() -> float:
    """Processor seconds of this process and of the children that have ended."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def clocked(work: Callable[[], Any]) -> tuple[float, float]:
    """(wall-clock, processor) seconds."""
    wall, own = time.perf_counter(), spent()
    work()
    return time.perf_counter() - wall, spent() - own


def bare(folder: Path) -> None:
    """The study's runs one after the other, each forked and waited for, and nothing else."""
    with read_once():
        for number, job in enumerate(plan_of(digits(1).file).known()):
            assert job.config is not None
            load_dataset(job.config.data, job.seed)
            child = children.begin(job.config, folder / str(number))
            os.waitpid(child.pid, 0)


def costs(repeats: int, path: Path | None) -> dict[str, Any]:
    """Seconds a run that a study needs beyond the run itself, of medians; of a table, what its runs took.

    On a machine that others use, too, processor seconds are to be looked at, and more repeats to be asked for.
    """
    plain, whole = [], []
    runs = len(plan_of(digits(1).file).known())  # what is read and imported once is there now
    with tempfile.TemporaryDirectory() as name:
        for number in range(repeats):
            here, file = Path(name) / f"bare-{number}", Path(name) / f"study-{number}" / "t.sqlite"
            plain.append(clocked(lambda: bare(here)))  # noqa: B023  (called at once)
            whole.append(clocked(lambda: digits(1).run(table=file)))  # noqa: B023
        size = file.stat().st_size
    out: dict[str, Any] = {"runs": runs, "repeats": repeats, "bytes_a_run_of_10_rounds": size / runs}
    for place, kind in enumerate(("wall", "processor")):
        one, other = (median(pair[place] for pair in pairs) / runs for pairs in (plain, whole))
        out |= {f"seconds_a_run_{kind}": one, f"overhead_{kind}": other - one}
    return out | (of_table(path) if path else {})


def of_table(path: Path) -> dict[str, Any]:
    """What the finished runs of a table took."""
    table = Table.open(path)
    found: dict[str, Any] = {}
    for name in table.studies():
        frame = table.frame(name)
        done = frame[frame.status == "done"]
        each = done.groupby("kind").cpu_seconds.agg(["count", "mean", "sum"])
        found[name] = {
            "status": frame.status.value_counts().to_dict(),
            "processor_seconds": {kind: dict(row) for kind, row in each.iterrows()},
            "hours_of_two_cores_1000_runs": 1000 * float(done.cpu_seconds.mean()) / 2 / 3600,
        }
    ended = table.db.execute("SELECT count(*) FROM rounds").fetchone()[0]
    return {"studies": found, "bytes_a_run": path.stat().st_size / max(ended, 1)}


# ---------------------------------------------------------------------- kills


def begun(path: Path) -> int:
    """A process that runs the study into a table."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            code = 0 if digits(2).run(table=path) else 1
        finally:
            os._exit(code)
    return pid


def children_of(pid: int) -> list[int]:
    """The children of a process."""
    with contextlib.suppress(OSError):
        return [int(x) for x in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def ended(pid: int, seconds: float) -> bool:
    """Waits for a process that is no child of this one."""
    end = time.monotonic() + seconds
    while started(pid) is not None:
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def disturbed(path: Path, moments: int, seed: int) -> Iterator[dict[str, Any]]:
    """Kills the study or one of its children at random moments until it has ended ``moments`` times; what was hit, and orphans."""
    stream = numpy_stream(seed, "kills")
    pid, number = begun(path), 0
    while number < moments:
        time.sleep(stream.uniform(0.02, 0.8))
        below, whom = children_of(pid), ("study", "child")[number % 2]
        if os.waitpid(pid, os.WNOHANG)[0]:  # it came to its end between two moments: once more, from nothing
            path.unlink()
            pid = begun(path)
            continue
        if whom == "child":
            if not below:
                continue
            os.kill(below[int(stream.integers(len(below)))], signal.SIGKILL)
            yield {"hit": whom, "orphans": 0}
        else:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            yield {"hit": whom, "orphans": sum(not ended(child, 10.0) for child in below)}
            pid = begun(path)
        number += 1
    os.waitpid(pid, 0)


def untimed(value: Any) -> Any:
    """Plain values without what no two runs have alike."""
    if isinstance(value, Mapping):
        return {key: untimed(x) for key, x in value.items() if key not in TIMED}
    return [untimed(x) for x in value] if isinstance(value, list) else value


def told(path: Path) -> dict[str, Any]:
    """A table without attempts, owners, plans, seconds and memory: run -> its columns, rows and members.

    A plan names the steps that its last process worked through: none where only the end was left to write.
    """
    table = Table.open(path)
    columns = [name for _, name, *_ in table.db.execute("PRAGMA table_info(runs)") if name not in VOLATILE]
    kept = [name for name in columns if name not in ("summary", "responses", "run_key", "plan")]
    out: dict[str, Any] = {}
    quoted = ", ".join(f'"{name}"' for name in kept)
    for key, given, *row in table.db.execute(f"SELECT run_key, responses, {quoted} FROM runs ORDER BY run_key"):  # noqa: S608  (names of columns)
        assert key not in out, "a run stands there twice"
        out[key] = [row, untimed(json.loads(given or "{}")), untimed(table.rows(key))]
    out["members"] = table.db.execute("SELECT * FROM members ORDER BY run_key, kind, levels").fetchall()
    return out


def kills(moments: int, out: Path) -> dict[str, Any]:
    """Parts of ten moments, each with a table of its own that is held against one that nobody killed."""
    out.mkdir(parents=True, exist_ok=True)
    whole = out / "whole" / "table.sqlite"
    assert digits(2).run(table=whole)
    parts = []
    for part in range(-(-moments // PART)):
        kept = out / f"part-{part}.json"
        if not kept.exists():
            path = out / str(part) / "table.sqlite"
            shutil.rmtree(path.parent, ignore_errors=True)
            hits = list(disturbed(path, min(PART, moments - part * PART), part))
            digits(2).run(table=path)
            one, other = told(path), told(whole)
            lost, twice = other.keys() - one.keys(), one.keys() - other.keys()
            differ = [key for key in one.keys() & other.keys() if one[key] != other[key]]
            attempts = Table.open(path).db.execute("SELECT sum(attempts) FROM runs").fetchone()[0]
            found = {"hits": hits, "lost": len(lost), "strange": len(twice), "differ": len(differ)}
            write_json(kept, {**found, "attempts": attempts, "runs": len(other) - 1})
        parts.append(json.loads(kept.read_text()))
        print(f"part {part}: {parts[-1]['attempts']} attempts at {parts[-1]['runs']} runs", flush=True)
    hits = [hit for part in parts for hit in part["hits"]]
    return {
        "moments": len(hits),
        "of_the_study": sum(hit["hit"] == "study" for hit in hits),
        "of_a_child": sum(hit["hit"] == "child" for hit in hits),
        "orphans": sum(hit["orphans"] for hit in hits),
        **{key: sum(part[key] for part in parts) for key in ("lost", "strange", "differ", "attempts", "runs")},
    }


# ---------------------------------------------------------------------- planted effects

NOISE = {"a": 0.01, "b": 0.03, "c": 0.06, "d": 0.02}  # of each choice
SHARED = 0.02  # what all choices of a setting and seed have in common


def planted(stream: np.random.Generator | None) -> list[dict[str, Any]]:
    """A table of 3 x 2 settings, 4 choices and 3 seeds with known effects; without a stream the effects alone."""
    rows = []
    for (i, nodes), (k, skew), seed in itertools.product(enumerate("246"), enumerate("01"), range(3)):
        shared = SHARED * stream.normal() if stream else 0.0
        for j, choice in enumerate(NOISE):
            value = 0.7 - 0.08 * i + 0.1 * k + (0.02, 0.04, -0.05, 0.0)[j] + 0.05 * (i == 2 and j == 1)
            noise = shared + NOISE[choice] * stream.normal() if stream else 0.0
            cell = {"nodes": nodes, "skew": skew, "choice": choice, "seed": seed, "accuracy": value + noise}
            rows.append({**cell, "run_key": repr(cell), "kind": "cell", "status": "done", "rounds": 1})
    return rows


def coverage(tables: int) -> dict[str, Any]:
    """The share of tables whose simultaneous intervals hold every effect."""

    def found(rows: list[dict[str, Any]], seed: int) -> Any:
        return effects(measurements_of(rows, ["nodes", "skew"], ["choice"]), "accuracy", seed=seed, draws=1000).effects

    true = {(e.factors, e.levels): e.estimate for e in found(planted(None), 0)}
    hits = 0
    for number in range(tables):
        each = found(planted(np.random.default_rng(number)), number)
        hits += all(e.low <= true[e.factors, e.levels] <= e.high for e in each)
    return {"tables": tables, "effects": len(true), "covered": hits / tables}


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["costs", "kills", "planted"])
    parser.add_argument("--table", type=Path, help="a study's table.sqlite")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--moments", type=int, default=50)
    parser.add_argument("--tables", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=Path("study-kills"), help="where `kills` works")
    parser.add_argument("--json", type=Path, help="the figures, and how busy the machine was")
    return parser.parse_args()


def main() -> None:
    """One subcommand."""
    given = arguments()
    if given.what == "kills":
        found = kills(given.moments, given.out)
    else:
        found = costs(given.repeats, given.table) if given.what == "costs" else coverage(given.tables)
    found["load"] = os.getloadavg()[0]  # processes that wanted a core in the last minute
    text = json.dumps(found, indent=1)
    print(text)
    if given.json:
        given.json.write_text(text + "\n")


if __name__ == "__main__":
    main()

"""What a cluster costs: ``python benchmarks/cluster.py rounds|start|study|large [--nodes 2 4] [--clients 1000] [--folder DIR]``.

Nodes are Ray nodes of this machine with one core each, each its own process group.

``rounds``  a round of MLP1 (100 clients of 600 MNIST rows, 5 epochs, batches of 10) beside the pool's with as many workers
``start``   seconds from the command until round 1 begins and from the last round to the end, and what a call costs
``study``   60 runs on as many nodes beside the same study here; the tables are compared, the driver's processor seconds are told
``large``   SCAFFOLD on CNN2 (1.66 million parameters) with ``--clients`` of ten rows, each with a state; a node is killed with -9 in
            the first round and one is added; the models and states are compared, bit for bit, with those of one machine

Processor seconds are of all processes, so they hold on a busy machine, too. ``large`` wants 14 MB of disk per client.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

import local_cluster  # noqa: E402
from local_cluster import LocalCluster, begun, descendants  # noqa: E402

STORE = 1 << 30  # bytes of each node's object store
ROUND, READY = 1.25, 10.0  # a round beside the pool's at most; seconds until the cluster is on
TICKS = os.sysconf("SC_CLK_TCK")

MLP1: dict[str, Any] = {
    "data": {"name": "mnist"},
    "partition": {"name": "iid", "clients": 100},
    "cohort": {"size": 20},
    "model": {"name": "mlp1"},
    "local": {"batch_size": 10, "epochs": 5, "lr": 0.01},
    "evaluation": {"every": 1000},
    "engine": {"plan": "program"},
}


def large(clients: int, rounds: int) -> dict[str, Any]:
    """The run of many clients with a state."""
    return {
        "rounds": rounds,
        "data": {"name": "mnist", "limit": 10 * clients},
        "partition": {"name": "iid", "clients": clients},
        "model": {"name": "cnn2"},
        "algorithm": {"name": "scaffold"},
        "local": {"batch_size": 10, "lr": 0.01},
        "evaluation": {"every": max(rounds, 1), "on": "validation", "validation": 0.25},
        "checkpoint": {"every": max(rounds, 1), "keep": 1},
        "engine": {"plan": "program"},
    }


def cpu(run: int, cluster: LocalCluster | None) -> float:
    """Processor seconds of a run and of a cluster: all processes that live, and those that they have waited for."""
    total, roots = (
        0,
        [run, *((node.pid for node in cluster.nodes) if cluster else ()), *(begun(cluster) if cluster else ())],
    )
    for pid in {pid for root in roots for pid in descendants(root)}:
        with contextlib.suppress(OSError):
            fields = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15]))
    return total / TICKS


class Watched:
    """A run in a process of its own."""

    def __init__(self, given: dict[str, Any], out: Path) -> None:
        self.out, self.began = out, time.perf_counter()
        command = [sys.executable, __file__, "inside", json.dumps(given), str(out)]
        self.process = subprocess.Popen(command, env={**os.environ, "TMPDIR": str(out.parent)})

    def rows(self) -> list[dict[str, Any]]:
        """Rows that have landed."""
        path = self.out / "metrics.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def until(self, round: int) -> None:
        """Wait until a round has landed."""
        while len(self.rows()) <= round:
            if self.process.poll() is not None:
                raise SystemExit(f"the run ended with exit code {self.process.returncode} before round {round} landed.")
            time.sleep(0.05)

    def end(self) -> None:
        """Wait for the end."""
        if code := self.process.wait():
            raise SystemExit(f"the run ended with exit code {code}.")


def inside(given: dict[str, Any], out: Path) -> None:
    """The run, in a process that is watched."""
    from fedatlas import Experiment, run

    run(Experiment.of(**given), out=out, baselines=False)


def trained(row: dict[str, Any]) -> float:
    """Seconds of a round without its evaluation."""
    return float(row["seconds"] - row["seconds_by_phase"]["evaluate"])


def round_of(given: dict[str, Any], folder: Path, cluster: LocalCluster | None, rounds: int) -> tuple[float, float]:
    """Return the median wall-clock seconds and the mean processor seconds of rounds 2 to ``rounds``."""
    shutil.rmtree(folder / "run", ignore_errors=True)
    run = Watched({**given, "rounds": rounds + 1}, folder / "run")
    run.until(1)
    before = cpu(run.process.pid, cluster)
    run.until(rounds)
    spent = cpu(run.process.pid, cluster) - before
    run.end()
    return median(trained(row) for row in run.rows()[2 : rounds + 1]), spent / (rounds - 1)


def rounds(counts: Sequence[int], folder: Path, many: int, times: int) -> Iterator[str]:
    """A row per number of nodes; pool and cluster take turns, and the best of each counts: other programs only add to it."""
    yield "| nodes of a core | pool, s a round | cluster, s a round | ratio | processor s, pool | cluster | ratio |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for count in counts:
        here, there = [], []
        for _ in range(times):
            here.append(round_of({**MLP1, "engine": {**MLP1["engine"], "workers": count}}, folder, None, many))
            with LocalCluster(count) as cluster:
                engine = {**MLP1["engine"], "workers": count, "cluster": cluster.address}
                there.append(round_of({**MLP1, "engine": engine}, folder, cluster, many))
        (wall, work), (other, more) = (tuple(map(min, zip(*found, strict=True))) for found in (here, there))
        shown = f"| {count} | {wall:.2f} | {other:.2f} | {other / wall:.2f} |"
        yield f"{shown} {work:.2f} | {more:.2f} | {more / work:.2f} |"


def start(counts: Sequence[int], folder: Path) -> Iterator[str]:
    """A row per number of nodes: what a run of one round with 200 tiny clients costs beside its work."""
    given: dict[str, Any] = {"rounds": 2, "partition": {"name": "iid", "clients": 200}, "engine": {"plan": "program"}}
    yield "| nodes of a core | on after, s | ended after, s | a round of 200 tiny clients, pool, s | cluster, s |"
    yield "| --- | --- | --- | --- | --- |"
    for count in counts:
        here = round_of({**given, "engine": {"plan": "program", "workers": count}}, folder, None, 4)[0]
        with LocalCluster(count) as cluster:
            engine = {"plan": "program", "workers": count, "cluster": cluster.address}
            there = round_of({**given, "engine": engine}, folder, cluster, 4)[0]
            shutil.rmtree(folder / "run")
            run = Watched({**given, "engine": engine}, folder / "run")
            run.until(0)
            on = time.perf_counter() - run.began
            run.until(2)
            landed = time.perf_counter()
            run.end()
            yield f"| {count} | {on:.1f} | {time.perf_counter() - landed:.1f} | {here:.2f} | {there:.2f} |"


STUDY: dict[str, Any] = {
    "seeds": [*range(1, 16)],
    "base": {"rounds": 5, "data": {"limit": 300}, "partition": {"name": "iid", "clients": 6}},
    "factor": [{"name": "lr", "role": "choice", "key": "local.lr", "levels": [0.02, 0.05, 0.1, 0.2]}],
}
"""60 runs of less than a second."""
RUNS = 60


def studied(table: Path, parallel: int, address: str | None) -> None:
    """The study, in a process of its own; prints its wall-clock seconds and this process's processor seconds."""
    from fedatlas.study.design import study_of
    from fedatlas.study.study import Study

    began = time.perf_counter(), time.process_time()
    given = study_of({**STUDY, "execute": {"parallel": parallel}}, "cluster", Path())
    Study(given).run(table=table, cluster=address, say=lambda _: None)
    print(json.dumps([time.perf_counter() - began[0], time.process_time() - began[1]]))


def study(counts: Sequence[int], folder: Path) -> Iterator[str]:
    """A row per number of nodes."""
    from study import told

    def done(name: str, parallel: int, address: str) -> tuple[float, float]:
        command = [sys.executable, __file__, "studied", str(folder / name), str(parallel), address]
        out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        wall, work = json.loads(out.splitlines()[-1])
        return wall, work

    yield "| nodes of a core | here, s | cluster, s | the tables | driver, processor ms a run, here | cluster |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for count in counts:
        here = done(f"here-{count}", count, "")
        with LocalCluster(count) as cluster:
            there = done(f"there-{count}", count, cluster.address)
        same = "equal" if told(folder / f"here-{count}") == told(folder / f"there-{count}") else "DIFFERENT"
        work = " | ".join(f"{1000 * one[1] / RUNS:.0f}" for one in (here, there))
        yield f"| {count} | {here[0]:.1f} | {there[0]:.1f} | {same} | {work} |"


def digests(run: Path) -> dict[str, str]:
    """SHA-256 of the models and of every client's state."""
    kept = [*sorted(run.glob("model*.safetensors")), *sorted((run / "checkpoint").glob("client-*"))]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in kept}


def ended(given: dict[str, Any], out: Path) -> tuple[dict[str, str], float]:
    """Run on this machine; return what it left, and the median seconds of a round."""
    run = Watched(given, out)
    run.end()
    return digests(out), median(trained(row) for row in run.rows()[1:])


def disturbed(given: dict[str, Any], out: Path, pause: float) -> tuple[dict[str, str], float]:
    """Run on two nodes, of which one is killed ``pause`` seconds after round 0; then another one is added."""
    with LocalCluster(2) as cluster:
        run = Watched({**given, "engine": {**given["engine"], "cluster": cluster.address}}, out)
        run.until(0)
        time.sleep(pause)
        cluster.kill(1)
        cluster.add()
        run.end()
    return digests(out), median(trained(row) for row in run.rows()[1:])


def compared(clients: int, many: int, folder: Path) -> Iterator[str]:
    """The large run on this machine, and on a cluster of which a node is killed and to which one is added."""
    given = large(clients, many)
    here, seconds = ended(given, folder / "here")
    shutil.rmtree(folder / "here")
    there, others = disturbed(given, folder / "there", seconds / 4)
    left = sorted(key for key in {*here, *there} if here.get(key) != there.get(key))
    same = f"DIFFERENT: {left[:3]}" if left else "the same bits"
    yield f"{len(here)} files ({clients:,} states): {same}; a round took {seconds:.0f} s here, {others:.0f} s there."


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["rounds", "start", "study", "large", "inside", "studied"])
    parser.add_argument("more", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--times", type=int, default=3, help="runs of each kind, of which the fastest counts")
    parser.add_argument("--folder", type=Path, help="where runs lie; the system's temporary folder by default")
    given = parser.parse_args()
    if given.what == "inside":
        inside(json.loads(given.more[0]), Path(given.more[1]))
        return
    if given.what == "studied":
        studied(Path(given.more[0]), int(given.more[1]), given.more[2] or None)
        return
    local_cluster.STORE = STORE
    print(f"Load before: {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} cores.")
    folder = Path(tempfile.mkdtemp(prefix="fedatlas-cluster-", dir=given.folder))
    try:
        found = {
            "rounds": lambda: rounds(given.nodes, folder, given.rounds, given.times),
            "start": lambda: start(given.nodes, folder),
            "study": lambda: study(given.nodes, folder),
            "large": lambda: compared(given.clients, max(given.rounds // 2, 1), folder),
        }[given.what]()
        for line in found:
            print(line, flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()

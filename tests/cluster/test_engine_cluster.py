"""One run's clients on local Ray nodes: the bits of one machine, also where nodes are killed and added, and a lost head."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedatlas.config import read
from fedatlas.course.progress import Progress
from fedatlas.runs.loop import run_one
from fedatlas.runs.preview import dry_run
from fedatlas.setup.refusals import checked
from local_cluster import LocalCluster, begun, gone, scratch

pytest.importorskip("ray", reason="Ray is not installed: pip install 'fedatlas[cluster]'")

SOURCE = str(Path(__file__).parents[2] / "src")
FEW = ("rounds=2", "engine.plan=program")
STATEFUL = ("rounds=6", "engine.plan=program", "algorithm.name=scaffold", "partition.name=iid", "partition.clients=40")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    monkeypatch.setenv("PYTHONPATH", SOURCE)
    with LocalCluster(2) as found:
        yield found


class Acts(Progress):
    """Does something when a round has landed, and keeps what the user is told."""

    def __init__(self, at: dict[int, Callable[[], Any]]) -> None:
        self.at, self.lines = at, list[str]()

    def row(self, row: Any) -> None:
        self.at.get(row["round"], lambda: None)()

    def said(self, text: str) -> None:
        self.lines.append(text)


def digests(path: Path, *overrides: str, start: Any = "new", progress: Progress | None = None) -> Any:
    done = run_one(checked(read(None, overrides)), path, start, progress=progress or Acts({}))
    return done.summary["sha256"]


def test_two_nodes_compute_the_bits_of_one_process_and_of_the_pool(tmp_path: Path, cluster: LocalCluster) -> None:
    there_were = list[int]()
    acts = Acts({1: lambda: there_were.extend(begun(cluster))})
    there = digests(tmp_path / "there", *FEW, f"engine.cluster={cluster.address}", progress=acts)
    assert len(there_were) == 4, "an agent and a worker on each node"
    assert gone(there_were)
    assert there == digests(tmp_path / "one", *FEW, "engine.workers=1")
    assert there == digests(tmp_path / "pool", *FEW, "engine.workers=2")
    assert not list(scratch(cluster))
    found = dry_run(checked(read(None, [*FEW, f"engine.cluster={cluster.address}"])))["cluster"]
    assert (found["nodes"], found["cores"]) == (2, 2)
    assert "brings nothing" in found["said"]


@pytest.mark.slow  # a minute
@pytest.mark.parametrize(
    "overrides",
    [("algorithm.name=scaffold",), ("algorithm.name=fedmd",), ("compression.name=qsgd",)],
    ids=" ".join,
)
def test_other_kinds_of_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: tuple[str, ...]) -> None:
    """States, questions and memories, on one node with a pool of two."""
    monkeypatch.setenv("PYTHONPATH", SOURCE)
    with LocalCluster(cores=2) as cluster:
        there = digests(tmp_path / "there", *FEW, *overrides, f"engine.cluster={cluster.address}")
    assert there == digests(tmp_path / "here", *FEW, *overrides)


@pytest.mark.slow  # a minute
def test_a_node_is_killed_and_one_joins(tmp_path: Path, cluster: LocalCluster) -> None:
    acts = Acts({1: lambda: cluster.kill(1), 2: cluster.add})
    there = digests(tmp_path / "there", *STATEFUL, f"engine.cluster={cluster.address}", progress=acts)
    assert there == digests(tmp_path / "here", *STATEFUL)
    assert any("is lost" in line and line.startswith("Cluster: ") for line in acts.lines)
    assert gone(sorted(begun(cluster)))


@pytest.mark.slow  # a minute
def test_a_lost_head_ends_a_run_that_resumes_elsewhere(tmp_path: Path, cluster: LocalCluster) -> None:
    """In a process of its own: Ray ends those that were connected to the node on their machine, without an exception."""
    long, out = (*STATEFUL, "rounds=60"), tmp_path / "there"
    command = [sys.executable, "-m", "fedatlas", "run", *long, f"engine.cluster={cluster.address}", "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    until = time.monotonic() + 300
    while len((out / "metrics.jsonl").read_text().splitlines() if (out / "metrics.jsonl").exists() else ()) < 4:
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.1)
    cluster.kill(0)
    said, _ = process.communicate(timeout=300)
    assert process.returncode in (1, 2), said
    assert " is lost" in said
    assert f"continue with: fedatlas run --resume {out}" in " ".join(said.split())
    assert "Traceback" not in said
    assert len((out / "metrics.jsonl").read_text().splitlines()) < 61
    there = digests(out, *long, start="resume")
    assert there == digests(tmp_path / "here", *long)

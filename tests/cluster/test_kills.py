"""Studies on two and four local nodes of which nodes, head and driver are killed with -9: the table is that of one machine."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fedatlas.cluster.nodes import Nodes
from fedatlas.errors import ConfigError
from fedatlas.study.study import Study
from fedatlas.study.table import Table
from local_cluster import LocalCluster, begun, gone, scratch
from test_study_runs import rows_of, told

pytest.importorskip("ray", reason="Ray is not installed: pip install 'fedatlas[cluster]'")
pytestmark = pytest.mark.slow  # four minutes

SOURCE = str(Path(__file__).parents[2] / "src")
DEADLINE = 300.0
RUNS = 60
STUDY = f"""
name = "kills"
seeds = {list(range(1, 11))}
[base]
rounds = 5
data = {{limit = 300}}
partition = {{name = "iid", clients = 6}}
algorithm = {{name = "fedprox"}}
[[factor]]
name = "mu"
role = "choice"
key = "algorithm.mu"
levels = [0.0, 0.01, 0.1, 0.5, 1.0]
"""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The study's file, beside its table as one machine makes it."""
    place = tmp_path_factory.mktemp("here")
    (place / "study.toml").write_text(STUDY)
    assert Study.read(place / "study.toml").run(table=place / "table.sqlite")
    assert done(place / "table.sqlite") == RUNS
    return place


@pytest.fixture(autouse=True)
def source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", SOURCE)


def driver(here: Path, table: Path, cluster: LocalCluster) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fedatlas", "study", str(here / "study.toml"), "--table", str(table)]
    pipe = subprocess.PIPE
    return subprocess.Popen([*command, "--json", "--cluster", cluster.address], stdout=pipe, stderr=pipe, text=True)


def wait_for(what: Callable[[], object]) -> None:
    until = time.monotonic() + DEADLINE
    while not what():
        assert time.monotonic() < until
        time.sleep(0.2)


def done(table: Path) -> int:
    return Table.open(table).counts("kills")["done"] if table.exists() else 0


def left_nothing(cluster: LocalCluster, pids: set[int]) -> None:
    assert gone(sorted(pids))
    wait_for(lambda: not list(scratch(cluster)))


def same(here: Path, table: Path) -> None:
    assert done(table) == RUNS
    assert told(here / "table.sqlite") == told(table)
    assert rows_of(here / "table.sqlite") == rows_of(table)


@pytest.mark.parametrize("nodes", [2, 4])
def test_a_node_is_killed_in_the_middle_and_one_joins(here: Path, tmp_path: Path, nodes: int):
    table = tmp_path / "table.sqlite"
    with LocalCluster(nodes) as cluster:
        process = driver(here, table, cluster)
        wait_for(lambda: done(table) >= 10 or process.poll() is not None)
        there = begun(cluster)
        assert len(there) >= 2 * nodes
        cluster.kill(nodes - 1)
        cluster.add()
        wait_for(lambda: begun(cluster) - there or process.poll() is not None)
        new = begun(cluster) - there
        out, said = process.communicate(timeout=DEADLINE)
        assert process.returncode == 0, said
        assert json.loads(out)["runs"]["done"] == RUNS
        assert new
        left_nothing(cluster, there | new)
    same(here, table)


def test_a_killed_driver_and_a_lost_head(here: Path, tmp_path: Path):
    """After each, nothing runs any more, and the same command continues."""
    table = tmp_path / "table.sqlite"
    with LocalCluster(2) as cluster:
        process = driver(here, table, cluster)
        wait_for(lambda: done(table) >= 5 or process.poll() is not None)
        there = begun(cluster)
        process.kill()
        process.communicate()
        left_nothing(cluster, there)
        process, before = driver(here, table, cluster), done(table)
        wait_for(lambda: done(table) >= before + 5 or process.poll() is not None)
        there = begun(cluster)
        cluster.kill(0)
        _, said = process.communicate(timeout=DEADLINE)
        assert process.returncode == 2
        assert "is lost: start it again. Run the same command to continue; finished runs are kept." in said
        assert "Traceback" not in said
        left_nothing(cluster, there)
    with LocalCluster(1) as cluster:
        process = driver(here, table, cluster)
        process.communicate(timeout=DEADLINE)
    same(here, table)


def test_another_source_on_a_node_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shutil.copytree(SOURCE, tmp_path / "src")
    with open(tmp_path / "src" / "fedatlas" / "rng.py", "a", encoding="utf-8") as file:
        file.write("# another\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "src"))
    with LocalCluster(1) as cluster:
        with pytest.raises(
            ConfigError, match=r"it has code \w+ instead of \w+: install the same versions on every node"
        ):
            Nodes.connect(cluster.address, "study", b"{}")
        assert not list(scratch(cluster))

"""Runs of a study in the workers of nodes, without Ray: data that are not there, memory, what is left behind."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from fedatlas import plugins
from fedatlas.cluster.agent import DIED
from fedatlas.cluster.frames import failure
from fedatlas.cluster.nodes import Lost, Node, Nodes, Ticket, _Member, differences
from fedatlas.cluster.worker import LOCK
from fedatlas.errors import ConfigError, TransportError
from fedatlas.study import study_preview
from fedatlas.study.cluster_runs import ClusterRuns, runs_on, seats
from fedatlas.study.design import ExecuteTable
from fedatlas.study.plan import plan_of
from fedatlas.study.study import Study
from fedatlas.study.table import Table, started
from local_cluster import descendants, gone
from piped_nodes import PipedNodes, connecting
from test_study_runs import rows_of, told

DEADLINE = 300.0
FACTOR = {"name": "mu", "role": "choice", "key": "algorithm.mu", "levels": [0.0, 0.5]}
BASE = {
    "rounds": 2,
    "data": {"name": "file", "path": "rows/mine.csv", "label": "y"},
    "partition": {"name": "iid", "clients": 3},
    "model": {"name": "mlp", "hidden": [4]},
    "algorithm": {"name": "fedprox"},
}


def write_rows(folder: Path) -> None:
    stream = np.random.default_rng(1)
    x = stream.normal(size=(120, 2))
    lines = [f"{a:.4f},{b:.4f},{'yes' if a > b else 'no'}" for a, b in x]
    (folder / "rows").mkdir()
    (folder / "rows" / "mine.csv").write_text("\n".join(["a,b,y", *lines]) + "\n")


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A driver's working directory with a table, and nodes that have none of its folders."""
    for name in ("driver", "node"):
        (tmp_path / name).mkdir()
    write_rows(tmp_path / "driver")
    monkeypatch.chdir(tmp_path / "driver")
    return tmp_path / "driver"


def study(**tables: object) -> Study:
    return Study.of("small", base=BASE, factor=[FACTOR], seeds=[1, 2], **tables)


def test_a_study_whose_data_are_not_on_the_nodes(driver: Path, monkeypatch: pytest.MonkeyPatch):
    """The files are copied to each node once, and table and folders are those of one machine; nothing is left on the nodes."""
    seen: list[PipedNodes] = []
    monkeypatch.setattr(Nodes, "connect", connecting(driver.parent / "node", seen))
    here, there = driver / "here" / "table.sqlite", driver / "there" / "table.sqlite"
    assert study(execute={"keep": "folder"}).run(table=here)
    assert study(execute={"keep": "folder"}).run(table=there, cluster="pipes:1")
    assert told(here) == told(there)
    assert rows_of(here) == rows_of(there)
    models = [
        {path.parents[1].name: path.read_bytes() for path in one.parent.rglob("model.safetensors")}
        for one in (here, there)
    ]
    assert models[0] == models[1]
    assert len(models[0]) == 6
    assert not list((driver.parent / "node").iterdir())
    assert all(started(one["pid"]) is None for one in seen[0].facts)


def test_a_worker_that_is_killed_takes_its_runs_along_and_the_next_one_removes_its_folder(driver: Path):
    hello, place = b'{"execute": {}, "plugins": []}', driver.parent / "node"
    nodes = PipedNodes("study", hello, place, many=1)
    runs = ClusterRuns(cast("Nodes", nodes), ExecuteTable())
    long = BASE | {"rounds": 100_000}
    run = plan_of(Study.of("long", base=long, factor=[FACTOR]).file).known()[0]
    assert run.checked is not None
    runs.begin(run.keys.run_key, run.checked, driver / "run", tested=True)
    worker, until = nodes.facts[0]["pid"], time.monotonic() + DEADLINE
    while len(family := descendants(worker)) < 2 and time.monotonic() < until:
        runs.endings(0.05)
    os.kill(worker, signal.SIGKILL)
    assert len(family) == 2
    assert gone(family)
    old, lock = sorted(place.iterdir())
    assert lock.name == f"{old.name}{LOCK}"
    nodes.close()
    again = PipedNodes("study", hello, place, many=1)
    left = list(place.iterdir())
    again.close()
    assert len(left) == 2
    assert not {old, lock} & {*left}
    assert not list(place.iterdir())


def test_a_node_takes_as_many_runs_as_its_cores_and_its_memory_allow():
    node = Node("a", "host", 8, 4 << 30)
    assert seats(ExecuteTable(), node) == 8
    assert seats(ExecuteTable(parallel=3), node) == 3
    assert seats(ExecuteTable(memory="1 GiB"), node) == 4
    assert seats(ExecuteTable(memory="64 GiB"), node) == 1


@pytest.mark.slow  # starts workers again
def test_plug_ins_are_carried_and_limits_hold_on_a_node(driver: Path, monkeypatch: pytest.MonkeyPatch):
    """The driver's file need not be there; a run that takes too long is ended, with the sentence of one machine."""
    monkeypatch.setattr(plugins, "LOADED", dict(plugins.LOADED))
    monkeypatch.setitem(plugins.PLUGINS, "algorithms", dict(plugins.PLUGINS["algorithms"]))
    (driver / "mine.py").write_text("from fedatlas.algorithms.fedavg import fedavg\nALGORITHMS = {'mine': fedavg}\n")
    plugins.load_plugins([Path("mine.py")])
    monkeypatch.setattr(Nodes, "connect", connecting(driver.parent / "node", []))
    levels = [{"name": "short", "set": {"rounds": 1}}, {"name": "long", "set": {"rounds": 100_000}}]
    factor = {"name": "length", "role": "choice", "level": levels}
    given = Study.of("mine", base={**BASE, "algorithm": {"name": "mine"}}, factor=[factor], execute={"seconds": 20})
    assert not given.run(table=driver / "table.sqlite", cluster="pipes:1")
    frame = Table.open(driver / "table.sqlite").frame()
    cells = {one.length: (one.status, one.reason) for one in frame[frame.kind == "cell"].itertuples()}
    assert cells == {
        "short": ("done", "It finished."),
        "long": ("timeout", "It took longer than execute.seconds = 20 s."),
    }


def test_a_node_that_cannot_take_part_ends_the_start_but_not_a_study_under_way():
    nodes, said = Nodes.__new__(Nodes), list[str]()
    agent = SimpleNamespace(end=SimpleNamespace(remote=lambda: None))
    nodes.members = {"a": _Member(agent, {"NodeManagerHostname": "host"})}
    nodes.ready, nodes.starting, nodes.calls, nodes.barred, nodes.back = {}, {}, {}, {}, []
    nodes.begun, nodes.say = False, said.append
    with pytest.raises(ConfigError, match="node host cannot take part: it is old"):
        nodes.refuse("a", "it is old.")
    nodes.begun = True
    nodes.refuse("a", "it is old.")
    assert said == ["node host cannot take part: it is old."]
    assert nodes.members == {}
    assert nodes.barred == {"a": math.inf}


def waiting_nodes(wait: Callable[..., Any]) -> Nodes:
    """Nodes of a Ray in this process, whose worker on "a" has two calls in hand."""
    nodes, listed = Nodes.__new__(Nodes), {"NodeManagerHostname": "host", "Resources": {"CPU": 1}, "NodeID": "a"}
    agent = SimpleNamespace(end=SimpleNamespace(remote=lambda: None))
    dead = (True, failure(DIED, "its worker process ended"))
    nodes.ray = SimpleNamespace(wait=wait, get=lambda _: dead, exceptions=SimpleNamespace(RayError=ValueError))
    nodes.address, nodes.own, nodes.watch = "head:1", "a", SimpleNamespace(seen={"a": listed}, lost=False)
    nodes.members, nodes.ready = {"a": _Member(agent, listed)}, {"a": Node("a", "host", 1, 1)}
    nodes.starting, nodes.barred, nodes.back, nodes.raw = {}, {}, [], False
    nodes.calls, nodes.say = {"x": Ticket("a", 1), "y": Ticket("a", 2)}, lambda _: None
    return nodes


def test_a_worker_that_dies_gives_back_all_calls_that_it_had_in_hand():
    """Also where both are answered at once; the node gets another worker, unless it was refused."""
    nodes = waiting_nodes(lambda due, **_: (due, []))
    lost = Lost("its worker process ended", died=True)
    assert sorted(nodes.wait(0.0)) == [(Ticket("a", 1), lost), (Ticket("a", 2), lost)]
    assert nodes.coming()
    nodes.barred["a"] = math.inf
    assert not nodes.coming()


def test_a_broken_connection_to_the_own_ray_node_is_a_sentence():
    def broken(*_: Any, **__: Any) -> Any:
        raise BrokenPipeError

    with pytest.raises(TransportError, match=r"Ray node of this machine at head:1 is lost: start it again\.$"):
        waiting_nodes(broken).wait(0.0)


def test_a_study_says_how_to_continue(monkeypatch: pytest.MonkeyPatch):
    """Only a study does: for a run the same command is refused, since its folder is there."""
    closed = list[bool]()
    nodes = SimpleNamespace(close=lambda: closed.append(True))
    monkeypatch.setattr(Nodes, "connect", lambda *_: nodes)
    with (
        pytest.raises(
            TransportError, match=r"^It is lost\. Run the same command to continue; finished runs are kept\.$"
        ),
        runs_on("head:1", ExecuteTable(), lambda _: None),
    ):
        raise TransportError("It is lost.")
    assert closed == [True]


@pytest.mark.parametrize(
    ("hours", "sentence"),
    [
        (1.0, "The cluster has 2 nodes with 6 cores: about 10 min 10 s with 6 at once."),
        (0.001, "The cluster has 2 nodes with 6 cores. It would bring nothing: this machine is done as soon."),
        (0.16, "The cluster has 2 nodes with 6 cores. It would bring nothing: this machine is done as soon."),
    ],
)
def test_the_dry_run_says_what_a_cluster_would_bring(monkeypatch: pytest.MonkeyPatch, hours: float, sentence: str):
    """60 runs of a minute: six at a time after the start; nothing where this machine needs no longer, as in a short study."""
    found = [Node("a", "one", 2, 1 << 34), Node("b", "two", 4, 1 << 34)]
    monkeypatch.setattr("fedatlas.cluster.nodes.listed_nodes", lambda _: found)
    brought = study_preview.there(ExecuteTable(), "pipes:1", 60, 60.0)
    assert brought == {"nodes": 2, "cores": 6, "parallel": 6, "hours": pytest.approx((10 + 600) / 3600)}
    assert study_preview.show_cluster({"hours": hours, "cluster": brought}) == sentence


def test_versions_that_differ_are_named():
    here = {"versions": {"fedatlas": "1.0", "torch": "2.13.0", "python": "3.11.4", "code": "aa"}}
    there = {"versions": {"fedatlas": "1.0", "torch": "2.14.0", "python": "3.11.9", "code": "bb"}}
    assert differences(here, here) == ""
    assert differences(here, there) == "torch 2.14.0 instead of 2.13.0 and code bb instead of aa"


def test_without_a_cluster_nothing_of_ray_is_imported(tmp_path: Path):
    code = f"""
import sys
from fedatlas import Study
factor = {{"name": "mu", "role": "choice", "key": "algorithm.mu", "levels": [0.0]}}
base = {{"rounds": 1, "data": {{"limit": 100}}, "partition": {{"clients": 2}}, "algorithm": {{"name": "fedprox"}}}}
assert Study.of("small", base=base, factor=[factor]).run(table=__import__("pathlib").Path({str(tmp_path / "t.sqlite")!r}))
print(sorted(name for name in sys.modules if name.split(".")[0] == "ray" or name.startswith("fedatlas.cluster")))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

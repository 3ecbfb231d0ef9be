"""Clients dealt to nodes: the bits of one machine, whoever does the work, whoever comes, goes or computes otherwise."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fake_nodes import FakeNodes
from fedatlas.cluster import engine_handler, executor
from fedatlas.config import read
from fedatlas.course.progress import Progress
from fedatlas.data import kept
from fedatlas.errors import ConfigError, ProtocolError, TransportError
from fedatlas.runs.loop import run_one
from fedatlas.setup import refusals
from fedatlas.setup.refusals import checked

FEW = ("rounds=2", "partition.name=iid", "partition.clients=7", "engine.plan=program", "engine.workers=1")
TIMES = ("seconds", "seconds_by_phase", "peak_memory_bytes")

Turn = Callable[[FakeNodes, int], None]


class Cluster:
    """The fake cluster of the next run."""

    def __init__(self) -> None:
        self.names, self.turn = "ab", None
        self.turn: Turn | None
        self.made: list[FakeNodes] = []

    def connect(self, address: str, kind: str, hello: bytes, say: Callable[[str], None]) -> FakeNodes:
        assert (address, kind) == ("auto", "engine")
        self.made.append(FakeNodes(hello, say, self.names, self.turn))
        return self.made[-1]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    found = Cluster()
    monkeypatch.setattr(refusals, "find_spec", lambda name: object())
    monkeypatch.setattr(executor, "Nodes", found)
    return found


class Said(Progress):
    """Keeps what the user is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def said(self, text: str) -> None:
        self.lines.append(text)


def outcome(path: Path, *overrides: str, said: Said | None = None) -> tuple[Any, list[dict[str, Any]]]:
    """Run, and return the digests of the models and the rows without times."""
    done = run_one(checked(read(None, [*FEW, *overrides])), path, progress=said or Said())
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return done.summary.get("sha256"), [{key: x for key, x in row.items() if key not in TIMES} for row in rows]


@pytest.mark.parametrize(
    "overrides",
    [
        ("algorithm.name=fedavg",),
        ("algorithm.name=scaffold", "engine.chunk=3"),
        ("algorithm.name=fedavg", "compression.name=topk"),
        ("algorithm.name=ifca", "rounds=1"),
        ("algorithm.name=fedmd", "rounds=1"),
        ("attack.sign_flip={share=0.3}", "rounds=1"),
    ],
    ids=" ".join,
)
def test_the_bits_are_those_of_one_machine(tmp_path: Path, cluster: Cluster, overrides: tuple[str, ...]) -> None:
    """Clients with a state, with a compressed update and its memory, with questions, with orders of an attack."""
    here = outcome(tmp_path / "here", *overrides)
    assert outcome(tmp_path / "there", *overrides, "engine.cluster=auto") == here
    (nodes,) = cluster.made
    assert nodes.closed
    assert min(nodes.did.values()) > 2, "both nodes worked"


def test_lost_and_joined_nodes_change_no_bit(tmp_path: Path, cluster: Cluster) -> None:
    """One is lost with work in hand, in the first round; another joins; at the end only that one is left."""
    at = {4: lambda nodes: nodes.kill("a"), 6: lambda nodes: nodes.join("c"), 9: lambda nodes: nodes.kill("b")}
    cluster.turn = lambda nodes, turn: at.get(turn, lambda nodes: None)(nodes)
    said = Said()
    there = outcome(tmp_path / "there", "algorithm.name=scaffold", "engine.cluster=auto", said=said)
    (nodes,) = cluster.made
    assert [*nodes.handlers] == ["c"]
    assert nodes.did["c"] > 3
    assert there == outcome(tmp_path / "here", "algorithm.name=scaffold")
    assert any("host-a is lost" in line for line in said.lines)
    assert any("host-c joined" in line for line in said.lines)


def test_a_run_without_nodes_ends_with_a_sentence_and_resumes_anywhere(tmp_path: Path, cluster: Cluster) -> None:
    whole = checked(read(None, [*FEW, "rounds=4", "algorithm.name=scaffold", "engine.cluster=auto"]))

    def lose(nodes: FakeNodes, turn: int) -> None:
        if turn == 12:
            for name in [*nodes.handlers]:
                nodes.kill(name)

    cluster.turn = lose
    with pytest.raises(ProtocolError, match=r"no node left .* continue the run with --resume"):
        run_one(whole, tmp_path / "there")
    assert cluster.made[0].closed
    cluster.turn = None
    rows = len((tmp_path / "there" / "metrics.jsonl").read_text().splitlines())
    assert 1 < rows < 5, "lost in the middle"
    here = checked(read(None, [*FEW, "rounds=4", "algorithm.name=scaffold"]))
    assert (
        run_one(here, tmp_path / "there", "resume").summary["sha256"]
        == run_one(here, tmp_path / "here").summary["sha256"]
    )
    assert len(cluster.made) == 1, "resumed on this machine"


def test_a_run_waits_for_another_process_of_its_only_node(tmp_path: Path, cluster: Cluster) -> None:
    """Its process dies with work in hand; that work is done by the next one, some turns later."""

    def die(nodes: FakeNodes, turn: int) -> None:
        if turn == 4:
            nodes.expected = "b"
            nodes.kill("a", died=True)
        if turn == 6:
            nodes.expected = ""
            nodes.join("b")

    cluster.names, cluster.turn = "a", die
    there = outcome(tmp_path / "there", "engine.cluster=auto")
    assert [*cluster.made[0].handlers] == ["b"]
    assert there == outcome(tmp_path / "here")


def test_a_lost_cluster_says_how_to_continue(tmp_path: Path, cluster: Cluster) -> None:
    def lose(nodes: FakeNodes, turn: int) -> None:
        if turn == 5:
            raise TransportError("The head is lost.")

    cluster.turn = lose
    with pytest.raises(TransportError) as caught:
        outcome(tmp_path / "run", "engine.cluster=auto")
    assert str(caught.value).endswith(f"is kept, continue with: fedatlas run --resume {tmp_path / 'run'}")
    assert cluster.made[0].closed


def test_a_node_that_computes_other_bits_is_left_out(tmp_path: Path, cluster: Cluster) -> None:
    """Its first result is compared, byte for byte, with the one that is computed here; none of its results is used."""

    def alter(nodes: FakeNodes, turn: int) -> None:
        if turn == 2:
            runner = nodes.handlers["b"].serial.run_job
            nodes.handlers["b"].serial.run_job = lambda bench, job: nudged(runner(bench, job))

    def nudged(result: Any) -> Any:
        return result._replace(update={**result.update, "model": result.update["model"] * (1 + 1e-7)})

    cluster.turn, said = alter, Said()
    assert outcome(tmp_path / "there", "engine.cluster=auto", said=said) == outcome(tmp_path / "here")
    assert any("host-b computes other bits" in line and "left out" in line for line in said.lines)
    cluster.names = "b"
    with pytest.raises(ConfigError, match=r"host-b computes other bits"):
        outcome(tmp_path / "only", "engine.cluster=auto")


def test_a_node_with_other_rows_is_refused(tmp_path: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    order_of = executor.BenchOrder.of

    def other(*given: Any) -> Any:
        order = order_of(*given)
        return order._replace(config={**order.config, "seed": 2})

    monkeypatch.setattr(executor.BenchOrder, "of", other)
    with pytest.raises(ConfigError, match="its rows differ"):
        outcome(tmp_path / "run", "engine.cluster=auto")


@pytest.mark.parametrize("lacks", [1, 2])
def test_a_node_without_the_data_is_given_copies(
    tmp_path: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, lacks: int
) -> None:
    """Once; one that then still finds other data is left out."""
    rows = "".join(f"{i % 7},{i % 5},{i % 2}\n" for i in range(80))
    (tmp_path / "rows.csv").write_text(f"a,b,y\n{rows}")
    data = ("data.name=file", f"data.path={tmp_path / 'rows.csv'}", "data.label=y")
    monkeypatch.setattr(kept, "_MOVED", {})
    found = engine_handler.here
    asked = list[bool]()

    def there(*given: Any) -> bool:
        asked.append(len(asked) >= lacks and found(*given))
        return asked[-1]

    monkeypatch.setattr(engine_handler, "here", there)
    cluster.names = "a"
    here = outcome(tmp_path / "here", *data)
    if lacks == 2:
        with pytest.raises(ConfigError, match=r"host-a cannot take part: it finds other data than the copies"):
            outcome(tmp_path / "there", *data, "engine.cluster=auto")
        return
    assert outcome(tmp_path / "there", *data, "engine.cluster=auto") == here
    (copy,) = kept._MOVED.values()
    assert copy.read_text().startswith("a,b,y")
    assert copy != tmp_path / "rows.csv"


def test_an_error_in_a_clients_work_names_it(tmp_path: Path, cluster: Cluster) -> None:
    def spoil(nodes: FakeNodes, turn: int) -> None:
        if turn == 4:
            for handler in nodes.handlers.values():
                handler.serial.run_job = lambda bench, job: 1 / 0

    cluster.turn = spoil
    with pytest.raises(ProtocolError, match=r"the work of client [0-6] failed with ZeroDivisionError"):
        outcome(tmp_path / "run", "engine.cluster=auto")


def test_a_stack_stays_on_this_machine(tmp_path: Path, cluster: Cluster) -> None:
    said = Said()
    there = outcome(tmp_path / "there", "engine.plan=auto", "engine.cluster=auto", said=said)
    assert not cluster.made
    assert any("train in one stack on this machine" in line for line in said.lines)
    assert there == outcome(tmp_path / "here", "engine.plan=auto")

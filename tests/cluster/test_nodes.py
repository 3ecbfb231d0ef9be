"""Nodes of a cluster: calls, a node that is killed, one that joins, what is left afterwards."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedatlas.cluster.frames import Failed
from fedatlas.cluster.nodes import Lost, Nodes, Ticket

pytest.importorskip("ray", reason="Ray is not installed: pip install 'fedatlas[cluster]'")

from local_cluster import LocalCluster, begun, command_of, scratch


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    root = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, [root / "src", root / "tests" / "support"])))
    with LocalCluster(2) as found:
        yield found


def answers(nodes: Nodes, many: int, seconds: float = 300.0) -> dict[Ticket, bytes | Failed | Lost]:
    out: dict[Ticket, bytes | Failed | Lost] = {}
    until = time.monotonic() + seconds
    while len(out) < many and time.monotonic() < until:
        out |= dict(nodes.wait(0.2))
    return out


@pytest.mark.slow  # starts three nodes
def test_calls_on_a_node_that_is_killed_and_one_that_joins(cluster: LocalCluster) -> None:
    nodes = Nodes.connect(cluster.address, "echo_handler:Echo", b"hello ")
    try:
        first, second = (one.id for one in nodes.alive())
        tickets = [nodes.call(first, b"a"), nodes.call(second, b"b"), nodes.call(first, b"fail")]
        found = answers(nodes, 3)
        assert [found[one] for one in tickets[:2]] == [b"hello a", b"hello b"]
        assert found[tickets[2]] == Failed("ValueError", "ValueError: told to fail")
        shared = nodes.put(big := bytes(10_000_000))
        tickets = [nodes.call(first, shared), nodes.call(second, shared)]
        assert set(answers(nodes, 2).values()) == {b"hello " + big}
        held = {nodes.call(first, b"later"), nodes.call(second, b"later")}
        cluster.kill(1)
        lost = answers(nodes, 1)
        assert len(lost) == 1
        assert isinstance(*lost.values(), Lost)
        assert set(lost) < held
        cluster.add()
        until = time.monotonic() + 300
        while len(nodes.alive()) < 2 and time.monotonic() < until:
            nodes.wait(0.2)
        [left, new] = sorted((one.id for one in nodes.alive()), key=lambda one: one not in {first, second})
        assert new not in {first, second}
        [held] = held - set(lost)
        assert held.node == left
        for pid in begun(cluster):
            if b"fedatlas.cluster.worker" in command_of(pid):
                os.kill(pid, signal.SIGKILL)
        assert set(answers(nodes, 1).items()) == {(held, Lost("its worker process ended", died=True))}
        while len(nodes.alive()) < 2 and time.monotonic() < until:
            nodes.wait(0.2)
        assert {one.id for one in nodes.alive()} == {left, new}
    finally:
        nodes.close()
    assert not list(scratch(cluster))

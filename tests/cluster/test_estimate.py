"""What the dry run says a cluster would bring."""

from __future__ import annotations

from typing import Any

import pytest

from fedatlas.cluster import nodes
from fedatlas.cluster.estimate import BYTE, CALL, DRIVER_BYTE, DRIVER_CALL, START, brought
from fedatlas.cluster.nodes import Node
from fedatlas.config import read
from fedatlas.runs.preview import dry_run, show
from fedatlas.setup import refusals
from fedatlas.setup.refusals import checked

FOUR = [Node(str(i), "host", 8, 1 << 30) for i in range(4)]


def test_long_rounds_are_shared_by_all_cores() -> None:
    """32 cores, 100 clients of one second: 100/32 s and the cost of their calls, beside 50 s on two cores."""
    found = brought(FOUR, 10, work=100.0, here=50.0, clients=100, carried=1e6, held=256)
    assert found["seconds_round_there"] == pytest.approx((100 + CALL * 100 + BYTE * 1e6) / 32)
    assert found["seconds_saved"] == pytest.approx(10 * (50 - found["seconds_round_there"]) - START)
    assert "A round takes about 50" in found["said"]
    assert "on 4 nodes with 32 cores: the cluster saves about" in found["said"]


def test_a_small_run_gains_nothing() -> None:
    found = brought(FOUR, 20, work=0.2, here=0.1, clients=10, carried=1e5, held=256)
    assert found["seconds_saved"] < 0
    assert "the cluster brings nothing to this run" in found["said"]


def test_the_driver_adds_up_one_update_after_another() -> None:
    """1,000 updates of 20 MB: 20 GB through one process, however many nodes there are."""
    many = [Node(str(i), "host", 64, 1 << 30) for i in range(100)]
    found = brought(many, 10, work=1000.0, here=500.0, clients=1000, carried=2e10, held=9999)
    assert found["seconds_round_there"] == pytest.approx(DRIVER_CALL * 1000 + DRIVER_BYTE * 2e10)
    assert "more nodes bring nothing" in found["said"]


def test_no_more_cores_work_than_clients_are_held() -> None:
    found = brought(FOUR, 10, work=100.0, here=50.0, clients=100, carried=0.0, held=8)
    assert found["seconds_round_there"] == pytest.approx((100 + CALL * 100) / 8)
    assert "engine.chunk" in found["said"]


@pytest.mark.parametrize(("plan", "says"), [("program", "brings nothing to this run"), ("auto", "in one stack")])
def test_the_dry_run_says_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], plan: str, says: str
) -> None:
    monkeypatch.setattr(refusals, "find_spec", lambda name: object())
    monkeypatch.setattr(nodes, "listed_nodes", lambda address: FOUR, raising=False)
    overrides = ["rounds=2", "engine.workers=1", f"engine.plan={plan}"]
    assert "cluster" not in dry_run(checked(read(None, overrides)))
    found: dict[str, Any] = dry_run(checked(read(None, [*overrides, "engine.cluster=auto"])))
    show(found)
    assert says in capsys.readouterr().out

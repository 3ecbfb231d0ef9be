"""Distributed noise between real parties: the sums of a simulation, noise that each node draws, a ledger at the server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deployments import Deployment, deployment, experiment, rows_of
from fedatlas import Experiment, run
from fedatlas.config import parse
from fedatlas.federation.secrets import LEDGER
from fedatlas.privacy import ledger
from fedatlas.record.run_folder import RunFolder

pytestmark = pytest.mark.timing

EQUAL = {"name": "fedavg", "weights": "uniform"}


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployment(tmp_path_factory.mktemp("three")) as made:
        yield made


def asked(**keys: Any) -> dict[str, Any]:
    return experiment(algorithm=EQUAL, privacy=[{"name": "distributed_dp", "clip": 0.5, **keys}])


def test_without_noise_it_ends_with_the_bytes_of_a_simulation(three: Deployment, tmp_path: Path) -> None:
    """Clipped and rounded alike, in sums of the same words."""
    given = asked(noise_multiplier=0.0)
    there, ended = three.run(given)
    assert ended.status == "finished", (ended, three.log("server"))
    here = run(Experiment(parse(given)), out=tmp_path / "here", baselines=False).path
    assert (there / "model.safetensors").read_bytes() == (here / "model.safetensors").read_bytes()
    assert RunFolder(there).summary()["privacy"]["epsilon"] == "infinite"


def test_noise_is_drawn_by_the_nodes_and_written_down_by_both(three: Deployment) -> None:
    there, ended = three.run(asked(noise_multiplier=0.3))
    assert ended.status == "finished", (ended, three.log("server"))
    events = ledger.read(there / LEDGER).events
    rounds = len(rows_of(there)) - 1
    assert [(event.round, event.noise, event.clients) for event in events] == [
        (t, "skellam", (0, 1, 2)) for t in range(1, rounds + 1)
    ]
    told = RunFolder(there).summary()["privacy"]
    assert told["withstood"] == {"asked": 3, "needed": 3, "colluding": 1}
    for name in three.names:
        lines = [json.loads(line) for line in (three.bundles[name] / "audit.jsonl").read_text().splitlines()]
        stated = [line["epsilon"] for line in lines if "epsilon" in line and line.get("run") == there.name]
        assert stated, name
        assert stated == pytest.approx([told["epsilon"]] * len(stated))


def test_nodes_do_not_judge_under_noise(tmp_path: Path) -> None:
    """Figures of their rows would leave without it."""
    with deployment(tmp_path, judge="nodes") as made:
        _, ended = made.run(asked())
        assert ended.status == "failed"
        assert "under 'distributed_dp' nodes do not judge" in ended.why
        assert "start the server with --test FILE" in ended.why

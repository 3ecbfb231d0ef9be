"""Distributed noise between real parties: the sums of a simulation, noise that each node draws, a ledger at the server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agreements import Agreements, write_rows
from deployments import NAMES, Deployment, deployment, experiment, rows_of
from fedatlas import Experiment, run
from fedatlas.config import parse
from fedatlas.data.sources import load_dataset
from fedatlas.deployment import node_setup
from fedatlas.deployment.node_judging import with_judging
from fedatlas.deployment.node_rows import facts_of
from fedatlas.deployment.refusals import deployable
from fedatlas.errors import ConfigError
from fedatlas.federation.secrets import LEDGER
from fedatlas.privacy import ledger
from fedatlas.privacy.mechanism import Protection
from fedatlas.record.run_folder import RunFolder
from nodes_in_process import run_here

pytestmark = pytest.mark.timing

IID = {"name": "iid", "clients": 3}
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
    """Figures of their rows would leave without it: a server without test rows ends the run."""
    made = Agreements(tmp_path)
    trainers = {name: made.trainer(name, write_rows(tmp_path / f"{name}.csv", 40, i)) for i, name in enumerate(NAMES)}
    plain = {"data": {"name": "file", "label": "y", "scale": "none", "test": 0.2}, "algorithm": EQUAL}
    privacy = [{"name": "distributed_dp", "clip": 0.5}]
    ended = run_here(made, trainers, made.signed("r", made.config(**plain, privacy=privacy))).state
    assert ended.status == "failed"
    assert "under 'distributed_dp' nodes do not judge" in ended.why
    assert "start the server with --test FILE" in ended.why


def test_a_node_that_is_told_to_judge_refuses_too() -> None:
    """The set-up with judging, which a node makes if the server names it among those that judge."""
    whole = deployable(parse(asked()), ["a", "b", "c"])
    setup = SimpleNamespace(bench=SimpleNamespace(protection=Protection(whole.mechanisms, 3, 1, 1.0, 0)))
    with pytest.raises(ConfigError, match="nodes do not judge"):
        with_judging(setup)  # type: ignore[arg-type]


@pytest.mark.parametrize("end", ["server", "node"])
def test_nothing_is_computed_from_rows_before_round_1(shared_data: Callable[[str], Path], end: str) -> None:
    """Moments of a table's columns would be sums of all rows without noise: neither end asks or answers for them."""
    shared_data("tables/breast_cancer_wdbc.csv.gz")
    whole = deployable(parse({**asked(), "data": {"name": "breast_cancer_wdbc"}, "partition": IID}), ["a", "b", "c"])
    dataset = load_dataset(whole.config.data, 1)
    about = facts_of(dataset)

    def learn(*given: Any) -> Any:
        raise AssertionError(given)

    made = {
        "server": lambda: node_setup.server_setup(whole, about, {"a": 5, "b": 5, "c": 5}, learn, None),
        "node": lambda: node_setup.node_setup(whole, about, {"train": dataset.train}, 0, 3, learn),
    }[end]
    with pytest.raises(ConfigError, match=r"would be computed from clients' rows without noise; set data\.constants"):
        made()

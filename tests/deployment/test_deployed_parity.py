"""A run between real processes ends with the model bytes of the simulated one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deployments import Deployment, deployment, experiment, rows_of
from fedatlas import Experiment, run
from fedatlas.algorithms import ALGORITHMS
from fedatlas.config import parse
from fedatlas.deployment.refusals import undeployable
from fedatlas.metrics.intervals import proportion
from fedatlas.record.fields import RunSummary
from fedatlas.record.run_folder import RunFolder

pytestmark = pytest.mark.timing

QUALITY = ("accuracy", "macro_f1", "loss", "train_loss")


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployment(tmp_path_factory.mktemp("three")) as made:
        yield made


def same(three: Deployment, tmp_path: Path, **tables: Any) -> Path:
    """Runs it both ways; the deployed run's directory."""
    given = experiment(**tables)
    there, ended = three.run(given)
    assert ended.status == "finished", (ended, three.log("server"))
    here = run(Experiment(parse(given)), out=tmp_path / "here", baselines=False).path
    assert (there / "model.safetensors").read_bytes() == (here / "model.safetensors").read_bytes()
    for mine, theirs in zip(rows_of(there), rows_of(here), strict=True):
        assert {key: mine[key] for key in ("clients", "steps", "bytes_up", "bytes_down", "weights")} == {
            key: theirs[key] for key in ("clients", "steps", "bytes_up", "bytes_down", "weights")
        }
        for key in QUALITY[: 3 if "privacy" in tables else 4]:
            assert mine[key] == pytest.approx(theirs[key], abs=1e-6), key
    told = RunFolder(there).summary()
    there_metric, trivial = told["metric"], told["trivial"]
    check_answer(told, RunFolder(here).summary(), "server")
    assert there_metric["value"] == pytest.approx(RunFolder(here).summary()["final"][there_metric["name"]], abs=1e-6)
    assert trivial["source"] == "test rows", "the server was not told how many rows each class has"
    return there


QUICK = ("fedavg", "hwfedavg", "fedadam", "fedprox", "scaffold", "fednova")
"""Of the algorithms: a mean, sums before round 1, a server's state, an objective, states of nodes, and a reply beside the model."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
        for name, made in ALGORITHMS.items()
        if not undeployable(made())
    ],
)
def test_it_ends_with_the_bytes_of_a_simulation(three: Deployment, tmp_path: Path, name: str):
    same(three, tmp_path, algorithm={"name": name})


@pytest.mark.parametrize("name", ["topk", "qsgd"])
def test_also_where_updates_are_compressed(three: Deployment, tmp_path: Path, name: str):
    same(three, tmp_path, algorithm={"name": "scaffold"}, compression={"name": name})


def test_also_under_secure_aggregation(three: Deployment, tmp_path: Path):
    """Masks are drawn by each run anew, and cancel: the sums are the same."""
    there = same(three, tmp_path, algorithm={"name": "fedavg"}, privacy=[{"name": "secagg"}])
    assert {row["train_loss"] for row in rows_of(there)} == {None}, "a loss of one node would say something of it alone"


NUMBERS = experiment(data={"name": "auto_mpg", "missing": "median"}, partition={"name": "iid", "clients": 3})
"""A table with holes and categories, whose target is a number: medians, moments and categories are learnt of all rows."""


@pytest.mark.parametrize("data", [pytest.param("classes", marks=pytest.mark.slow), "numbers"])
def test_nodes_that_judge_say_what_pooling_would(tmp_path: Path, data: str, shared_data: Callable[[str], Path]):
    """Sums of the nodes, masked for one of the runs, against the simulator's figures on all test rows at once."""
    if data == "numbers":
        shared_data("tables/auto_mpg.csv.gz")
    base = experiment() if data == "classes" else NUMBERS
    with deployment(tmp_path, given=base, judge="nodes") as made:
        for privacy in ([], [{"name": "secagg"}])[: 2 if data == "classes" else 1]:
            given = {**base, **({"privacy": privacy} if privacy else {})}
            there, ended = made.run(given)
            assert ended.status == "finished", (ended, made.log("server"))
            here = run(Experiment(parse(given)), out=tmp_path / f"here-{len(privacy)}", baselines=False).path
            assert (there / "model.safetensors").read_bytes() == (here / "model.safetensors").read_bytes()
            for mine, theirs in zip(rows_of(there), rows_of(here), strict=True):
                for key in ("accuracy", "macro_f1", "rmse", "mae", "r2", "loss"):
                    if key in theirs:
                        assert mine[key] == pytest.approx(theirs[key], abs=1e-6), key
                assert mine["clients"] == theirs["clients"]
            check_metric(RunFolder(there).summary(), RunFolder(here).summary())


def check_metric(there: RunSummary, here: RunSummary) -> None:
    """The metric is that of the pooled rows; the constant model is the best on the test rows, and says so."""
    assert there["metric"]["name"] == here["metric"]["name"]
    assert there["metric"]["value"] == pytest.approx(here["metric"]["value"], abs=1e-6)
    counted = there["metric"]["name"] == "accuracy"
    assert (there["metric"]["low"] is None) != counted, "only counts have an interval"
    check_answer(there, here, "nodes")
    assert there["trivial"]["source"] == "test rows"
    worse = -1 if here["metric"]["name"] == "rmse" else 1
    assert worse * (there["trivial"]["value"] - here["trivial"]["value"]) > -1e-6


def check_answer(there: RunSummary, here: RunSummary, judge: str) -> None:
    """Its figures are those of the simulation, and it says of nobody that federation pays."""
    found: Any = there["answer"]
    assert (found["verdict"], found["asked"]["judge"], found["gain"], found["alone"]) == (
        "not compared",
        judge,
        None,
        None,
    )
    assert found["text"].startswith("With ")
    assert "Whether to federate is not answered: nobody trains alone in a deployed run" in found["text"]
    assert "--baselines" not in found["text"]
    value, rows = found["together"], here["metric"]["test_rows"]
    assert value == pytest.approx(here["metric"]["value"], abs=1e-6)
    assert found["test_rows"] == rows
    if found["asked"]["figure"] == "accuracy":
        assert found["interval"] == pytest.approx(proportion(round(value * rows), rows))
        assert found["over_trivial"]["value"] == pytest.approx(value - there["trivial"]["value"])
        assert found["over_trivial"]["low"] < found["over_trivial"]["value"] < found["over_trivial"]["high"]

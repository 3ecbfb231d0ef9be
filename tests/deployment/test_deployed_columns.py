"""Two nodes with a table each grow the trees that the simulation grows, whatever dies on the way."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from deployments import Deployment, deployment, rows_of, until
from fedatlas import Experiment, run
from fedatlas.config import parse
from fedatlas.course.columns_end import MODEL, model_file
from fedatlas.prediction.parties import predict

pytestmark = pytest.mark.timing

NAMES = ["bank", "shop"]
PARTS = {"bank": [MODEL, model_file("bank"), "party-bank.json"], "shop": [model_file("shop"), "party-shop.json"]}


def tables(folder: Path, n: int = 120) -> None:
    """Each party knows a part of what decides the label, and lacks some rows of the other."""
    rng = np.random.default_rng(0)
    ids = [f"customer-{i:04d}" for i in range(n)]
    tenure, spent, visits = rng.uniform(18, 80, n), *rng.normal(size=(2, n))
    town = rng.choice(["Rome", "Oslo", ""], n)
    label = np.where(0.05 * (tenure - 49) + 2 * spent + (town == "Rome") + rng.logistic(size=n) > 0, "yes", "no")
    bank = pd.DataFrame({"customer": ids, "tenure": tenure, "town": town, "default": label})[: n - 10]
    shop = pd.DataFrame({"client": ids, "spent": spent, "visits": visits})[8:]
    bank.sample(frac=1, random_state=0).to_csv(folder / "bank.csv", index=False)
    shop.sample(frac=1, random_state=1).to_csv(folder / "shop.csv", index=False)


def experiment(folder: Path, trees: int) -> dict[str, Any]:
    return {
        "parties": [
            {"name": "bank", "path": str(folder / "bank.csv"), "id": "customer", "label": "default"},
            {"name": "shop", "path": str(folder / "shop.csv"), "id": "client"},
        ],
        "algorithm": {"name": "secureboost", "trees": trees, "bins": 6, "depth": 2},
        "privacy": [{"name": "paillier"}],
    }


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("columns")
    tables(folder)
    with deployment(folder, NAMES, experiment(folder, 1), "nodes") as made:
        yield made


def alike(two: Deployment, run_name: str, there: Path, here: Path) -> None:
    """The same trees, thresholds and figures; each part at its own party alone."""
    for name, files in PARTS.items():
        home = two.bundles[name] / "runs" / run_name
        for file in files:
            assert (home / file).read_bytes() == (here / file).read_bytes(), file
        assert (home / "report.html").exists()
        others = [file for other, found in PARTS.items() if other != name for file in found]
        assert not [file for file in others if (home / file).exists()]
    assert not [file for files in PARTS.values() for file in files if (there / file).exists()]
    for mine, theirs in zip(rows_of(there), rows_of(here), strict=True):
        for key in ("round", "accuracy", "macro_f1", "auc", "loss", "figures"):
            assert mine[key] == theirs[key], key


def test_two_nodes_grow_the_trees_of_the_simulation_although_processes_die(two: Deployment, tmp_path: Path):
    """In tree 1 the trainer of one node ends, in tree 2 the server; both with -9."""
    given = experiment(two.folder, 3)
    name = two.submit(given)
    folder = two.bundles["server"] / "runs" / name / "run"

    def under_way(tree: int) -> None:
        """Waits until some, and not all, of a tree's asks are answered."""
        journal = folder / "closed.jsonl"
        until(lambda: journal.exists() and f"\n[{tree}, " in journal.read_text(), f"tree {tree} does not begin")

    under_way(1)
    os.kill(two.trainer("shop"), signal.SIGKILL)
    under_way(2)
    two.kill("server")
    two.start("server")
    there, ended = two.ended(name)
    assert ended.status == "finished", (ended, two.log("server"))
    here = run(Experiment(parse(given)), out=tmp_path / "here", baselines=False).path
    alike(two, name, there, here)
    told = json.loads((there / "summary.json").read_text())
    found = told["answer"]
    assert (found["verdict"], found["asked"]["judge"], found["trivial"]) == ("not compared", "holder", None)
    assert found["together"] == told["metric"]["value"]
    assert told["metric"]["test_rows"] < 30
    assert "Too few to say how sure that is: an interval takes 30 test rows." in found["text"]
    assert "so whether the party with the label would do as well alone was not measured." in found["text"]
    files = {name: str(two.folder / f"{name}.csv") for name in NAMES}
    together = tmp_path / "together"
    shutil.copytree(two.bundles["bank"] / "runs" / name, together)
    shutil.copy(two.bundles["shop"] / "runs" / name / model_file("shop"), together)
    pd.testing.assert_frame_equal(predict(together, files).table, predict(here, files).table)
    report = (there / "report.html").read_text()
    for secret in ("customer-0", "tenure", "town", "spent", "visits"):
        assert secret not in report, "the server knows no id, and no column by its name"


def test_two_nodes_grow_the_forest_of_the_simulation(two: Deployment, tmp_path: Path):
    """The policy of a trial names the scheme; the report of each party says that labels count as known."""
    algorithm = {"name": "federated_forest", "trees": 3, "features": 1.0, "depth": 4}
    given = {**experiment(two.folder, 3), "algorithm": algorithm, "privacy": []}
    name = two.submit(given)
    there, ended = two.ended(name)
    assert ended.status == "finished", (ended, two.log("server"))
    here = run(Experiment(parse(given)), out=tmp_path / "here", baselines=False).path
    alike(two, name, there, here)
    for path in (there, *(two.bundles[party] / "runs" / name for party in NAMES)):
        assert "count the labels as known to all parties" in (path / "report.html").read_text()


def test_what_parties_with_columns_cannot_do_is_said(two: Deployment):
    given = experiment(two.folder, 2)
    strange = {**given, "parties": [{**given["parties"][0], "name": "club"}, given["parties"][1]]}
    for changed, why in [
        ({**given, "privacy": []}, "gradients in the clear reveal every label"),
        (strange, "party 'club' is not a node of this run"),
    ]:
        with pytest.raises(Exception, match=why):
            two.submit(changed)
    policy = two.bundles["shop"] / "policy.toml"
    before = policy.read_text()
    policy.write_text(before + 'algorithms = ["fedavg"]\n')
    _, ended = two.run(given)
    policy.write_text(before)
    assert ended.status == "failed"
    assert "'shop' takes no part: its policy.toml refuses the algorithm 'secureboost'" in ended.why

"""Runs of each mode of SecureBoost+ from files: resumed, stopped early, looked at before, reported and predicted with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedatlas
from fedatlas import api
from fedatlas.config import parse
from fedatlas.prediction.parties import predict
from fedatlas.record.run_folder import RunFolder
from fedatlas.runs.alignment_text import expectations
from fedatlas.setup.refusals import checked
from fedatlas.vertical import boosting
from fedatlas.vertical.judging import probabilities
from fedatlas.vertical.parties import order
from test_vertical_run import experiment, growing_in, grown, models, plain_rows, tables

CASES: dict[str, dict[str, Any]] = {
    "mix": {"mode": "mix"},
    "layered": {"mode": "layered", "passive_depth": 1},
    "mix goss": {"mode": "mix", "goss": [0.3, 0.2]},
}
TREES = 4
NAMES = ("bank", "shop", "phone")


def of(folder: Path, name: str, trees: int = TREES, **more: Any) -> fedatlas.Experiment:
    algorithm = {"name": "secureboost", "trees": trees, "bins": 16, **CASES[name]}
    return experiment(folder, *NAMES, algorithm=algorithm, **more)


@pytest.mark.timing
@pytest.mark.parametrize("name", CASES)
def test_it_is_resumed_and_predicts_as_it_was_trained(name: str, tmp_path: Path) -> None:
    tables(tmp_path)
    whole = api.run(of(tmp_path, name), out=tmp_path / "whole", baselines=False)
    api.run(of(tmp_path, name, 2), out=tmp_path / "run", baselines=False)
    api.resume(tmp_path / "run", [f"algorithm.trees={TREES}"], baselines=False)
    assert plain_rows(tmp_path / "run") == plain_rows(whole.path)
    assert models(tmp_path / "run") == models(whole.path)
    owned = [{party for party in NAMES if tree[party]} for tree in whole.summary["trees"]]
    if name != "layered":
        assert owned == [{NAMES[t % 3]} for t in range(TREES)]
    told = predict(whole.path, {one: str(tmp_path / f"{one}.csv") for one in NAMES}).table.set_index("customer")
    growing = growing_in(tmp_path / "again", checked(of(tmp_path, name).config))
    grown(growing, TREES)
    state = growing.federation.states.get(0)
    ids = [growing.held.tables[0].ids[i] for i in order(state)]
    assert np.array_equal(told.loc[ids, "p_yes"], probabilities(boosting.outputs(state)))


def test_a_dry_run_of_mixed_trees_takes_the_mean_of_a_turn(tmp_path: Path) -> None:
    """The label holder's tree costs no letter about rows, and those of the others each cost one party's."""
    tables(tmp_path)
    done = api.run(of(tmp_path, "mix", 3), out=tmp_path / "run", baselines=False)
    sent = [row["bytes_up"] + row["bytes_down"] for row in RunFolder(done.path).rows()[1:]]
    assert sent[0] < 0.5 * min(sent[1:])
    found = fedatlas.dry_run(of(tmp_path, "mix", 3))
    assert 0.7 * np.mean(sent) < found["bytes_per_tree"] < 1.5 * np.mean(sent)


@pytest.mark.parametrize(("secure", "said"), [(2, "the first 2"), (3, "all")])
def test_a_dry_run_counts_the_trees_that_ask_nothing_of_others(tmp_path: Path, secure: int, said: str) -> None:
    tables(tmp_path)
    algorithm = {"name": "secureboost", "trees": 3, "complete_secure": secure}
    made = experiment(tmp_path, *NAMES, algorithm=algorithm)
    done = api.run(made, out=tmp_path / "run", baselines=False)
    sent = sum(row["bytes_up"] + row["bytes_down"] for row in RunFolder(done.path).rows()[1:])
    found = fedatlas.dry_run(made)
    assert 0.6 * sent < found["bytes"] - found["bytes_alignment"] < 1.5 * sent
    assert f"3 of them, {said} on columns of {found['active']} only, with the matching" in " ".join(expectations(found))


def test_it_stops_early(tmp_path: Path) -> None:
    tables(tmp_path)
    held = {"evaluation": {"on": "validation", "validation": 0.2}, "stop": {"patience": 3}}
    done = api.run(of(tmp_path, "layered", 60, **held), out=tmp_path / "run", baselines=False)
    assert done.summary["stopped"].startswith("after tree")
    assert done.summary["rounds"] == done.summary["best"]["accuracy"]["round"] + 3 < 60


def test_hashes_of_runs_without_a_mode_stay(tmp_path: Path) -> None:
    """Keys that are left out do not enter the hash: a run of an older version is resumed."""
    dealt = {
        "data": {"name": "breast_cancer_wdbc", "limit": 300},
        "partition": {"name": "vertical", "parties": 3, "overlap": 0.8},
    }
    before = "0dc838d69b8dae05678eb798dfad9fe9713f6294057a5cde7c37913d2bedccc1"  # of the version without modes
    assert checked(parse({**dealt, "algorithm": {"name": "secureboost", "trees": 3}})).config.hash() == before
    plain = checked(experiment(tmp_path).config).config
    assert not {"mode", "passive_depth", "goss"} & plain.plain()["algorithm"].keys()
    assert checked(of(tmp_path, "mix").config).config.hash() != plain.hash()

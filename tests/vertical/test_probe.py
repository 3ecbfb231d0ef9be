"""The probe: a few trees on a few common rows, by which the party with the label sees whether the others' columns would help."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from fedatlas import Experiment, api, cli, run
from fedatlas.errors import ConfigError, DataError
from fedatlas.files import OWN_FILES
from fedatlas.runs import probe
from fedatlas.runs.columns_baselines import Side, grown, kept
from fedatlas.runs.probe_text import sentences
from fedatlas.setup.refusals import checked
from fedatlas.vertical.boosting import SECUREBOOST, secureboost
from fedatlas.vertical.parties import Columns, tensor
from test_columns_metric import given

TRAIN, TEST = 1500, 500


def experiment(folder: Path, **more: Any) -> Experiment:
    return Experiment.of(**given(folder, 0.5, algorithm={"name": "secureboost", "trees": 2}, **more))


def gain_of(seed: int, task: str, effect: float) -> dict[str, Any]:
    """Return the probe's gain of one draw of a world in which the other party's first column has an effect, or all are noise."""
    stream = np.random.default_rng(seed)
    n = TRAIN + TEST
    own, other = stream.normal(size=(n, 4)), stream.normal(size=(n, 5))
    z = own[:, 0] + 0.5 * own[:, 1] + effect * other[:, 0]
    y = z + stream.normal(size=n) if task == "numbers" else (z + stream.logistic(size=n) > 0).astype(np.float64)
    one = Columns(0, "bank", 0, ("bank", "shop"), (), own, tuple("abcd"), y, None, task, seed=seed)
    two = Columns(1, "shop", 0, ("bank", "shop"), (), other, tuple("efghi"), seed=seed)
    places = {"train": np.arange(TRAIN), "held": np.arange(0), "test": np.arange(TRAIN, n)}
    state = {"align": {"order": tensor(np.arange(n))}, "split": {name: tensor(at) for name, at in places.items()}}
    side = Side((one, two), (state, state))
    both, alone = (grown(each, SECUREBOOST, secureboost(trees=10), probe.TREES) for each in (side, kept(side, [0])))
    found = probe.gained(both, alone, seed, (1 + TEST / TRAIN) ** 0.5)
    return found["gain"]["rmse" if task == "numbers" else "auc"]


@pytest.mark.slow
@pytest.mark.parametrize(("task", "draws"), [("classes", 150), ("numbers", 100)])
def test_columns_of_noise_are_not_said_to_help_or_to_harm(task: str, draws: int) -> None:
    """The interval of 95% holds 0 in at least 93% of the draws, and lies above it in no more than 2%."""
    found = [gain_of(seed, task, 0.0) for seed in range(draws)]
    assert np.mean([one["low"] <= 0 <= one["high"] for one in found]) >= 0.93
    assert np.mean([one["low"] > 0 for one in found]) <= 0.02


@pytest.mark.parametrize("task", ["classes", "numbers"])
def test_a_column_that_helps_is_found(task: str) -> None:
    found = [gain_of(seed, task, 1.0) for seed in range(4)]
    assert all(one["low"] > 0 for one in found)


@pytest.mark.parametrize("task", ["classes", "numbers"])
def test_in_a_few_draws_noise_is_not_said_to_help(task: str) -> None:
    assert all(gain_of(seed, task, 0.0)["low"] <= 0 for seed in range(1, 5))


def test_a_probe_trains_ten_trees_whatever_the_run_has_and_writes_nothing(tmp_path: Path) -> None:
    made = experiment(tmp_path)
    before = sorted(tmp_path.iterdir())
    found = api.probe(made)
    assert sorted(tmp_path.iterdir()) == before
    assert (found["rows"], found["train_rows"], found["test_rows"], found["trees"]) == (240, 180, 60, 10)
    assert found["gain"]["auc"]["value"] == pytest.approx(found["together"]["auc"] - found["alone"]["auc"])
    assert found["gain"]["auc"]["low"] < found["gain"]["auc"]["value"] < found["gain"]["auc"]["high"]
    assert found["bytes_trees"] > 10 * 180 * 16  # g and h of every row in every tree, 8 bytes each
    text = " ".join(sentences(found))
    assert "10 trees, in the clear: the experiment has no [[privacy]], on 180 of them, judged on 60 others" in text
    assert "The columns of 'two' help" in text
    assert "This is a small sample's gain" in text


def test_a_probe_of_at_most_two_thousand_rows(tmp_path: Path) -> None:
    stream = np.random.default_rng(0)
    a, b = stream.normal(size=(2, 2600))
    ids = [f"i{k}" for k in range(2600)]
    label = np.where(a + b + stream.normal(size=2600) > 0, "yes", "no")
    pd.DataFrame({"id": ids, "a": a, "y": label}).to_csv(tmp_path / "one.csv", index=False)
    pd.DataFrame({"id": ids, "b": b}).to_csv(tmp_path / "two.csv", index=False)
    parties = [
        {"name": "one", "path": str(tmp_path / "one.csv"), "id": "id", "label": "y"},
        {"name": "two", "path": str(tmp_path / "two.csv"), "id": "id"},
    ]
    whole = checked(Experiment.of(parties=parties, algorithm={"name": "secureboost"}, align={"group": "x25519"}).config)
    found = probe.probed(whole)
    assert found["rows"] == 2600
    assert abs(found["train_rows"] + found["test_rows"] - probe.ROWS) <= 2
    assert abs(found["test_rows"] - 500) <= 2


def test_encryption_changes_no_figure_and_every_row_of_a_tree_is_encrypted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "ROWS", 40)
    monkeypatch.setattr(probe, "TREES", 2)
    clear = api.probe(experiment(tmp_path))
    sealed = api.probe(experiment(tmp_path, privacy=[{"name": "paillier"}]))
    for key in ("together", "alone", "gain", "train_rows", "test_rows"):
        assert sealed[key] == clear[key]
    assert (clear["protected"], sealed["protected"]) == (False, True)
    assert clear["ciphertexts"] == 0
    assert sealed["ciphertexts"] >= 2 * sealed["train_rows"]
    assert sealed["bytes_trees"] > 2 * sealed["train_rows"] * 512 > clear["bytes_trees"]  # of one ciphertext
    assert "2 trees, encrypted as in the run, on" in " ".join(sentences(sealed))


def test_the_command_prints_it(tmp_path: Path) -> None:
    made = experiment(tmp_path)
    run(made, out=tmp_path / "run", baselines=False)
    said = CliRunner().invoke(cli.app, ["probe", str(tmp_path / "run" / "config.toml")])
    assert said.exit_code == 0, said.output
    assert "The columns of 'two' help: higher AUC with them" in said.output
    told = CliRunner().invoke(cli.app, ["probe", str(tmp_path / "run" / "config.toml"), "--json"])
    assert json.loads(told.output)["gain"]["auc"]["value"] > 0


def test_what_cannot_be_probed_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^there is nothing to align"):
        api.probe(Experiment.of(data={"name": "digits"}))
    tables = given(tmp_path, 0.5)
    for one in tables["parties"]:
        one["path"] = OWN_FILES
    with pytest.raises(
        ConfigError, match=r"^a probe needs every party's table on this machine; between real parties, deploy"
    ):
        api.probe(Experiment.of(**tables))
    tables = given(tmp_path, 0.5)
    pd.read_csv(tmp_path / "two.csv").head(3).to_csv(tmp_path / "two.csv", index=False)
    with pytest.raises(DataError, match=r"common (rows|ones)"):
        api.probe(Experiment.of(**tables))


def test_trees_on_own_columns_only_are_counted_and_a_run_of_no_others_has_nothing_to_probe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "TREES", 2)
    keys = {"name": "secureboost", "trees": 4}
    found = api.probe(Experiment.of(**given(tmp_path, 0.5, algorithm={**keys, "complete_secure": 3})))
    assert (found["trees"], found["trees_before"]) == (2, 3)
    assert "2 trees after 3 on columns of one only, in the clear" in " ".join(sentences(found))
    nothing = Experiment.of(**given(tmp_path, 0.5, algorithm={**keys, "complete_secure": 4}))
    with pytest.raises(ConfigError, match=r"^none of the run's 4 trees uses columns of the others, .* lower algorithm"):
        api.probe(nothing)

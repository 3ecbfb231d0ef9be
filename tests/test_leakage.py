"""Attacks on recorded views: the attacker gets the view alone, figures stand beside a placebo, mechanisms leave no more than that."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedatlas import Experiment, attack, run
from fedatlas.errors import ConfigError, DataError
from fedatlas.leakage.carry_out import built
from fedatlas.leakage.child import work
from fedatlas.leakage.knowledge import given

ONE_ROW: dict[str, Any] = {
    "rounds": 2,
    "data": {"name": "digits", "limit": 8, "scale": "federated"},
    "partition": {"name": "iid", "clients": 8},
    "model": {"name": "lenet_sigmoid"},
    "local": {"steps": 1, "lr": 0.1},
    "observe": {"roles": ["server", "client:0", "outsider"]},
}
QUICK = {"iterations": 150, "targets": 4}


@pytest.fixture(autouse=True)
def _same_process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting a process takes seconds: one test does, the others attack in their own."""
    if "apart" not in request.keywords:
        monkeypatch.setattr("fedatlas.leakage.knowledge.apart", work)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("leakage") / "plain"
    run(Experiment.of(**ONE_ROW), out=path, baselines=False)
    return path


def public(plain: Path) -> dict[str, Any]:
    """Constants that everybody knows, and the weights that noise asks for."""
    data = {"name": "digits", "limit": 8, "constants": str(plain / "preprocess.json")}
    return {"data": data, "algorithm": {"name": "fedavg", "weights": "uniform"}}


def test_without_defence_pictures_come_back(plain: Path):
    found = attack(plain, "inverting_gradients", **QUICK)
    psnr, leak = found["metrics"]["psnr"], found["leaks"]["psnr"]
    assert psnr["low"] > 20 > psnr["placebo"]
    assert found["metrics"]["label"]["value"] == 1
    assert leak["value"] == pytest.approx(psnr["value"] - psnr["placebo"])
    assert leak["low"] > 5
    assert set(found["declaration"]) == {"who", "how", "when", "where", "why", "knowledge", "budget"}
    kept = json.loads((plain / "attacks" / "inverting_gradients" / "attack.json").read_text())
    assert kept == found
    with np.load(plain / "attacks" / "inverting_gradients" / "found.npz") as arrays:
        assert arrays["found"].shape == arrays["original"].shape == (4, 1, 8, 8)


def test_dlg_finds_row_and_label(plain: Path):
    found = attack(plain, "dlg", targets=4, iterations=120, restarts=3)
    assert found["metrics"]["label"]["value"] == 1
    assert found["metrics"]["mse"]["value"] < 1e-3


@pytest.mark.parametrize(
    ("tables", "role"),
    [
        ({"privacy": [{"name": "secagg"}]}, "server"),
        ({"rounds": 1, "privacy": [{"name": "local_dp", "epsilon": 8.0, "clip": 1.0}]}, "server"),
        ({"privacy": [{"name": "central_dp", "noise_multiplier": 1.0, "clip": 1.0}]}, "outsider"),
    ],
    ids=["secagg", "local_dp", "central_dp"],
)
def test_under_a_mechanism_there_is_no_more_than_the_placebo(
    tmp_path: Path, plain: Path, tables: dict[str, Any], role: str
):
    given = {**ONE_ROW, **public(plain), **tables}
    run(Experiment.of(**{**given, "observe": {"roles": [role]}}), out=tmp_path / "run", baselines=False)
    found = attack(tmp_path / "run", "inverting_gradients", role=role, iterations=60)
    assert found["leaks"]["psnr"]["value"] <= 1
    assert found["metrics"]["psnr"]["value"] < 12


def test_central_noise_hides_nothing_from_the_server(tmp_path: Path, plain: Path):
    given = {**ONE_ROW, **public(plain)}
    given |= {"privacy": [{"name": "central_dp", "noise_multiplier": 1.0, "clip": 1.0}], "rounds": 1}
    run(Experiment.of(**given), out=tmp_path / "run", baselines=False)
    assert attack(tmp_path / "run", "inverting_gradients", **QUICK)["leaks"]["psnr"]["low"] > 5


def test_the_attacker_is_given_the_view_of_its_role_and_no_other_file(plain: Path):
    with given(plain, built("inverting_gradients", {"role": "client:0"}), 1, None) as folder:
        names = {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}
    rounds = {f"observed/client-0/round-{number:06d}.frames" for number in (0, 1, 2)}
    assert names == {"order.json", "config.toml", "preprocess.json", "observed/index.json", *rounds}


def test_with_the_data_gone_the_answer_is_kept_and_unscored(plain: Path, monkeypatch: pytest.MonkeyPatch):
    def gone(*given: Any, **keys: Any) -> None:
        raise DataError("the data are gone.")

    monkeypatch.setattr("fedatlas.leakage.carry_out.set_up", gone)
    found = attack(plain, "inverting_gradients", iterations=20, targets=2)
    assert found["metrics"] == {}
    assert "nobody could score it: the data are gone." in found["unscored"]
    with np.load(plain / "attacks" / "inverting_gradients" / "found.npz") as arrays:
        assert arrays["x"].shape == (2, 1, 8, 8)


@pytest.mark.parametrize(
    ("name", "keys", "words"),
    [
        ("inverting_gradient", {}, "did you mean 'inverting_gradients'"),
        ("dlg", {"target": 3}, "did you mean 'attack.targets'"),
        ("dlg", {"restarts": 0}, "a number of 1 or more"),
        ("dlg", {"role": "client:5"}, r'write roles = \["client:5"\] under \[observe\]'),
        ("dlg", {"role": "nobody"}, "role"),
    ],
)
def test_a_wrong_attack_is_refused_in_a_sentence(plain: Path, name: str, keys: dict[str, Any], words: str):
    with pytest.raises(ConfigError, match=words):
        attack(plain, name, **keys)


def test_a_view_that_was_altered_is_refused(plain: Path, tmp_path: Path):
    shutil.copytree(plain, tmp_path / "run")
    file = tmp_path / "run" / "observed" / "server" / "round-000001.frames"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ConfigError, match="cut short or altered"):
        attack(tmp_path / "run", "dlg")


def test_more_than_one_step_on_one_row_is_refused(tmp_path: Path):
    run(Experiment.of(**{**ONE_ROW, "local": {"epochs": 3}}), out=tmp_path / "run", baselines=False)
    with pytest.raises(ConfigError, match=r"write steps = 1 under \[local\]"):
        attack(tmp_path / "run", "inverting_gradients")

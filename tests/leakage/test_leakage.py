"""Attacks on recorded views: the attacker gets the view alone, figures stand beside a placebo, mechanisms leave no more than that."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from configured import set_up
from fedatlas import Experiment, attack, run
from fedatlas.attacks.membership import candidates_of, placebo_spread, smallest_shown
from fedatlas.attacks.roles import ViewRole
from fedatlas.cli import app
from fedatlas.errors import ConfigError, DataError
from fedatlas.leakage.attack_text import attack_sentence
from fedatlas.leakage.attacker_folder import attacker_folder
from fedatlas.leakage.attacker_process import carry_out
from fedatlas.leakage.view_gradients import read_gradients
from fedatlas.record.observed import RoleView
from fedatlas.setup.truth import truth_of
from fedatlas.setup.views import build_view_attack
from reports import Page

ONE_ROW: dict[str, Any] = {
    "rounds": 2,
    "data": {"name": "digits", "limit": 8, "scale": "federated"},
    "partition": {"name": "iid", "clients": 8},
    "model": {"name": "lenet_sigmoid"},
    "local": {"steps": 1, "lr": 0.1},
    "observe": {"roles": ["server", "client:0", "outsider"]},
}
QUICK = {"iterations": 100, "targets": 3}


@pytest.fixture(autouse=True)
def _same_process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting a process takes seconds: one test does, the others attack in their own."""
    if "process_of_its_own" not in request.node.name:
        monkeypatch.setattr("fedatlas.leakage.attacker_folder.work_apart", carry_out)


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
        assert arrays["found"].shape == arrays["original"].shape == (3, 1, 8, 8)


def test_the_attacker_works_in_a_process_of_its_own(plain: Path, monkeypatch: pytest.MonkeyPatch):
    """Whose data folder is empty, and whose refusal arrives as a sentence."""
    folders: list[str] = []
    real = subprocess.run

    def watched(words: list[str], **keys: Any) -> Any:
        folders.append(keys["env"]["FEDATLAS_DATA"])
        assert not list(Path(folders[-1]).iterdir())
        return real(words, **keys)

    monkeypatch.setattr(subprocess, "run", watched)
    found = attack(plain, "inverting_gradients", iterations=5, targets=2)
    assert found["targets"] == 2
    assert len(folders) == 1
    assert not Path(folders[0]).exists()


@pytest.mark.parametrize("name", ["dlg", "idlg"])
def test_dlg_finds_row_and_label(plain: Path, name: str):
    found = attack(plain, name, targets=2, iterations=80, restarts=2)
    assert found["metrics"]["label"]["value"] == 1
    assert found["metrics"]["mse"]["value"] < 1e-3


@pytest.mark.timing
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
    found = attack(tmp_path / "run", "inverting_gradients", role=role, iterations=40, targets=4)
    assert found["leaks"]["psnr"]["value"] <= 1
    assert found["metrics"]["psnr"]["value"] < 12


def test_central_noise_hides_nothing_from_the_server(tmp_path: Path, plain: Path):
    given = {**ONE_ROW, **public(plain)}
    given |= {"privacy": [{"name": "central_dp", "noise_multiplier": 1.0, "clip": 1.0}], "rounds": 1}
    run(Experiment.of(**given), out=tmp_path / "run", baselines=False)
    assert attack(tmp_path / "run", "inverting_gradients", **QUICK)["leaks"]["psnr"]["low"] > 5


def test_the_attacker_is_given_the_view_of_its_role_and_no_other_file(plain: Path):
    made = build_view_attack("attack", "inverting_gradients", {"role": "client:0"})
    with attacker_folder(plain, made, 1) as folder:
        names = {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}
    rounds = {f"observed/client-0/round-{number:06d}.frames" for number in (0, 1, 2)}
    assert names == {"order.json", "config.toml", "preprocess.json", "observed/index.json", *rounds}


def test_with_the_data_gone_the_answer_is_kept_and_unscored(plain: Path, monkeypatch: pytest.MonkeyPatch):
    def gone(*given: Any, **keys: Any) -> None:
        raise DataError("the data are gone.")

    monkeypatch.setattr("fedatlas.leakage.attack_run.set_up", gone)
    found = attack(plain, "inverting_gradients", iterations=5, targets=2)
    assert found["metrics"] == {}
    assert "could not be scored: the data are gone." in found["unscored"]
    with np.load(plain / "attacks" / "inverting_gradients" / "found.npz") as arrays:
        assert arrays["x"].shape == (2, 1, 8, 8)


GAME: dict[str, Any] = {
    "rounds": 30,
    "data": {"name": "digits", "limit": 600},
    "partition": {"name": "iid", "clients": 6},
    "model": {"name": "mlp", "hidden": [128]},
    "local": {"epochs": 5, "lr": 0.02, "batch_size": 10},
    "evaluation": {"clients": 0.5, "every": 30},
    "attack": [{"name": "membership"}],
}


@pytest.fixture(scope="module")
def game(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("game") / "run"
    run(Experiment.of(**GAME), out=path, baselines=False)
    return path


def test_the_game_is_played_when_the_run_is_over(game: Path):
    found = json.loads((game / "attacks" / "membership" / "attack.json").read_text())
    auc = found["metrics"]["auc"]
    assert auc["low"] > 0.5
    assert auc["placebo"] == 0.5
    assert auc["placebo_high"] - 0.5 == pytest.approx(0.5 - auc["placebo_low"]) == found["leaks"]["auc"]["beyond"]
    assert auc["value"] > auc["placebo_high"] > 0.5
    assert found["leaks"]["auc"]["value"] == pytest.approx(auc["value"] - 0.5)
    assert found["metrics"]["tpr_at_fpr_0.001"]["value"] is None  # not resolved by so few
    assert "What a party could have learnt" in (game / "report.html").read_text()
    shadow = attack(game, "membership", method="shadow", shadows=2, epochs=10)
    assert 0.4 < shadow["metrics"]["auc"]["value"] <= 1


def test_candidates_are_balanced_and_no_candidate_is_an_auxiliary_row(game: Path):
    made = set_up(Experiment.of(**GAME).config, 1)
    found = candidates_of(truth_of(made))
    assert found.member.sum() * 2 == len(found.member)
    inside, outside = (np.bincount(found.y.numpy()[side], minlength=10) for side in (found.member, ~found.member))
    assert (inside == outside).all()
    rows = {row.numpy().tobytes() for row in found.x}
    assert len(rows) == len(found.x)
    assert not rows & {row.numpy().tobytes() for row in found.auxiliary_x}
    trained = {row.numpy().tobytes() for k in made.sizes for row in made.bench.rows(k).x}
    assert [row.numpy().tobytes() in trained for row in found.x] == found.member.tolist()
    with np.load(game / "attacks" / "membership" / "candidates.npz") as kept:
        assert set(kept.files) == {"x", "y"}  # not the truth


def test_an_untrained_model_tells_nobody_apart(tmp_path: Path):
    given = {**GAME, "rounds": 1, "data": {"name": "digits", "limit": 900}, "local": {"steps": 1, "lr": 1e-9}}
    run(Experiment.of(**{**given, "evaluation": {"clients": 0.5}}), out=tmp_path / "run", baselines=False)
    found = json.loads((tmp_path / "run" / "attacks" / "membership" / "attack.json").read_text())
    assert found["metrics"]["auc"]["value"] == pytest.approx(0.5, abs=0.08)
    assert found["leaks"]["auc"]["low"] < 0 < found["leaks"]["auc"]["high"]
    smallest = found["leaks"]["auc"]["smallest"]
    assert 0.55 < smallest < 0.8
    said = f"no leak seen: {found['targets']} candidates would have shown AUC of {smallest:.4g} or more with 80% power."
    assert said in attack_sentence(found)
    assert said in Page(tmp_path / "run" / "report.html").text()


def normal(members: int, others: int, auc: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores of so many members and others whose true AUC is that of two normal distributions."""
    stream = np.random.default_rng(seed)
    shift = np.sqrt(2) * NormalDist().inv_cdf(auc)
    member = np.arange(members + others) < members
    return stream.normal(size=len(member)) + shift * member, member


@pytest.mark.parametrize(("rows", "most"), [pytest.param(20, 0.05, marks=pytest.mark.slow), (100, 0.05)])
def test_chance_is_seldom_beyond_the_placebos_spread(rows: int, most: float):
    """Of 200 games with nothing to find, at most 5% are beyond it; the mean of splits and complements is 0.5 by symmetry."""
    beyond = 0
    for seed in range(200):
        score, member = normal(rows, rows, 0.5, seed)
        auc = (score[member][:, None] > score[~member]).mean()
        beyond += auc - 0.5 > placebo_spread(score, member, seed)
    assert beyond <= most * 200


def test_the_smallest_auc_is_shown_in_four_of_five_games():
    rows, spreads = 60, []
    for seed in range(20):
        score, member = normal(rows, rows, 0.5, seed)
        spreads.append(placebo_spread(score, member, seed))
    spread = float(np.median(spreads))
    smallest = smallest_shown(rows, rows, spread)
    assert smallest is not None
    seen = 0
    for seed in range(400):
        score, member = normal(rows, rows, smallest, seed)
        seen += (score[member][:, None] > score[~member]).mean() - 0.5 > spread
    assert 0.72 < seen / 400 < 0.88  # 4 standard deviations of 400 games around 80%
    assert smallest_shown(2, 2, 0.5) is None
    assert [smallest_shown(n, n, 0.0) for n in (50, 500)] == sorted([smallest_shown(n, n, 0.0) for n in (50, 500)])[
        ::-1
    ]


ALONE: dict[str, Any] = {key: value for key, value in ONE_ROW.items() if key != "observe"} | {"rounds": 1}


@pytest.mark.parametrize("rounds", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_an_outsider_needs_the_models_before_and_after_round_1(tmp_path: Path, rounds: int):
    declared = {"name": "inverting_gradients", "role": "outsider", "iterations": 5, "targets": 2}
    run(Experiment.of(**{**ALONE, "rounds": rounds, "attack": [declared]}), out=tmp_path / "run", baselines=False)
    assert {path.name for path in (tmp_path / "run/observed/outsider").iterdir()} == {
        "round-000000.frames",
        "round-000001.frames",
    }
    found = json.loads((tmp_path / "run/attacks/inverting_gradients/attack.json").read_text())
    assert found["metrics"]["psnr"]["value"] > 0


def test_the_mean_gradient_is_that_of_round_1_for_client_and_outsider(plain: Path):
    """Both see w_0 and w_1: (w_0 - w_1) / lr."""
    config = Experiment.of(**ONE_ROW).config
    start, end = (load_file(plain / f"{name}.safetensors") for name in ("initial", "model"))
    sides = [
        read_gradients(RoleView(plain, ViewRole.parse(role, "role")), config, 0).gradients
        for role in ("client:0", "outsider")
    ]
    assert all(torch.equal(x, sides[1][name]) for name, x in sides[0].items())
    name = next(iter(start))
    assert not torch.allclose((start[name] - end[name]) / 0.1, sides[0][name][0])  # the end is after round 2


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"local": {"epochs": 3, "lr": 0.1}}, r"attack 'dlg' inverts .* set steps = 1 under \[local\]"),
        ({"data": {"name": "digits", "limit": 80}}, "and as many clients as rows"),
        ({"model": {"name": "lenet_sigmoid", "loss": "multiclass_hinge"}}, "requires model.loss = 'cross_entropy'"),
        ({"attack": [{"name": "dlg", "role": "client:0"}]}, "set rounds = 2"),
    ],
)
def test_an_attack_that_cannot_be_carried_out_is_refused_before_the_run(
    tmp_path: Path, tables: dict[str, Any], words: str
):
    given = {**ALONE, "attack": [{"name": "dlg", "targets": 1}], **tables}
    with pytest.raises(ConfigError, match=words):
        run(Experiment.of(**given), out=tmp_path / "run", baselines=False)
    assert not (tmp_path / "run").exists()


def test_an_attack_that_fails_is_told_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """In summary and report, and by the exit code; the run itself stays."""

    def broken(*given: Any) -> None:
        raise RuntimeError("the attack ended without an answer")

    monkeypatch.setattr("fedatlas.leakage.attacker_folder.work_apart", broken)
    file = tmp_path / "dlg.toml"
    file.write_text(tomli_w.dumps({**ALONE, "attack": [{"name": "dlg", "targets": 1}]}))
    done = CliRunner().invoke(app, ["run", str(file), "--out", str(tmp_path / "run"), "--no-baselines", "--quiet"])
    assert done.exit_code == 1
    said = "attack 'dlg' could not be carried out: the attack ended without an answer"
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["failed_attacks"] == {"dlg": said}
    assert said in Page(tmp_path / "run" / "report.html").text()
    monkeypatch.setattr("fedatlas.leakage.attacker_folder.work_apart", carry_out)
    assert "unscored" not in attack(tmp_path / "run", "dlg", targets=1, iterations=2)


def test_the_model_of_a_client_that_was_told_it_is_attacked_too(tmp_path: Path):
    given = {**GAME, "rounds": 2, "attack": [{"name": "membership", "role": "client:1"}]}
    run(Experiment.of(**given), out=tmp_path / "run", baselines=False)
    found = json.loads((tmp_path / "run" / "attacks" / "membership" / "attack.json").read_text())
    assert found["role"] == "client:1"
    assert (tmp_path / "run" / "observed" / "client-1" / "round-000002.frames").exists()


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"evaluation": {}}, r"set clients = 0.5 under \[evaluation\]"),
        ({"attack": [{"name": "membership"}] * 2}, "is declared twice"),
        ({"attack": [{"name": "membership", "shadow": 3}]}, "did you mean 'attack.membership.shadows'"),
        ({"attack": [{"name": "dlg", "role": ["server", "client:1"]}]}, "several roles"),
        ({"attack": [{"name": "dlg", "role": "client:9"}]}, "the clients are 0 to 5"),
        ({"attack": [{"name": "dlg", "role": "sever"}]}, "did you mean 'server'"),
        ({"algorithm": {"name": "local_only"}}, "baseline"),
    ],
)
def test_a_wrong_declaration_is_refused_before_the_run(tmp_path: Path, tables: dict[str, Any], words: str):
    with pytest.raises(ConfigError, match=words):
        run(Experiment.of(**{**GAME, **tables}), out=tmp_path / "run", baselines=False)


def test_without_candidates_there_is_no_game(plain: Path):
    with pytest.raises(ConfigError, match="candidates are drawn when the attack is declared"):
        attack(plain, "membership")


@pytest.mark.parametrize(
    ("name", "keys", "words"),
    [
        ("inverting_gradient", {}, "did you mean 'inverting_gradients'"),
        ("dlg", {"target": 3}, "did you mean 'attack.targets'"),
        ("dlg", {"restarts": 0}, "a number of 1 or more"),
        ("dlg", {"role": "client:5"}, r'Add roles = \["client:5"\] under \[observe\]'),
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
    run(Experiment.of(**{**ONE_ROW, "local": {"epochs": 17}}), out=tmp_path / "run", baselines=False)
    with pytest.raises(ConfigError, match=r"set steps = 1 under \[local\]"):
        attack(tmp_path / "run", "dlg")
    with pytest.raises(ConfigError, match="unrolls at most 16 steps, and a client here takes 17"):
        attack(tmp_path / "run", "inverting_gradients")

"""LiRA, RMIA and the worst-case attack on runs: an overfitted model betrays its rows, an unfair game has no figure."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from configured import set_up
from fedatlas import Experiment, attack, run
from fedatlas.attacks.membership import AUXILIARY, candidates_of, known_half, scored, smallest_shown
from fedatlas.attacks.shadow_models import Training, federated
from fedatlas.attacks.view_attack import Truth, is_leak
from fedatlas.cli import app
from fedatlas.errors import ConfigError
from fedatlas.leakage.attacker_folder import attacker_folder
from fedatlas.leakage.attacker_process import carry_out
from fedatlas.setup.truth import truth_of
from fedatlas.setup.views import build_view_attack
from reports import Page

CLIENTS = 10


@pytest.fixture(autouse=True)
def _same_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting a process takes seconds; test_leakage.py starts one."""
    monkeypatch.setattr("fedatlas.leakage.attacker_folder.work_apart", carry_out)


def overfitted(table: Path) -> dict[str, Any]:
    """20 training rows a client, whose labels are mostly noise, 200 epochs."""
    stream = np.random.default_rng(1)
    x = stream.normal(size=(CLIENTS * 54, 20))
    y = x[:, 0] + stream.normal(size=len(x)) > 0
    names = ",".join([*(f"x{i}" for i in range(20)), "y"])
    np.savetxt(table, np.column_stack([x, y]), delimiter=",", header=names, comments="", fmt="%.4f")
    return {
        "rounds": 10,
        "data": {"name": "file", "path": str(table), "label": "y"},
        "partition": {"name": "iid", "clients": CLIENTS},
        "model": {"name": "mlp", "hidden": [64]},
        "local": {"epochs": 20, "batch_size": 5, "lr": 0.1},
        "evaluation": {"clients": 0.5, "every": 10},
        "attack": [{"name": "membership", "method": "lira", "online": True, "shadows": 8}],
    }


class Game:
    """A finished run, and its experiment."""

    def __init__(self, folder: Path) -> None:
        self.tables = overfitted(folder / "table.csv")
        self.run = folder / "run"
        self.config = Experiment.of(**self.tables).config
        run(Experiment.of(**self.tables), out=self.run, baselines=False)

    def truth(self) -> Truth:
        """Return what only a holder of the data knows."""
        return truth_of(set_up(self.config, 1))


@pytest.fixture(scope="module")
def game(tmp_path_factory: pytest.TempPathFactory) -> Game:
    patch = pytest.MonkeyPatch()
    patch.setattr("fedatlas.leakage.attacker_folder.work_apart", carry_out)
    made = Game(tmp_path_factory.mktemp("membership"))
    patch.undo()
    return made


def test_an_overfitted_model_betrays_its_rows(game: Game):
    """The interval of the AUC lies above the placebo's spread."""
    found = json.loads((game.run / "attacks" / "membership" / "attack.json").read_text())
    auc = found["metrics"]["auc"]
    assert auc["low"] > auc["placebo_high"] > 0.5
    assert is_leak(found["leaks"]["auc"])
    assert found["keys"] == {"method": "lira", "online": True, "shadows": 8, "epochs": None}
    assert "8 models trained as often as the federation's on random halves" in found["declaration"]["budget"]
    assert "a leak" in Page(game.run / "report.html").text()


@pytest.mark.parametrize(
    "keys",
    [
        {"method": "lira", "shadows": 4},
        {"method": "rmia", "shadows": 4},
        {"method": "rmia", "online": "true", "shadows": 4, "epochs": 100},
        {"method": "worst_case"},
    ],
    ids=lambda keys: "-".join(map(str, keys.values())),
)
def test_each_method_is_a_command(game: Game, keys: dict[str, Any]):
    words = [f"{key}={value}" for key, value in keys.items()]
    done = CliRunner().invoke(app, ["attack", str(game.run), "--name", "membership", *words, "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert 0.3 < found["metrics"]["auc"]["value"] <= 1
    assert found["metrics"]["tpr_at_fpr_0.001"]["value"] is None
    assert set(found["leaks"]) == {"auc"}


def test_the_worst_case_is_judged_on_rows_whose_truth_was_not_told(game: Game):
    truth = game.truth()
    found, half = attack(game.run, "membership", method="worst_case"), known_half(truth)
    many = len(candidates_of(truth).member)
    assert found["targets"] == many - len(half) == many - many // 2
    made = build_view_attack("attack", "membership", {"method": "worst_case"})
    assert made.tells is not None
    told = made.tells(truth)
    assert told["known"] == half.tolist()
    assert told["member"] == candidates_of(truth).member[half].tolist()
    assert "of half of the candidates whether they are members" in made.declares.knowledge


def test_likelihood_attacks_are_told_sizes_and_no_truth(game: Game):
    made = build_view_attack("attack", "membership", {"method": "lira"})
    assert made.tells is None
    with attacker_folder(game.run, made, 1, {"sizes": [20] * CLIENTS}) as folder:
        names = {path.name for path in folder.iterdir()}
    assert names == {
        "order.json", "told.json", "config.toml", "preprocess.json", "model.safetensors", "candidates.npz", AUXILIARY, "shadows",
    }  # fmt: skip
    assert set(game.truth().sizes.values()) <= {20, 21}


def test_finished_shadow_models_are_not_trained_again(game: Game, monkeypatch: pytest.MonkeyPatch):
    """An attack that was stopped goes on, and RMIA uses LiRA's models; other epochs make other models."""
    membership = import_module("fedatlas.attacks.membership")  # the package has a function of that name
    taught, train = list[Training](), membership.trained
    monkeypatch.setattr(membership, "trained", lambda *given: taught.append(given[3]) or train(*given))
    keys = {"online": True, "shadows": 4, "epochs": 2}
    first = attack(game.run, "membership", method="lira", **keys)
    assert len(taught) == 4
    kept = sorted((game.run / "attacks" / "membership" / "shadows").iterdir(), key=lambda file: file.stat().st_mtime)
    kept[-1].unlink()
    assert attack(game.run, "membership", method="lira", **keys) == first
    assert len(taught) == 5
    attack(game.run, "membership", method="rmia", **keys)
    assert len(taught) == 5
    attack(game.run, "membership", method="rmia", **keys | {"epochs": 3})
    assert len(taught) == 9


def test_shadow_training_mimics_the_federations(game: Game):
    """20 rows in batches of 5: 4 steps an epoch, each with a quarter of the clients' rows; 10 rounds of 20 epochs."""
    assert federated(game.config, [20] * CLIENTS, 100) == Training(0.1, 25, 200)
    half = Experiment.of(**{**game.tables, "cohort": {"fraction": 0.5}}).config
    assert federated(half, [20] * CLIENTS, 100) == Training(0.1, 12, 100)
    steps = Experiment.of(**{**game.tables, "local": {"steps": 8, "batch_size": 0, "lr": 0.1, "momentum": 0.9}}).config
    assert federated(steps, [20] * CLIENTS, 100) == Training(0.1, 100, 80, momentum=0.9)
    assert federated(steps, [20] * CLIENTS, 100, 7).epochs == 7


# ---------------------------------------------------------------------- an unfair game


def test_an_unfair_game_has_no_figure(game: Game, monkeypatch: pytest.MonkeyPatch):
    """Held-out rows of other people lie elsewhere: a classifier without the model tells them apart."""

    def shifted(*given: Any) -> Truth:
        truth = truth_of(*given)
        return truth._replace(kept=lambda k: (rows := truth.kept(k))._replace(x=rows.x + 1.0))

    monkeypatch.setattr("fedatlas.leakage.attack_run.truth_of", shifted)
    found = attack(game.run, "membership", method="loss")
    assert found["metrics"] == found["leaks"] == {}
    assert "unfair game: a classifier that sees rows but no model" in found["unscored"]
    monkeypatch.undo()
    monkeypatch.setattr("fedatlas.leakage.attacker_folder.work_apart", carry_out)
    assert attack(game.run, "membership", method="loss")["metrics"]


# ---------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"method": "lira", "shadows": 5}, "needs an even number of at least 4 shadow models"),
        ({"method": "rmia", "shadows": 2}, "needs an even number of at least 4 shadow models"),
        ({"method": "lyra"}, "lira"),
    ],
)
def test_wrong_keys_are_refused_in_a_sentence(game: Game, keys: dict[str, Any], words: str):
    with pytest.raises(ConfigError, match=words):
        attack(game.run, "membership", **keys)


@pytest.mark.parametrize(("online", "words"), [(True, "halves of .* candidates"), (False, "auxiliary rows")])
def test_too_few_rows_are_refused_before_round_1(game: Game, tmp_path: Path, online: bool, words: str):
    few = {**game.tables, "data": {"name": "digits", "limit": 20}, "partition": {"name": "iid", "clients": 2}}
    few |= {"attack": [{"name": "membership", "method": "lira", "online": online}]}
    with pytest.raises(ConfigError, match=f"{words} are too few to train shadow models on; raise evaluation.clients"):
        run(Experiment.of(**few), out=tmp_path / "run", baselines=False)


# ---------------------------------------------------------------------- scores whose truth is known


def calls(auc: float, games: int, rows: int) -> int:
    """Return how many of so many games are called a leak, if members score higher by what makes that AUC."""
    shift = np.sqrt(2) * NormalDist().inv_cdf(auc)
    member = np.arange(2 * rows) < rows
    each = (np.random.default_rng(seed).normal(size=len(member)) + shift * member for seed in range(games))
    return sum(is_leak(scored(member, score, seed).leaks["auc"]) for seed, score in enumerate(each))


def test_clean_scores_are_seldom_called_a_leak():
    """At most 5% and noise: the 99% quantile of 40 draws at 5% is 6, and a claim needs interval and spread."""
    assert calls(0.5, 40, 60) <= 4


@pytest.mark.slow
def test_of_200_clean_games_at_most_5_percent_are_called():
    assert calls(0.5, 200, 100) <= 10


@pytest.mark.slow
def test_a_leak_of_the_stated_size_is_called_in_four_of_five_games():
    """4 standard deviations of 100 games around 80%; the median of the placebo's spread as in most games."""
    member = np.arange(200) < 100
    spreads = [
        scored(member, np.random.default_rng(seed).normal(size=200), seed).leaks["auc"]["beyond"] for seed in range(20)
    ]
    smallest = smallest_shown(100, 100, float(np.median(np.array(spreads, float))))
    assert smallest is not None
    assert 64 <= calls(smallest, 100, 100) <= 96

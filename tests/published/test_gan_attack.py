"""T6: distances are compared at equal accuracy and at equal rounds, and a smaller run of it writes them by round."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedatlas import Experiment, run
from fedatlas.attacks.roles import ViewRole
from fedatlas.published import reproduction
from fedatlas.published.gates import PartRuns
from fedatlas.published.t6_gan import MODES, accuracies, compared, gan_attack, order, same_round
from fedatlas.record.observed import RoleView
from fedatlas.record.run_folder import RunFolder


def rows(accuracy: list[float], fid: list[float]) -> list[dict[str, float]]:
    return [
        {"round": 10 * i + 1, "accuracy": a, "drawn_fid": f} for i, (a, f) in enumerate(zip(accuracy, fid, strict=True))
    ]


def runs(fedavg: list[dict[str, float]], fedseq: list[dict[str, float]]) -> dict[str, PartRuns]:
    return {
        f"{name}-{mode}": PartRuns({1: of}) for name, of in (("fedavg", fedavg), ("fedseq", fedseq)) for mode in MODES
    }


def test_distances_are_interpolated_between_the_accuracies_that_both_reach() -> None:
    found = runs(rows([0.2, 0.6], [20.0, 10.0]), rows([0.4, 0.8], [18.0, 14.0]))
    assert compared(found, ["fedavg-thesis", "fedseq-thesis"], "accuracy") == pytest.approx([12.5, 17.0])
    assert order("thesis")(found).passed is True
    assert order("head_only")(found).passed is None
    swapped = runs(rows([0.4, 0.8], [18.0, 14.0]), rows([0.2, 0.6], [20.0, 10.0]))
    assert order("thesis")(swapped).passed is False


def test_models_without_a_common_accuracy_are_not_judged() -> None:
    found = runs(rows([0.2, 0.3], [20.0, 10.0]), rows([0.4, 0.8], [18.0, 14.0]))
    assert order("thesis")(found) == ("the models have no accuracy in common", None)


@pytest.mark.parametrize(("fid", "accuracy", "passed"), [(9.6, 0.5, True), (9.4, 0.5, False), (12.0, 0.3, False)])
def test_at_the_same_round_the_model_is_better_and_the_pictures_are_no_nearer(
    fid: float, accuracy: float, passed: bool
) -> None:
    found = runs(rows([0.4, 0.4], [10.0, 10.0]), rows([accuracy] * 2, [fid] * 2))
    assert same_round(found).passed is passed


def test_the_parts_are_both_algorithms_in_both_modes_with_three_seeds() -> None:
    made = gan_attack()
    assert [(part.name, part.seeds) for part in made.parts] == [
        (f"{algorithm}-{mode}", (1, 2, 3)) for algorithm in ("fedavg", "fedseq") for mode in MODES
    ]
    assert all(
        (part.tables["attack"]["steps"], part.tables["attack"]["selections"]) == (300, 10) for part in made.parts
    )


def test_the_accuracy_is_that_of_the_model_that_the_attacker_was_sent(tmp_path: Path) -> None:
    """First in its chain it begins with the server's model, else with its predecessor's; the set-up's model does not count."""
    tables = {
        "rounds": 3,
        "seed": 1,
        "data": {"name": "digits", "limit": 400},
        "partition": {"name": "iid", "clients": 4},
        "model": {"hidden": [16]},
        "local": {"epochs": 1, "batch_size": 16, "lr": 0.05},
        "algorithm": {"name": "fedseq", "group_size": 2},
        "observe": {"roles": ["client:0"], "rounds": [0, 0]},
    }
    found = RunFolder.open(run(Experiment.of(**tables), out=tmp_path / "run", baselines=False).path)
    accuracy, before = accuracies(found), {row["round"] + 1: row["accuracy"] for row in found.rows()}
    view = RoleView(found.path, ViewRole.parse("client:0", "role"))
    first = {n for n in view.rounds if n and next(iter(view.frames(n))).direction == "down"}
    assert list(accuracy) == [1, 2, 3]
    assert 0 < len(first) < 3
    assert {number for number, value in accuracy.items() if value == before[number]} == first


@pytest.mark.slow
def test_a_quick_run_writes_distances_by_round(tmp_path: Path) -> None:
    assert reproduction.reproduce("gan-attack", quick=True, rounds=3, only=["fedseq-head_only"], out=tmp_path)
    (run,) = json.loads((tmp_path / "gan-attack-quick-3-rounds.json").read_text())["runs"]
    assert [row["round"] for row in run["rows"]] == [1, 2, 3]
    assert all(row["drawn_fid"] > 0 and row["placebo_fid"] > 0 for row in run["rows"])
    assert "SHA-256" in run["rows"][-1]["notes"][0]

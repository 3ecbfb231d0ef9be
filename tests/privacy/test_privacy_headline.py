"""What a large delta does to the epsilon that stands on top."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from sklearn.datasets import load_diabetes

from fedatlas.api import Experiment, dry_run, run
from fedatlas.runs.preview import show
from fedatlas.terminal import end_table
from fedatlas.wording import LITTLE, odds_text, worthless
from reports import Page, npz


def said(table: Any) -> str:
    console = Console(width=120)
    with console.capture() as captured:
        console.print(table)
    return captured.get()


@pytest.mark.parametrize(
    ("mechanism", "headline", "noted"),
    [
        (
            {"name": "local_dp", "epsilon": 8.0, "clip": 1.0, "delta": 0.9},
            "none: delta = 0.9 is 1/12 or more, and whoever publishes one of 12 clients whole keeps that",
            "There is no epsilon to state: delta = 0.9 is 1/12 or more",
        ),
        (
            {"name": "local_dp", "epsilon": 8.0, "clip": 1.0, "delta": 0.05},
            "8, and with a chance of up to 0.05 no promise at all",
            "and with a chance of up to 0.05 no promise at all",
        ),
        (
            {"name": "central_dp", "clip": 1.0, "noise_multiplier": 1.0},
            f"and with a chance of up to {12**-1.1:.3g} no promise at all",
            f"and with a chance of up to {12**-1.1:.3g} no promise at all",
        ),
        ({"name": "local_dp", "epsilon": 8.0, "clip": 1.0}, "8 at delta 1e-05", "at delta = 1e−05"),
    ],
    ids=["1/n", "likely", "default", "small"],
)
def test_a_large_delta_stands_in_the_headline(
    tmp_path: Path, mechanism: dict[str, Any], headline: str, noted: str
) -> None:
    given = {
        "rounds": 1,
        "partition": {"name": "iid", "clients": 12},
        "algorithm": {"name": "fedavg", "weights": "uniform"},
    }
    data = {"name": "digits", "scale": "none"}
    done = run(Experiment.of(**given, data=data, privacy=[mechanism]), out=tmp_path / "run", baselines=False)
    assert headline in " ".join(said(end_table(done.summary)).split())
    page = Page(tmp_path / "run" / "report.html").text()
    assert noted in page
    assert ("delta_too_large_for" in done.summary["privacy"]) == headline.startswith("none")
    assert ("What epsilon =" in page) != headline.startswith("none")


GIVEN = {
    "rounds": 2,
    "partition": {"name": "iid", "clients": 6},
    "algorithm": {"name": "fedavg", "weights": "uniform"},
    "engine": {"workers": 1},
}


def test_page_terminal_and_dry_run_judge_an_epsilon_in_one_voice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weak = {"name": "central_dp", "clip": 1.0, "noise_multiplier": 0.2}
    experiment = Experiment.of(**GIVEN, data={"name": "digits", "scale": "none", "limit": 300}, privacy=[weak])
    show(dry_run(experiment))
    assert "promises next to nothing" in " ".join(capsys.readouterr().out.split())
    done = run(experiment, out=tmp_path / "run", baselines=False)
    assert done.summary["privacy"]["epsilon"] > math.log(LITTLE)
    assert "promises next to nothing" in said(end_table(done.summary))
    page = Page(tmp_path / "run" / "report.html").text()
    assert "promises next to nothing: use more noise" in page
    assert "by a factor above ten thousand" in page
    assert "hardly" not in page


@pytest.mark.parametrize(
    ("epsilon", "odds", "warned"),
    [
        (1.0, "at most a factor of 2.72", False),
        (9.2, "at most a factor of 9,897", False),
        (9.3, "a factor above ten thousand", True),
    ],
)
def test_an_epsilon_is_judged_by_the_factor_on_the_odds(epsilon: float, odds: str, warned: bool) -> None:
    assert odds_text(epsilon) == odds
    assert bool(worthless({"epsilon": epsilon})) == warned
    assert not worthless({"epsilon": epsilon, "delta_too_large_for": 3})
    assert not worthless({})


@pytest.mark.parametrize(
    ("privacy", "expected"),
    [
        ({"name": "secagg"}, "their sums over all clients, under secagg"),
        (
            {"name": "central_dp", "clip": 1.0},
            "nothing about anybody's rows",
        ),
    ],
    ids=["masked", "nothing"],
)
def test_the_table_of_who_learns_what_says_what_crosses_before_round_1(
    tmp_path: Path, privacy: dict[str, Any], expected: str
) -> None:
    scale = {} if privacy["name"] == "secagg" else {"scale": "none"}
    own = npz(tmp_path / "own.npz", *load_diabetes(return_X_y=True))
    experiment = Experiment.of(**GIVEN, data={"name": "file", "path": own, **scale}, privacy=[privacy])
    run(experiment, out=tmp_path / "run", baselines=False)
    page = Page(tmp_path / "run" / "report.html").text()
    before = page.partition("What crosses before round 1")[2][:400]
    assert expected in before

"""The benchmark of studies: its contest tells good advice from bad, and its tables of planted effects are covered."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from fedatlas.recommender.contest import fit_study
from fedatlas.study.measurements import measurements_of
from study_tables import federations, runs

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
CHOICES = ["fedavg", "scaffold", "fedavg_secagg"]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``load("study")`` is that script as a module."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module


def gap(choice: str, at: dict[str, Any]) -> float:
    """Scaffold is better where classes are uneven, by a lot."""
    return -2.0 * at["heterogeneity"] if choice != "scaffold" else -0.4


def test_the_contest_counts_data_sets_and_what_an_answer_costs(load: Any):
    """Scaffold is best on average, and 8 points better than FedAvg; data sets are the unit, and "none" is not left out."""
    sees = lambda choice: "sums" if choice == "fedavg_secagg" else "models"  # noqa: E731
    rows = runs(federations(24, 4), gap, CHOICES, noise=0.02, sees=sees)
    read = measurements_of(rows, ["federation"], ["scheme"], references=("fedavg", "fedavg_secagg"))
    script = load("study_contest")
    fitted = fit_study(read)
    found = script.contest("t", fitted, script.majorities(read))
    assert (found["settings"], found["data_sets"]) == (24, 4)
    free = found["questions"]["free"]
    assert (free["asked"], free["possible"], free["answered"], free["wrong_none"]) == (24, 24, 24, 0)
    mean = {name: one["value"] for name, one in free["regret"].items()}
    assert mean[script.ANSWER] == pytest.approx(mean[script.SINGLE], abs=0.005)
    assert mean[script.ANSWER] < mean[script.FEDAVG] / 2
    assert found["kept"]["value"] > 0.85
    assert 0.75 <= found["coverage"]["accuracy"]["above_low"]["value"] <= 1.0
    none = found["questions"]["a finite epsilon"]
    assert (none["possible"], none["answered"], none["regret"][script.ANSWER]["value"]) == (0, 0, None)
    assert script.FEDAVG in script.show_contest(found)


def test_an_answer_none_costs_what_naming_one_class_does(load: Any):
    script = load("study_contest")
    cases = [
        script.Case("x", 0.9, dict.fromkeys(script.ADVICE, 0.9) | {script.ANSWER: 0.3}, False, False, False),
        script.Case("x", 0.9, dict.fromkeys(script.ADVICE, 0.8), True, True, False),
        script.Case("y", 0.9, dict.fromkeys(script.ADVICE, 0.9), True, True, False),
        script.Case("y", None, dict.fromkeys(script.ADVICE, 0.1), False, False, False),
    ]
    told = script.told(cases)
    assert (told["asked"], told["possible"], told["wrong_none"], told["lost"]) == (4, 3, 1, 1)
    assert told["regret"][script.ANSWER]["value"] == pytest.approx(((0.6 + 0.1) / 2 + 0.0) / 2), "each data set once"
    assert told["regret"][script.SINGLE]["value"] == pytest.approx((0.05 + 0.0) / 2)
    assert script.over_data([0.0, 0.0, 0.0, 3.0], ["x", "x", "x", "y"])["value"] == pytest.approx(1.5)


def test_planted_effects_are_covered(load: Any):
    found = load("study").coverage(60)
    assert found["effects"] == 3 + 2 + 4 + 6 + 12 + 8
    assert found["covered"] >= 0.85  # 95% with a standard error of 3%

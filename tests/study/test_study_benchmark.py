"""The benchmark of studies: its contest tells good advice from bad, and its tables of planted effects are covered."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

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


def test_the_contest_tells_good_advice_from_bad(load: Any, monkeypatch: pytest.MonkeyPatch):
    sees = lambda choice: "sums" if choice == "fedavg_secagg" else "models"  # noqa: E731
    # Of 20 settings the outermost decides alone what can be told apart from FedAvg; of 40 it does not.
    rows = runs(federations(40, 4), gap, CHOICES, noise=0.02, sees=sees)
    read = measurements_of(rows, ["federation"], ["scheme"], references=("fedavg", "fedavg_secagg"))
    script = load("study_contest")
    monkeypatch.setattr(script, "measured", lambda *_: read)
    found = script.contest(None)
    assert (found["settings"], found["data_sets"]) == (40, 4)
    for kind in script.KINDS:
        regret = {name: one["mean"]["value"] for name, one in found[kind]["regret"].items()}
        assert regret["recommended"] <= min(regret["one choice for all"], regret["tuned FedAvg"] / 2)
        assert found[kind]["limits"]["kept_share"]["value"] > 0.85
        assert 0.75 <= found[kind]["coverage"]["accuracy"]["above_low"]["value"] <= 1.0
    asked = found["a setting"]["limits"]["by_limits"]
    assert asked["a finite epsilon"]["possible"] == 0 == asked["a finite epsilon"]["answered"]
    assert asked["sums alone"]["answered"] > 0
    assert "tuned FedAvg" in script.show_contest(found)


def test_planted_effects_are_covered(load: Any):
    found = load("study").coverage(60)
    assert found["effects"] == 3 + 2 + 4 + 6 + 12 + 8
    assert found["covered"] >= 0.85  # 95% with a standard error of 3%

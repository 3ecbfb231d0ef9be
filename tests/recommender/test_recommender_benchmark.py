"""The benchmark of the recommender: its federations are those of the study, and what it sums up is what was run."""

from __future__ import annotations

import importlib
import json
import math
from pathlib import Path
from typing import Any

import pytest

from fedatlas.recommender.shipped import load_study

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("recommender")


def test_twins_are_checked_in_six_federations_of_the_study_one_with_clients_that_leave(script: Any):
    basis = load_study("small")
    assert len(script.PLACES) == 6
    assert sum(place.dropout > 0 for place in script.PLACES) == 1
    assert {place.setting for place in script.PLACES} <= set(basis.fitted.settings)
    assert set(script.SCHEMES) == {name for name in basis.fitted.choices if "_dp_" not in name and "secagg" not in name}


def test_unsteady_rates_and_lost_rounds_are_summed_up_apart(script: Any):
    def pair(plain: list[float], masked: list[float], lost: int = 0) -> Any:
        return script.Pair("fedavg", "digits", 0.0, 0.1, plain, masked, [lost, 0, 0])

    found = script.summed(
        [
            pair([0.80, 0.81, 0.82], [0.80, 0.81, 0.83]),
            pair([0.80, 0.81, 0.80], [0.80, 0.81, 0.84]),
            pair([0.80, 0.90, 0.80], [0.80, 0.60, 0.80]),
            pair([0.80, 0.81, 0.80], [0.50, 0.81, 0.80], lost=2),
            pair([0.80, 0.81, 0.80], [math.nan, 0.81, 0.80]),
        ]
    )
    assert (found["pairs"], found["refused_or_diverged"], found["steady"], found["rounds_lost"]) == (5, 1, 3, 2)
    assert found["largest_gap_steady"] == pytest.approx(0.04)
    assert found["pairs_apart_beyond_seeds"] == 1
    assert found["largest_gap_unsteady"] == pytest.approx(0.3)
    assert (found["runs_equal_steady"], found["runs_steady"]) == (4, 6)
    failed = script.plain_of(pair([0.8, 0.8, 0.8], [math.nan, 0.8, 0.8]))
    assert json.dumps(failed["masked"], allow_nan=False) == "[null, 0.8, 0.8]"

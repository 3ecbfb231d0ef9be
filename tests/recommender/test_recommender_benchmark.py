"""The benchmark of the recommender: its federations are those of the study, and what it sums up is what was run."""

from __future__ import annotations

import importlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedatlas.config import parse
from fedatlas.recommender.contest import fit_study
from fedatlas.recommender.shipped import Basis, load_study
from fedatlas.study.measurements import measurements_of
from study_tables import federations, runs

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``load("recommender")`` is that script as a module."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module


@pytest.fixture
def script(load: Any) -> Any:
    return load("recommender")


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


def planted() -> Basis:
    """A study of 24 federations of four data sets: scaffold is 8 points better than FedAvg, and best on average."""

    def gap(choice: str, at: dict[str, Any]) -> float:
        return -2.0 * at["heterogeneity"] if choice != "scaffold" else -0.4

    rows = runs(
        federations(24, 4), gap, ["fedavg", "scaffold", "fedavg_secagg"], noise=0.02,
        sees=lambda choice: "sums" if choice == "fedavg_secagg" else "models",
    )  # fmt: skip
    read = measurements_of(rows, ["federation"], ["scheme"], references=("fedavg", "fedavg_secagg"))
    nothing: dict[Any, Any] = {}
    fitted = fit_study(read)
    apart = np.zeros(fitted.finishes.shape)
    return Basis("t", Path(), fitted, nothing, nothing, nothing, nothing, nothing, nothing, nothing, nothing, apart)


def test_answers_from_numbers_count_data_sets_and_what_they_cost(load: Any):
    basis, script = planted(), load("recommender_numbers")
    found = script.numbers(basis, np.full(24, 0.2))
    free = found["questions"]["free"]
    assert (free["asked"], free["possible"]) == (24, 24)
    assert free["found"] + free["not known"] == 24
    mean = {name: one["value"] for name, one in free["regret"].items()}
    assert mean[script.ANSWER] == pytest.approx(mean[script.SINGLE], abs=0.005)
    assert mean[script.ANSWER] < mean[script.FEDAVG] / 2
    none = found["questions"]["epsilon"]
    assert (none["possible"], none["none"], none["regret"][script.ANSWER]["value"]) == (0, 24, None), (
        "nothing has noise"
    )
    assert set(free["by_data"]) == set(basis.fitted.data)
    assert script.FEDAVG in script.show(found)


def test_a_study_without_a_data_set_knows_nothing_of_it(load: Any):
    basis, script = planted(), load("recommender_numbers")
    name = basis.fitted.data[0]
    wrong = basis._replace(fitted=basis.fitted._replace(gaps={key: y.copy() for key, y in basis.fitted.gaps.items()}))
    for y in wrong.fitted.gaps.values():
        y[[i for i, data in enumerate(basis.fitted.data) if data == name]] += 5.0
    one, other = (script.without(x, {name}).fitted for x in (basis, wrong))
    assert name not in one.data
    np.testing.assert_array_equal(one.by_data["accuracy"], other.by_data["accuracy"])
    assert (one.way, one.score) == (other.way, other.score)
    assert [list(k.lengths) for k in one.kernels] == [list(k.lengths) for k in other.kernels]


def test_none_costs_the_floor_and_not_known_what_it_names(load: Any):
    script = load("recommender_numbers")

    def case(data: str, answer: str, best: float | None, worth: float, single: float) -> Any:
        return script.Case(
            data, answer, best, {**dict.fromkeys(script.ADVICE, single), script.ANSWER: worth}, False, True
        )

    told = script.told(
        [
            case("x", "none", 0.9, 0.3, 0.9),
            case("x", "found", 0.9, 0.8, 0.8),
            case("y", "not known", 0.9, 0.9, 0.9),
            case("y", "none", None, 0.1, 0.1),
        ]
    )
    assert (told["asked"], told["possible"], told["none"], told["wrong_none"], told["lost"]) == (4, 3, 2, 1, 1)
    assert told["regret"][script.ANSWER]["value"] == pytest.approx(((0.6 + 0.1) / 2 + 0.0) / 2), "each data set once"
    assert told["by_data"] == pytest.approx({"x": 0.3, "y": 0.0})


def test_an_interval_over_data_sets_is_student_s(load: Any):
    over_data = load("table").over_data
    assert over_data([0.0, 0.0, 0.0, 3.0], ["x", "x", "x", "y"]).value == pytest.approx(1.5)
    value, low, high = over_data([1.0, 2.0, 3.0])
    assert (value, high - value, value - low) == pytest.approx((2.0, 4.302653 / 3**0.5, 4.302653 / 3**0.5))
    assert over_data([2.0])[1:] == (None, None)


def test_the_best_is_scored_by_seeds_that_did_not_pick_it(load: Any):
    script = load("recommender_race")
    reached = {"fedavg": [0.9, 0.9, 0.5, 0.5], "fedyogi": [0.8, 0.8, 0.8, 0.8], "scaffold": [0.7, 0.7, 0.4, 0.4]}
    named = {
        script.RACE: ["fedyogi"],
        script.FEDYOGI: ["fedyogi"],
        script.FEDAVG_5: ["fedavg", "scaffold"],
        script.PRIOR: [],
    }
    assert script.regrets({"reached": reached, "named": named}) == pytest.approx(
        {script.RACE: -30.0, script.FEDYOGI: -30.0, script.FEDAVG_5: 5.0}
    ), "an advice that leaves two open counts as their mean"


def test_every_federation_to_race_is_an_experiment_with_seeds_that_the_study_has_not(
    load: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    script = load("recommender_race")
    assert len(script.FEDERATIONS) >= 14
    assert not set(script.FEDERATIONS) & set(script.UNOPENED)
    seeds = set(load_study("small").about["seeds"])
    assert not seeds & {script.SEED, *script.TRUTH}
    monkeypatch.setenv("FEDATLAS_DATA", str(tmp_path))
    for name in (*script.FEDERATIONS, *script.UNOPENED):
        if name not in script.TABLES:  # these are made of data that are not read here
            assert parse(script.experiment_of(name, tmp_path)).seed == script.SEED

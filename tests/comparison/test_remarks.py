"""Remarks of a comparison: on rounds that end too early, on one rate for all, on pooled rows that do worse, on epsilon."""

from __future__ import annotations

from typing import Any

import pytest

from fedatlas.comparison.answer import curve_of, row
from fedatlas.comparison.remarks import epsilon_remark, pooled_remark, rate_remark, rounds_remark, still_gains
from fedatlas.reporting.ranking import ranked

RISING = [0.1 + 0.02 * t for t in range(20)]
FLAT = [min(0.9, 0.1 * t) + (0.004 if t % 2 else 0.0) for t in range(40)]


@pytest.mark.parametrize(
    ("values", "expected"),
    [(RISING, True), (FLAT, False), (RISING[::-1], False), ([0.5] * 20, False), (RISING[:4], False), ([], False)],
)
def test_a_curve_still_gains_if_it_rises_by_more_than_it_swings(values: list[float], expected: bool) -> None:
    assert still_gains(values) is expected
    assert still_gains([1 - v for v in values], lower_is_better=True) is expected


def test_schemes_that_still_gain_in_most_seeds_are_named() -> None:
    assert rounds_remark({"a": [FLAT, RISING, RISING], "b": [FLAT, FLAT, RISING]}) == [
        "a still gains in the last rounds: with more rounds the order may be another."
    ]
    assert rounds_remark({"a": [FLAT], "b": []}) == []


def test_one_rate_for_all_algorithms_is_said_with_the_command_that_tunes_it() -> None:
    (said,) = rate_remark(["algorithm.name"], [0.1, 0.1], "plants.toml")
    assert "fedatlas tune plants.toml algorithm.name=SCHEME local.lr=0.01..0.3" in said
    assert rate_remark(["algorithm.name", "local.lr"], [0.1, 0.2], "plants.toml") == []
    assert rate_remark(["local.momentum"], [0.1, 0.1], "plants.toml") == []


def test_pooled_rows_that_do_worse_than_the_scheme_are_no_upper_bound() -> None:
    found = {"scheme": "fedavg", "mean": 0.93, "sd": 0.01, "centralised": 0.91}
    assert "no upper bound" in pooled_remark(found)[0]
    assert pooled_remark({**found, "centralised": 0.925}) == pooled_remark({**found, "centralised": None}) == []
    assert pooled_remark({**found, "mean": 3.0, "centralised": 2.0}, lower_is_better=True) == []
    assert pooled_remark({**found, "mean": 2.0, "centralised": 3.0}, lower_is_better=True) != []


def test_a_curve_is_of_the_figure_that_decides_or_of_accuracy() -> None:
    rows = [{"accuracy": 0.1, "loss": 1}, {"accuracy": 0.2}, {"accuracy": 0.3, "auc": 0.9}]
    assert curve_of(rows, "auc") == [None, 0.9]
    assert curve_of(rows, "macro_f1") == [0.2, 0.3]
    assert curve_of(rows, "log_loss") == curve_of([], "auc") == []


def test_all_figures_of_a_row_are_over_the_same_rows() -> None:
    """Offices of 10 and 30 own rows: pooled 0.5 and 0.9 there, 0.8 by their rows; 0.7 on all test rows. One has no figure."""

    def own(n: int, pooled: float, alone: float | None = 0.5) -> dict[str, Any]:
        parts = {"federated": 0.6, "local_only": alone, "centralised": pooled}
        return {"own": {"test_rows": n, **{name: {"value": value} for name, value in parts.items()}}}

    clients = [own(10, 0.5), own(30, 0.9), own(60, 0.1, alone=None), {"own": None}]
    gain = {"metric": {"values": {"centralised": 0.7}, "clients": clients}}
    cost = {"bytes_up": 1.0, "bytes_down": 1.0, "bytes_peer": 0.0, "seconds": 1.0}
    for own_rows, expected in ((True, 0.8), (False, 0.7)):
        told = {"together": 0.9, "alone": 0.5, "own_rows": own_rows, "train_rows": 9, "test_rows": 9}
        one = {"task": "classes", "judged_on": "x", "final": {}, "answer": told, "gain": gain, "cost": cost}
        found = ranked({"fedavg": {1: one}})
        assert found is not None
        assert row("fedavg", {1: one}, found)["centralised"] == pytest.approx(expected)


def private(epsilon: float | str, *names: str, **more: Any) -> dict[str, Any]:
    return {"privacy": {"epsilon": epsilon, "delta": 1e-5, "mechanisms": [{"name": name} for name in names], **more}}


def test_epsilons_are_stated_with_whom_they_are_about_and_that_they_add_up() -> None:
    schemes = {
        "a": [private(2.0, "central_dp"), private(3.0, "central_dp")],
        "b": [private(1.5, "dp_sgd", noise="seed")],
        "c": [private(1.0, "randomised_response")],
        "masks": [{"privacy": {"mechanisms": [{"name": "secagg"}]}}],
        "endless": [private("infinite", "central_dp")],
        "plain": [{}],
    }
    (said,) = epsilon_remark(schemes)
    assert said == (
        "Epsilon of a run: 3 with a (delta 1e-05), about one client with all its rows; 1.5 with b (delta 1e-05), whose noise is the "
        "seed's and protects nobody, about one row; 1 with c (delta 1e-05), about the class of a row. Figures about different things "
        "do not compare. Runs that read the same rows add up, also those of schemes not taken: fedatlas epsilon RUN... states the sum."
    )
    assert epsilon_remark({name: schemes[name] for name in ("masks", "endless", "plain")}) == []
    assert "do not compare" not in epsilon_remark({"a": schemes["a"]})[0]

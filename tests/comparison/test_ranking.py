"""The ranking of schemes: by the figure that decides, on rows that no choice has used, seed by seed."""

from __future__ import annotations

from typing import Any

import pytest

from fedatlas.comparison.answer import table_lines
from fedatlas.reporting.ranking import ranked

SEEDS = range(1, 6)


def summary(value: float, on: str = "rows", **more: Any) -> dict[str, Any]:
    return {"task": "classes", "judged_on": on, "final": {"accuracy": value}, **more}


def runs(**schemes: list[float]) -> dict[str, dict[int, dict[str, Any]]]:
    return {name: {seed: summary(x) for seed, x in zip(SEEDS, values, strict=True)} for name, values in schemes.items()}


def test_a_clear_difference_within_seeds_is_told_and_a_small_one_is_not() -> None:
    # Seeds differ by .1, schemes within a seed by .05 give or take .001: only pairs within seeds show it.
    base = [0.5, 0.6, 0.7, 0.8, 0.9]
    noise = [0.001, -0.001, 0.0, 0.001, -0.001]
    ahead = [x + 0.05 + e for x, e in zip(base, noise, strict=True)]
    alike = [x + 2 * e for x, e in zip(base, noise, strict=True)]
    found = ranked(runs(ahead=ahead, base=base, alike=alike))
    assert found is not None
    assert found.ranking.order[0] == "ahead"
    assert "ahead is better than" in found.text
    assert any("base" in pair and "alike" in pair for pair in found.text.split(". ") if "told apart" in pair)


def test_fewer_than_three_seeds_give_no_verdict() -> None:
    two = {name: dict(list(found.items())[:2]) for name, found in runs(a=[0.9] * 5, b=[0.1] * 5).items()}
    found = ranked(two)
    assert found is not None
    assert "no verdict over seeds" in found.text


def test_the_metric_decides_and_less_of_an_error_is_better() -> None:
    given = {
        name: {seed: summary(accuracy, metric={"name": "log_loss", "value": value}) for seed in SEEDS}
        for name, accuracy, value in (("low", 0.1, 0.2), ("high", 0.9, 0.4))
    }
    found = ranked(given)
    assert found is not None
    assert (found.figure, found.lower_is_better, found.ranking.order) == ("log_loss", True, ["low", "high"])


def test_rows_that_a_choice_has_used_do_not_count() -> None:
    given = {
        name: {seed: summary(final, test={"accuracy": test}) for seed in SEEDS}
        for name, final, test in (("chosen", 0.9, 0.5), ("other", 0.5, 0.9))
    }
    found = ranked(given)
    assert found is not None
    assert found.ranking.order == ["other", "chosen"]


def test_runs_by_different_figures_are_not_ranked() -> None:
    assert ranked({}) is None
    assert ranked({"a": {1: summary(0.5)}, "b": {1: summary(0.5, metric={"name": "auc", "value": 0.5})}}) is None


@pytest.mark.parametrize("rows", [0, 2])
def test_the_table_is_aligned(rows: int) -> None:
    one = {"scheme": "a", "mean": 0.5, "sd": None, "seeds": [1], "local_only": None, "centralised": 0.75}
    row = {**one, "bytes": None, "seconds": 1.0}
    lines = table_lines({"words": "AUC", "rows": [row, {**row, "scheme": "longer"}][:rows]})
    assert len({len(line) for line in lines}) <= 1
    assert len(lines) == (rows + 1 if rows else 0)
    assert all("alone" not in line for line in lines)  # no scheme has the baseline

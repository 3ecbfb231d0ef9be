"""By hand: what a wish for low cost is worth, and bounds with one side."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from fedatlas.recommender.answer import violations
from fedatlas.recommender.contest import quantiles
from fedatlas.recommender.ranking import further_low, utility_of
from fedatlas.recommender.requirements import requirements
from test_recommend import fitted

FACTS = {"nodes": 6, "rows": 450, "heterogeneity": 0.4}


def test_of_two_costs_the_lower_is_worth_more() -> None:
    """On the log scale of the study's range: 1 at its smallest, 0 at its largest, 1/2 at their geometric mean."""
    fit = fitted()._replace(ranges={"bytes": (10.0, 1000.0), "accuracy": (0.5, 0.9)})
    worth = utility_of(fit, {"bytes": np.array([10.0, 100.0, 1000.0])}, {"bytes": 1.0})
    assert worth == pytest.approx([1.0, 0.5, 0.0])
    better = utility_of(fit, {"accuracy": np.array([0.5, 0.7, 0.9])}, {"accuracy": 1.0})
    assert better == pytest.approx([0.0, 0.5, 1.0])
    both = {"accuracy": np.array([0.9, 0.9]), "bytes": np.array([1000.0, 10.0])}
    assert utility_of(fit, both, {"accuracy": 3.0, "bytes": 1.0}) == pytest.approx([0.75, 1.0])


@pytest.mark.parametrize("confidence", [0.8, 0.98])
def test_the_bound_of_a_further_data_set_has_one_side(confidence: float) -> None:
    """mean - t s sqrt(1 + 1/n) with the quantile at the confidence itself; of one group, only its mean counts, and its variance."""
    values = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    found, t = further_low(values, np.arange(6), confidence), stats.t.ppf(confidence, 5)
    assert found == pytest.approx(values.mean() - t * values.std(ddof=1) * np.sqrt(7 / 6), rel=0.02)  # t is simulated
    pairs, groups = np.repeat(values, 2), np.repeat(np.arange(6), 2)
    assert further_low(pairs, groups, confidence) == pytest.approx(found), "two of a group count as one"
    apart = pairs + np.tile([-1.0, 1.0], 6)
    within = values.mean() - t * np.sqrt((values.var(ddof=1) + 1.0) * 7 / 6)
    assert further_low(apart, groups, confidence) == pytest.approx(within, rel=0.02)
    assert further_low(values[:1], np.arange(1), confidence) == -np.inf, "one data set tells nothing of another"


def test_a_bound_of_order_statistics_holds_as_often_as_it_says() -> None:
    """Of 9,999 further values a share of the confidence lies at or above low: with one side, not two."""
    stream, hit = np.random.default_rng(0), 0
    for _ in range(500):
        low, _ = quantiles(stream.normal(size=39), 0.9)  # rank 4 of 39: exactly 0.9 on average
        hit += int((stream.normal(size=20) >= low).sum())
    assert hit / 10_000 == pytest.approx(0.9, abs=0.012)  # a two-sided bound would have 0.95


def test_limits_that_hold_one_by_one_but_not_together_are_missed_by_the_confidence():
    wanted = requirements({"federation": FACTS, "at_least": {"accuracy": 0.8, "macro_f1": 0.7}})
    held = {name: {"value": 0.9, "low": 0.81, "high": 0.95} for name in ("accuracy", "macro_f1")}
    (missed,) = violations(wanted, held, 0.85)
    assert missed == {"limit": "confidence", "by": pytest.approx(0.05)}
    low = {**held, "accuracy": {"value": 0.8, "low": 0.75, "high": 0.9}}
    assert violations(wanted, low, 0.5) == [{"limit": "accuracy", "by": pytest.approx(0.05)}]
    assert violations(wanted, {"accuracy": held["accuracy"]}, 0.0) == [{"limit": "macro_f1", "by": None}]

"""The metric where nodes judge: what sums tell is that of scikit-learn, and what they do not tell is refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sklearn import metrics
from sklearn.dummy import DummyClassifier, DummyRegressor

from fedatlas.config import parse
from fedatlas.deployment.judged_sums import sure_of
from fedatlas.deployment.node_judging import BY_SUMS, best_constant, by_sums
from fedatlas.deployment.server_run import InitialAnswers
from fedatlas.errors import ConfigError
from fedatlas.metrics import quality
from fedatlas.metrics.intervals import proportion
from fedatlas.metrics.metric import METRICS
from fedatlas.metrics.resampling import of_mean
from fedatlas.verdict.answer import Asked, PartyEvidence, answer
from fedatlas.verdict.evidence import Evidence


def test_metrics_of_sums_and_the_best_constant_are_those_of_the_rows() -> None:
    stream = np.random.default_rng(2)
    y, p, w = stream.choice(3, 80, p=[0.2, 0.6, 0.2]), stream.integers(3, size=80), stream.uniform(0.5, 2, 80)
    sums = quality.class_sums(p, y, np.zeros(80), 3, w)
    found = by_sums(quality.class_figures(sums))
    assert found["balanced_accuracy"] == pytest.approx(metrics.balanced_accuracy_score(y, p, sample_weight=w))
    assert found["macro_f1"] == pytest.approx(metrics.f1_score(y, p, average="macro", sample_weight=w))
    best, dummy = best_constant(sums), DummyClassifier(strategy="most_frequent").fit(np.zeros((80, 1)), y, w)
    said = dummy.predict(np.zeros((80, 1)))
    assert best.answer == said[0]
    assert best.figures["accuracy"] == pytest.approx(metrics.accuracy_score(y, said, sample_weight=w))
    assert by_sums(best.figures)["macro_f1"] == pytest.approx(
        metrics.f1_score(y, said, average="macro", sample_weight=w)
    )
    assert by_sums(best.figures)["balanced_accuracy"] == pytest.approx(1 / 3)
    number = stream.normal(5, 2, 80)
    best = best_constant(quality.number_sums(np.zeros(80), number, np.zeros(80), w))
    said = DummyRegressor().fit(np.zeros((80, 1)), number, w).predict(np.zeros((80, 1)))
    assert best.answer == pytest.approx(said[0])
    assert best.figures["rmse"] == pytest.approx(metrics.root_mean_squared_error(number, said, sample_weight=w))
    assert "mae" not in best.figures


def test_counts_give_the_interval_that_the_draws_of_rows_give() -> None:
    """Sums of nodes alone, against the rows themselves."""
    stream = np.random.default_rng(3)
    y = stream.choice(3, 400, p=[0.2, 0.5, 0.3])
    p = np.where(stream.uniform(size=400) < 0.6, y, stream.integers(3, size=400))
    sums = quality.class_sums(p, y, np.zeros(400), 3)
    constant = int(best_constant(sums).answer)
    right, always = (p == y).astype(float), (y == constant).astype(float)
    sure = sure_of(sums, constant, METRICS["accuracy"], right.mean(), always.mean(), alike=True)
    assert sure.own["test_rows"] == 400
    assert (sure.own["low"], sure.own["high"]) == pytest.approx(proportion(int(right.sum()), 400))
    rows = {name: of_mean("accuracy", one, np.ones(400)) for name, one in (("together", right), ("trivial", always))}
    evidence = Evidence(400, rows, hits={"together": right, "trivial": always})
    asked = Asked("FedAvg", "accuracy", "accuracy")
    drawn = answer(asked, [PartyEvidence(0, "a", evidence, own=False)], 1, "", 0, draws=4000).over_trivial
    assert drawn is not None
    assert sure.better_by["value"] == pytest.approx(drawn.value)
    assert sure.better_by["error"] == pytest.approx(drawn.error, rel=0.05)
    assert sure.better_by["low"] == pytest.approx(drawn.low, abs=0.005)
    few = quality.class_sums(p[:29], y[:29], np.zeros(29), 3)
    assert sure_of(few, 1, METRICS["accuracy"], 0.5, 0.4, alike=True) == (
        {"test_rows": 29},
        {"value": pytest.approx(0.1)},
    )
    assert sure_of(sums, 1, METRICS["accuracy"], 0.5, 0.4, alike=False) == ({}, {"value": pytest.approx(0.1)})
    error = sure_of(quality.number_sums(p, y, p), 1.0, METRICS["rmse"], 0.5, 0.7, alike=True)
    assert error == ({"test_rows": 400}, {"value": pytest.approx(0.2)}), "less error is better"


@pytest.mark.parametrize("true", [[50.0, -9.0], [0.2, 39.0], [40.0, 1e9]])
def test_sums_that_are_no_counts_end_no_run(true: list[float]) -> None:
    sums = quality.ClassSums(np.array(true), np.array(true), np.array([60.0, 80.0]), 0.0)
    found = sure_of(sums, 1, METRICS["accuracy"], 2.0, 1.0, alike=True)
    assert all(np.isfinite(x) for x in {**found.own, **found.better_by}.values())


@pytest.mark.parametrize("name", [*METRICS])
def test_a_metric_of_single_rows_is_refused_where_nodes_judge(name: str) -> None:
    nodes: dict[str, Any] = {"a": SimpleNamespace(rows=SimpleNamespace(test=5))}
    config = parse({"evaluation": {"metric": name}})
    server: Any = SimpleNamespace(
        context=SimpleNamespace(test=None), names=["a"], facts=nodes, whole=SimpleNamespace(config=config)
    )
    if name in BY_SUMS:
        assert InitialAnswers._test(server, Path()) == (None, Path())  # type: ignore[arg-type, comparison-overlap]
    else:
        with pytest.raises(
            ConfigError, match=r"^evaluation.metric = '.*' is made of single rows, .* another metric\.$"
        ):
            InitialAnswers._test(server, Path())  # type: ignore[arg-type]

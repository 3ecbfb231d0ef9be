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
from fedatlas.deployment.node_judging import BY_SUMS, best_constant, by_sums
from fedatlas.deployment.server_run import InitialAnswers
from fedatlas.errors import ConfigError
from fedatlas.metrics import quality
from fedatlas.metrics.metric import METRICS


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

"""`metrics.metric`: each figure by scikit-learn's, weights, ties and missing classes included; of repeated rows; the choice."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from sklearn import metrics

from fedatlas.config.experiment import EvaluationConfig
from fedatlas.errors import ConfigError
from fedatlas.metrics.metric import METRICS, Said, Task, chosen, fitting, positive_class

N = 90
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.UndefinedMetricWarning", "ignore:y_pred contains")


def of_classes(classes: int, *, seed: int = 3, ties: bool = True, missing: int | None = None) -> Said:
    """Rows of so many classes with weights. ``ties``: outputs of few values; ``missing``: a class that no row has."""
    stream = np.random.default_rng(seed)
    true = stream.integers(classes, size=N)
    if missing is not None:
        true[true == missing] = (missing + 1) % classes
    raw = stream.normal(size=(N, classes)) + 1.2 * np.eye(classes)[true]
    raw = np.round(raw * 2) / 2 if ties else raw
    predicted = raw.argmax(1)
    outputs = raw[:, 1] - raw[:, 0] if classes == 2 else raw - np.log(np.exp(raw).sum(1, keepdims=True))
    return Said((predicted == true).astype(float), stream.uniform(0.2, 3, N), true, predicted, outputs)


def of_numbers(seed: int = 5) -> Said:
    stream = np.random.default_rng(seed)
    true = stream.normal(50, 3, N)
    predicted = true + stream.normal(size=N)
    return Said((true - predicted) ** 2, stream.uniform(0.2, 3, N), true, predicted)


def one_against_rest(score: Callable[..., float], said: Said) -> float:
    assert said.true is not None
    assert said.outputs is not None
    if said.outputs.ndim == 1:
        return float(score(said.true, said.outputs, sample_weight=said.weight))
    there = [c for c in range(said.outputs.shape[1]) if 0 < (said.true == c).sum() < len(said.true)]
    return float(np.mean([score(said.true == c, said.outputs[:, c], sample_weight=said.weight) for c in there]))


def log_loss(said: Said) -> float:
    assert said.outputs is not None
    one = 1 / (1 + np.exp(-said.outputs))
    p = np.stack([1 - one, one], 1) if said.outputs.ndim == 1 else np.exp(said.outputs)
    return float(metrics.log_loss(said.true, p, sample_weight=said.weight, labels=range(p.shape[1])))


SKLEARN: dict[str, Callable[[Said], float]] = {
    "accuracy": lambda s: metrics.accuracy_score(s.true, s.predicted, sample_weight=s.weight),
    "balanced_accuracy": lambda s: metrics.balanced_accuracy_score(s.true, s.predicted, sample_weight=s.weight),
    "macro_f1": lambda s: metrics.f1_score(s.true, s.predicted, average="macro", sample_weight=s.weight),
    "auc": lambda s: one_against_rest(metrics.roc_auc_score, s),
    "pr_auc": lambda s: one_against_rest(metrics.average_precision_score, s),
    "log_loss": log_loss,
    "rmse": lambda s: metrics.root_mean_squared_error(s.true, s.predicted, sample_weight=s.weight),
    "mae": lambda s: metrics.mean_absolute_error(s.true, s.predicted, sample_weight=s.weight),
    "r2": lambda s: metrics.r2_score(s.true, s.predicted, sample_weight=s.weight),
}
ROWS = {
    "two": of_classes(2),
    "two without ties": of_classes(2, ties=False),
    "five": of_classes(5),
    "five, one missing": of_classes(5, missing=2),
    "numbers": of_numbers(),
}
CASES = [
    (name, rows) for name, one in METRICS.items() for rows in ROWS if ("numbers" in one.tasks) == (rows == "numbers")
]


def test_the_table_is_that_of_the_experiment_file():
    literal = EvaluationConfig.model_fields["metric"].annotation
    assert {name for name in METRICS if f"'{name}'" in str(literal)} == {*METRICS} == {*SKLEARN}


@pytest.mark.parametrize(("name", "rows"), CASES)
def test_each_metric_is_that_of_scikit_learn(name: str, rows: str) -> None:
    assert METRICS[name].value(ROWS[rows]) == pytest.approx(SKLEARN[name](ROWS[rows]), rel=1e-9)


@pytest.mark.parametrize(("name", "rows"), CASES)
def test_rows_drawn_several_times_count_as_if_they_were_repeated(name: str, rows: str) -> None:
    """Draws with few rows, so that classes go missing from some of them."""
    said, metric = ROWS[rows], METRICS[name]
    stream = np.random.default_rng(8)
    at = [stream.integers(N, size=size) for size in (N, N, 12, 6, 3)]
    drawn = np.stack([np.bincount(one, minlength=N) for one in at]).astype(float)
    plain = [metric.value(said.at(one)) for one in at]
    found = [x if math.isfinite(x) else None for x in metric.weighted(said)(drawn)[name].tolist()]
    for one, other in zip(found, plain, strict=True):
        assert (one is None) == (other is None)
        assert one is None or one == pytest.approx(other, rel=1e-9)


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("name", ["auc", "pr_auc"])
def test_rows_of_one_class_have_no_area_but_a_log_loss(name: str, classes: int) -> None:
    said = of_classes(classes)
    assert said.true is not None
    alone = said.at(said.true == 1)
    assert METRICS[name].value(alone) is None
    assert METRICS["log_loss"].value(alone) == pytest.approx(log_loss(alone))
    light = said._replace(weight=np.where(said.true == 1, said.weight, 0.0))  # the others are there, without weight
    assert METRICS[name].value(light) is None


@pytest.mark.parametrize(("name", "expected"), [("auc", 0.5), ("pr_auc", None)])
def test_a_constant_answer_has_the_area_of_chance(name: str, expected: float | None) -> None:
    said = of_classes(2)
    assert said.true is not None
    share = float(said.weight @ (said.true == 1) / said.weight.sum())
    found = METRICS[name].value(said._replace(outputs=np.full(N, -2.0)))
    assert found == pytest.approx(share if expected is None else expected)


@pytest.mark.parametrize(
    ("task", "counts", "name"),
    [
        ("numbers", None, "rmse"),
        ("tokens", [1, 900], "accuracy"),
        ("classes", None, "accuracy"),
        ("classes", [75, 25], "accuracy"),  # just 1.5 times the even share of 50
        ("classes", [76, 24], "auc"),
        ("classes", [24, 76], "auc"),
        ("classes", [50, 25, 25], "accuracy"),
        ("classes", [51, 25, 24], "macro_f1"),
    ],
)
def test_the_metric_that_is_left_out(task: Task, counts: Sequence[float] | None, name: str) -> None:
    assert chosen(task, counts) == name


@pytest.mark.parametrize(("name", "task"), [("rmse", "classes"), ("auc", "numbers"), ("macro_f1", "tokens")])
def test_a_metric_that_does_not_fit_is_refused_in_a_sentence(name: str, task: Task) -> None:
    with pytest.raises(
        ConfigError, match=rf"^evaluation.metric = '{name}': the target of 'some' is a .*remove the key\.$"
    ):
        fitting(name, task, "some")


def test_average_precision_is_of_the_rarer_class_or_of_the_one_asked_for() -> None:
    rng = np.random.default_rng(3)
    true, odds = (rng.random(60) < 0.8).astype(np.int64), rng.normal(size=60)
    said = Said(np.zeros(60), np.ones(60), true, None, odds)
    metric = METRICS["pr_auc"]
    assert metric.of_class(0).value(said) == pytest.approx(metrics.average_precision_score(true == 0, -odds))
    assert metric.of_class(1).value(said) == metric.of_class(None).value(said) == metric.value(said)
    assert metric.value(said) != metric.of_class(0).value(said)
    assert METRICS["auc"].of_class(0) == METRICS["auc"], "the area under the ROC curve is the same for both"
    assert [positive_class(None, ("ja", "nein"), counts) for counts in ([1, 9], [9, 1], [5, 5], None)] == [0, 1, 1, 1]
    assert positive_class("ja", ("ja", "nein"), [9, 1]) == 0
    assert positive_class(None, ("a", "b", "c"), [1, 2, 3]) is None
    with pytest.raises(ConfigError, match=r"'yes' is none of two classes of 'x': use 'ja' or 'nein'"):
        positive_class("yes", ("ja", "nein"), None, "x")
    with pytest.raises(ConfigError, match="remove the key"):
        positive_class("a", ("a", "b", "c"), None, "x")

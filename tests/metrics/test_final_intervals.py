"""The intervals of a finished run: those of scikit-learn's figures of resampled rows; and what is said where there are none."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sklearn import metrics

import fedatlas
from fedatlas import Experiment, run
from fedatlas.course import timing
from fedatlas.course.evaluation import Evaluator
from fedatlas.data import sources
from fedatlas.errors import DivergedError
from fedatlas.metrics import intervals
from fedatlas.metrics.intervals import LARGE, bootstrap, differences, usual_draws
from fedatlas.metrics.resampling import of_mean, of_numbers
from fedatlas.rng import numpy_stream

Figure = Callable[[np.ndarray], float]  # of the rows drawn, by their numbers
DRAWS = 150  # in place of 1,000: scikit-learn takes its time
TABLE = {"name": "file", "test": 0.25, "weight": "w"}


@pytest.fixture
def table(tmp_path: Path) -> str:
    stream = np.random.default_rng(1)
    x = stream.normal(size=(160, 3))
    target = 50 + x @ [1, -1, 0.5] + stream.normal(size=160)
    weight = stream.uniform(0.2, 3, 160)
    lines = [f"{a:.3f},{b:.3f},{c:.3f},{y:.3f},{w:.3f}" for (a, b, c), y, w in zip(x, target, weight, strict=True)]
    lines = [f"{line},{'no' if y < 50.3 else 'yes'}" for line, y in zip(lines, target, strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(["a,b,c,target,w,two", *lines]) + "\n")
    return str(tmp_path / "t.csv")


def experiment(path: str, label: str, **tables: Any) -> Experiment:
    other = "two" if label == "target" else "target"
    data = {**TABLE, "path": path, "label": label, "drop": [other]}
    return Experiment.of(**{"rounds": 2, "data": data, "partition": {"name": "iid", "clients": 3}, **tables})


def of_two_classes(y: np.ndarray, p: np.ndarray, margin: np.ndarray, loss: np.ndarray, w: np.ndarray) -> dict[str, Any]:
    chance = 1 / (1 + np.exp(-margin))
    place = np.clip(np.ceil(10 * chance) - 1, 0, 9)

    def calibration(i: np.ndarray) -> float:
        return float(
            sum(abs((w[i] * (y[i] - chance[i]))[place[i] == k].sum()) for k in range(10)) / w[i].sum(),
        )

    return {
        "accuracy": lambda i: metrics.accuracy_score(y[i], p[i], sample_weight=w[i]),
        "macro_f1": lambda i: metrics.f1_score(y[i], p[i], average="macro", sample_weight=w[i]),
        "weighted_f1": lambda i: metrics.f1_score(y[i], p[i], average="weighted", sample_weight=w[i]),
        "loss": lambda i: np.average(loss[i], weights=w[i]),
        "auc": lambda i: metrics.roc_auc_score(y[i], margin[i], sample_weight=w[i]),
        "log_loss": lambda i: metrics.log_loss(y[i], chance[i], sample_weight=w[i]),
        "calibration_error": calibration,
    }


def of_targets(y: np.ndarray, p: np.ndarray, loss: np.ndarray, w: np.ndarray) -> dict[str, Any]:
    return {
        "rmse": lambda i: metrics.root_mean_squared_error(y[i], p[i], sample_weight=w[i]),
        "mae": lambda i: metrics.mean_absolute_error(y[i], p[i], sample_weight=w[i]),
        "r2": lambda i: metrics.r2_score(y[i], p[i], sample_weight=w[i]),
        "loss": lambda i: np.average(loss[i], weights=w[i]),
    }


def of_tokens(y: np.ndarray, p: np.ndarray, loss: np.ndarray, ignored: int, uncounted: list[int]) -> dict[str, Any]:
    def kept(i: np.ndarray, *less: int) -> tuple[np.ndarray, ...]:
        there = ~np.isin(y[i], (ignored, *less))
        return y[i][there], p[i][there], loss[i][there]

    return {
        "accuracy": lambda i: metrics.accuracy_score(*kept(i, *uncounted)[:2]),
        "macro_f1": lambda i: metrics.f1_score(*kept(i)[:2], average="macro"),
        "weighted_f1": lambda i: metrics.f1_score(*kept(i)[:2], average="weighted"),
        "loss": lambda i: np.mean(kept(i)[2]),
    }


class Kept:
    """What the last model was judged by."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        detail = Evaluator.detail

        def keeping(judge: Evaluator, model: Any) -> dict[str, Any]:
            self.scores, self.rows, self.dataset = judge.scores(model, judge.rows), judge.rows, judge.setup.dataset
            return detail(judge, model)

        patch.setattr(Evaluator, "detail", keeping)
        patch.setattr(intervals, "DRAWS", DRAWS)
        patch.setattr(intervals, "FEWEST", DRAWS)

    def check(self, summary: Mapping[str, Any], figures: Mapping[str, Figure]) -> None:
        """Each figure and its interval, from the rows that the same stream draws."""
        n, final = self.rows.n, summary["final"]
        stream = numpy_stream(summary["seed"], "bootstrap", "test")
        drawn = [stream.integers(n, size=n) for _ in range(DRAWS)]
        assert set(final["interval"]) == {*figures, "level"}
        for name, figure in figures.items():
            estimate = final[name] if name in final else final["two_class"][name]
            assert estimate == pytest.approx(figure(np.arange(n)), rel=1e-5), name
            ends = np.quantile([figure(rows) for rows in drawn], [0.025, 0.975])
            assert final["interval"][name] == pytest.approx(ends, rel=1e-5), name


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.UndefinedMetricWarning")
def test_two_classes_with_weights(table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept(monkeypatch)
    done = run(experiment(table, "two"), out=tmp_path / "run", baselines=False)
    arrays = [x.double().numpy() for x in (kept.rows.y, kept.scores.predicted, kept.scores.margin, kept.scores.losses)]
    kept.check(done.summary, of_two_classes(*arrays, kept.rows.weight.double().numpy()))
    first = done.summary["per_client"][0]
    assert [first["low"], first["high"]] == done.summary["final"]["interval"]["accuracy"]
    page = (done.path / "report.html").read_text()
    low, high = done.summary["final"]["interval"]["auc"]
    assert f"95% interval {low:.3f} to {high:.3f}" in page


def test_numbers_with_weights(table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept(monkeypatch)
    done = run(experiment(table, "target"), out=tmp_path / "run", baselines=False)
    d, y, p = kept.dataset, kept.rows.y.double().numpy(), kept.scores.predicted.numpy()
    truth, said = (d.target_mean + d.target_sd * each for each in (y, p))
    loss, w = kept.scores.losses.double().reshape(-1).numpy(), kept.rows.weight.double().numpy()
    kept.check(done.summary, of_targets(truth, said, loss, w))


def test_texts_count_their_labels(
    shared_data: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared_data("stackoverflow_titles_20k.tsv.xz")
    kept = Kept(monkeypatch)
    data = {"name": "stackoverflow", "limit": 120, "test": 0.01}
    local = {"steps": 12, "batch_size": 4, "lr": 2.0, "clip": 1.0}
    tables = {"partition": {"name": "iid", "clients": 2}, "cohort": {"size": 1}, "local": local}
    model = {"name": "stackoverflow_lstm"}
    done = run(Experiment.of(rounds=1, data=data, model=model, **tables), out=tmp_path / "run", baselines=False)
    arrays = [x.double().numpy() for x in (kept.rows.y, kept.scores.predicted, kept.scores.losses)]
    kept.check(done.summary, of_tokens(*arrays, kept.dataset.ignore, list(kept.dataset.uncounted)))


def test_one_row_says_nothing_of_others() -> None:
    assert bootstrap(of_mean("a", np.ones(1), np.ones(1)), 1, 1)["a"] == (1.0, None, None, 0.95)
    endless = bootstrap(lambda w: {"a": np.full(len(w), np.inf)}, 3, 1, draws=4)["a"]
    assert endless[:3] == (None, None, None)  # JSON has no such numbers


def test_rows_that_all_came_out_alike_are_said_to(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,y\n" + "".join(f"{k},{'no' if k < 20 else 'yes'}\n" for k in range(40)))
    data = {"name": "file", "path": str(tmp_path / "t.csv"), "label": "y"}
    tables = {"data": data, "model": {"name": "logistic"}, "partition": {"name": "iid", "clients": 2}, "rounds": 30}
    done = run(Experiment.of(**tables, local={"lr": 1.0}), out=tmp_path / "run", baselines=False)
    assert done.summary["final"]["interval"]["accuracy"] == [1.0, 1.0]
    assert "which all gave the same result" in (done.path / "report.html").read_text()


def test_very_many_labels_are_drawn_less_often() -> None:
    assert [usual_draws(n) for n in (0, 10, LARGE, 2 * LARGE, 100 * LARGE)] == [1000, 1000, 1000, 500, 200]
    seen: list[int] = []
    bootstrap(lambda w: seen.append(len(w)) or {"a": w[:, 0]}, 400_000, 1, draws=5)
    assert seen == [1, 2, 2, 1]  # a million numbers at a time


def test_an_outlier_leaves_the_other_draws_their_spread() -> None:
    stream = np.random.default_rng(0)
    y = np.append(stream.random(300), 1e9)
    said = np.append(y[:-1] + 0.1 * stream.normal(size=300), 1e9)
    draws = stream.integers(0, 3, (20, 301)).astype(float)
    draws[::2, -1] = 0
    found = of_numbers(said, y)(draws)["r2"]
    for value, counts in zip(found[::2], draws[::2], strict=True):
        assert value == pytest.approx(metrics.r2_score(y, said, sample_weight=counts), rel=1e-9)


def test_differences_of_many_columns_are_those_of_each() -> None:
    stream = np.random.default_rng(2)
    one, other, weight = stream.random((5, 70)), stream.random((5, 70)), stream.random(70)
    whole = differences(one, other, weight, 3, "gain")
    for k in range(5):
        assert (whole[:, k] == differences(one[k : k + 1], other[k : k + 1], weight, 3, "gain")[:, 0]).all()


def test_a_divergence_between_evaluations_is_judged_by_the_model_that_is_kept(table: str, tmp_path: Path) -> None:
    rare = {"evaluation": {"every": 20}, "rounds": 40, "model": {"name": "mlp"}}
    with pytest.raises(DivergedError, match="diverged in round"):
        run(experiment(table, "two", local={"lr": 2e4}, **rare), out=tmp_path / "finite", baselines=False)
    rows = [json.loads(line) for line in (tmp_path / "finite" / "metrics.jsonl").read_text().splitlines()]
    found = json.loads((tmp_path / "finite" / "summary.json").read_text())
    assert rows[-1]["loss"] is None
    assert found["final"]["round"] == rows[-1]["round"] > 0
    low, high = found["final"]["interval"]["accuracy"]
    assert low <= found["final"]["accuracy"] == found["per_client"][0]["value"] <= high
    with pytest.raises(DivergedError, match="diverged in round"):
        run(experiment(table, "two", local={"lr": 1e25, "steps": 1}, **rare), out=tmp_path / "not", baselines=False)
    found = json.loads((tmp_path / "not" / "summary.json").read_text())
    assert found["final"]["interval"] == {}
    assert {row["value"] for row in found["per_client"]} == {None}
    assert "no interval of these test rows" in (tmp_path / "not" / "report.html").read_text()


def test_a_run_and_its_baselines_read_the_data_once(
    table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, times = sources.read_dataset, []
    monkeypatch.setattr(sources, "read_dataset", lambda *given: times.append(1) or read(*given))
    done = run(experiment(table, "two"), out=tmp_path / "run", baselines=True)
    assert done.summary["gain"] is not None
    assert len(times) == 1
    monkeypatch.setattr(sources, "SMALL", 0)  # what is larger is read again rather than kept
    run(experiment(table, "two"), out=tmp_path / "large", baselines=True)
    assert len(times) == 1 + 3


def test_a_gain_of_less_than_a_digit_is_written_out(table: str, tmp_path: Path) -> None:
    one = {"partition": {"name": "iid", "clients": 1}}
    path = run(experiment(table, "target", **one), out=tmp_path / "run", baselines=True).path
    found = json.loads((path / "summary.json").read_text())
    (row,) = found["gain"]["clients"]
    row["federated"]["value"] = row["local_only"]["value"] - 5e-7
    (path / "summary.json").write_text(json.dumps(found))
    assert "+5e−07" in fedatlas.report(path).read_text()


def test_clients_own_models_are_judged_by_the_same_drawings(table: str, tmp_path: Path) -> None:
    done = run(experiment(table, "target", algorithm={"name": "local_only"}), out=tmp_path / "run", baselines=False)
    arrays = np.load(done.path / "judged.npz")
    weight, stream = arrays["weight"].astype(float), numpy_stream(1, "bootstrap", "clients")
    drawn = [stream.integers(len(weight), size=len(weight)) for _ in range(1000)]
    for row in done.summary["per_client"]:
        score = arrays[f"score-{row['client']}"].astype(float)
        ends = np.quantile([np.sqrt(np.average(score[i], weights=weight[i])) for i in drawn], [0.025, 0.975])
        assert (row["low"], row["high"]) == pytest.approx(tuple(ends), rel=1e-5)
    assert "interval" not in done.summary["final"]


def test_under_validation_the_test_rows_have_all_figures_too(table: str, tmp_path: Path) -> None:
    tables = {"evaluation": {"on": "validation"}}
    done = run(experiment(table, "two", **tables), out=tmp_path / "run", baselines=True)
    test, page = done.summary["test"], (done.path / "report.html").read_text()
    assert set(test["interval"]) == set(done.summary["final"]["interval"])
    low, high = test["interval"]["accuracy"]
    assert low <= test["accuracy"] <= high
    assert f'test.two_class.auc">{test["two_class"]["auc"]:.3f}' in page
    assert "on the test rows." in page
    assert "bootstrapped over the same validation rows for both models" in page
    assert "the same test rows" not in page
    own = run(experiment(table, "two", algorithm={"name": "ditto"}, **tables), out=tmp_path / "own", baselines=False)
    assert own.summary["test"]["accuracy"] is not None
    assert "interval" not in own.summary["test"]
    seeds = run(experiment(table, "two", seeds=[1, 2], **tables), out=tmp_path / "seeds", baselines=False)
    each = [json.loads((seeds.path / f"seed-{s}" / "summary.json").read_text())["test"]["accuracy"] for s in (1, 2)]
    assert seeds.summary["test"]["accuracy"] == pytest.approx(np.mean(each))
    assert seeds.summary["over_seeds"]["test"]["accuracy"]["n"] == 2
    assert "Figures after the last round on the test rows, by seed" in (seeds.path / "report.html").read_text()


def test_the_dry_run_counts_the_judging_of_every_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that goes on by a second whenever it is looked at: a model takes one second."""
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=itertools.count().__next__))
    few, many = ({"partition": {"name": "iid", "clients": k}, "algorithm": {"name": "local_only"}} for k in (2, 60))
    one, sixty = (fedatlas.dry_run(Experiment.of(rounds=1, **each))["seconds_evaluation"] for each in (few, many))
    assert sixty == 30 * one > 0


def test_a_comparison_says_what_clients_have_of_their_clusters(tmp_path: Path) -> None:
    """C14's figures, also without baselines: the means on all test rows would rank such methods wrongly."""
    tables = {"partition": {"name": "feature_skew", "clients": 6, "rotate": [0, 180]}, "rounds": 1}
    for name in ("ifca", "fesem"):
        one = Experiment.of(algorithm={"name": name}, evaluation={"clients": 0.25}, **tables)
        run(one, out=tmp_path / name, baselines=False)
    page = fedatlas.report([tmp_path / "ifca", tmp_path / "fesem"], tmp_path / "both.html").read_text()
    for name in ("ifca", "fesem"):
        found = json.loads((tmp_path / name / "summary.json").read_text())
        own, clusters = found["final"]["client_accuracy"], found["clusters"]
        assert f"accuracy {own['mean']:.3f} on average, {own['p10']:.3f} at the 10th percentile" in page
        rand = f"{clusters['adjusted_rand']:.3f}".replace("-", "−")
        assert f"adjusted Rand index {rand}, purity {clusters['purity']:.3f}" in page

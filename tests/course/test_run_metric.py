"""The metric of a run: its value on all test rows and on each owner's own, the constant model, the gain, `[stop]`."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn import metrics

from fedatlas import Experiment, run
from fedatlas.config import parse
from fedatlas.course.evaluation import Evaluator
from fedatlas.course.metric_figures import Resampled, mean_of
from fedatlas.course.metric_rows import KeptRows
from fedatlas.course.progress import stopped
from fedatlas.data.dataset import Dataset
from fedatlas.data.sources import load_dataset
from fedatlas.errors import ConfigError
from fedatlas.record.judged_rows import own_of, said_of
from fedatlas.record.run_folder import JUDGED, RunFolder, baseline_path
from fedatlas.setup.assembly import set_up
from fedatlas.setup.refusals import checked

OFFICES = {"Graz": 0.5, "Lienz": 0.04, "Wels": 0.26, "Wien": 0.2}  # Lienz has few rows, and hardly any "yes"


def owned(folder: Path, rows: int = 600, label: str = "two") -> dict[str, Any]:
    """Return `[data]` of a table with owners, a skewed class, five classes and a number."""
    stream = np.random.default_rng(4)
    x = stream.normal(size=(rows, 3))
    office = stream.choice(list(OFFICES), rows, p=list(OFFICES.values()))
    number = 10 + x @ [1, 1, 0] + stream.normal(size=rows)
    two = np.where((number > 12.2) & (office != "Lienz"), "yes", "no")
    many = np.array(["a", "b", "c"])[np.digitize(number, [11.5, 13.2])]
    lines = [
        f"{a:.3f},{b:.3f},{c:.3f},{o},{n:.3f},{t},{m}"
        for (a, b, c), o, n, t, m in zip(x, office, number, two, many, strict=True)
    ]
    (folder / "rows.csv").write_text("\n".join(["a,b,c,office,number,two,many", *lines]) + "\n")
    drop = [name for name in ("number", "two", "many") if name != label]
    return {
        "name": "file",
        "path": str(folder / "rows.csv"),
        "label": label,
        "client": "office",
        "drop": drop,
        "test": 0.3,
    }


def tables(folder: Path, label: str = "two", **more: Any) -> dict[str, Any]:
    return {
        "rounds": 2,
        "data": owned(folder, label=label),
        "partition": {"name": "natural", "clients": 0},
        "model": {"name": "logistic"},
        "engine": {"workers": 1},
        **more,
    }


def finished(folder: Path, *, baselines: bool = False, **given: Any) -> Any:
    return run(Experiment.of(**tables(folder, **given)), out=folder / "run", baselines=baselines).summary


def of_owner(client: int, folder: Path) -> np.ndarray:
    """Return the places of an owner's rows among the test rows, from the file alone."""
    with open(folder / "rows.csv") as file:
        office = [row["office"] for row in csv.DictReader(file)]
    test = dataset_of(folder).test.row
    assert test is not None
    return np.array([office[i] == sorted(OFFICES)[client] for i in test.tolist()])


def dataset_of(folder: Path, **more: Any) -> Dataset:
    return load_dataset(parse({"data": {**owned(folder), **more}}).data, 1)


def entries(summary: Mapping[str, Any], key: str) -> list[Any]:
    return [one[key] for one in summary["per_client"]]


def test_each_test_row_knows_its_owner_and_is_the_row_it_was(tmp_path: Path) -> None:
    with_owners, without = dataset_of(tmp_path), dataset_of(tmp_path, client="", drop=["number", "many", "office"])
    assert with_owners.test.x[:, :3].equal(without.test.x)
    assert with_owners.test.y.equal(without.test.y)
    owner = with_owners.test.client
    assert owner is not None
    assert with_owners.client_names == tuple(sorted(OFFICES))
    for k in range(4):
        assert np.array_equal(owner.numpy() == k, of_owner(k, tmp_path))


def test_a_skewed_class_is_judged_by_auc_on_all_rows_and_on_each_owners_own(tmp_path: Path) -> None:
    summary = finished(tmp_path, baselines=True)
    kept = RunFolder(tmp_path / "run").arrays(JUDGED)
    metric, y, odds = summary["metric"], kept["true"], kept["outputs"]
    assert (metric["name"], metric["asked"]) == ("auc", False)
    assert metric["value"] == pytest.approx(metrics.roc_auc_score(y, odds))
    assert metric["value"] == summary["final"]["two_class"]["auc"]
    assert [metric["low"], metric["high"]] == summary["final"]["interval"]["auc"]
    assert summary["best"].keys() == {"accuracy", "macro_f1", "weighted_f1", "loss"}  # as before
    own = entries(summary, "own")
    for k, one in enumerate(own):
        mine = of_owner(k, tmp_path)
        assert one["test_rows"] == mine.sum()
        if sorted(OFFICES)[k] == "Lienz":  # only "no": no area, and never .5
            assert one["value"] is None
            assert one["log_loss"] == pytest.approx(
                metrics.log_loss(y[mine], 1 / (1 + np.exp(-odds[mine])), labels=[0, 1])
            )
        else:
            assert one["value"] == pytest.approx(metrics.roc_auc_score(y[mine], odds[mine]))
            assert one["low"] < one["value"] < one["high"]
            assert own_of(kept, k).outputs.tolist() == odds[mine].tolist()  # type: ignore[union-attr]
    sizes, values = [one["test_rows"] for one in own], [one["value"] for one in own]
    there = [i for i in range(4) if values[i] is not None]
    expected = np.average([values[i] for i in there], weights=[sizes[i] for i in there])
    assert metric["own"]["value"] == pytest.approx(expected)
    assert (metric["own"]["clients"], metric["own"]["left_out"]) == (4, 1)
    check_gain(tmp_path, summary)


def check_gain(folder: Path, summary: Mapping[str, Any]) -> None:
    """Each client's gain on its own rows is that of its own model, paired by row."""
    gain, path = summary["gain"]["metric"], baseline_path(folder / "run", "local_only")
    alone, kept = RunFolder(path).arrays(JUDGED), RunFolder(folder / "run").arrays(JUDGED)
    assert gain["name"] == "auc"
    assert gain["values"]["federated"] == summary["metric"]["value"]
    for one in gain["clients"]:
        k = one["client"]
        mine = of_owner(k, folder)
        both = [metrics.roc_auc_score(kept["true"], x) for x in (kept["outputs"], alone[f"outputs-{k}"])]
        assert one["gain"]["value"] == pytest.approx(both[0] - both[1])
        if len(set(kept["true"][mine])) == 2:
            own = [metrics.roc_auc_score(kept["true"][mine], x[mine]) for x in (kept["outputs"], alone[f"outputs-{k}"])]
            assert one["own"]["gain"]["value"] == pytest.approx(own[0] - own[1])
            assert one["own"]["gain"]["low"] <= one["own"]["gain"]["value"] <= one["own"]["gain"]["high"]
        else:
            assert one["own"]["gain"]["value"] is None
    assert summary["gain"]["figure"] == "accuracy"  # as before


def test_validation_rows_know_their_owners_too(tmp_path: Path) -> None:
    setup = set_up(checked(Experiment.of(**tables(tmp_path, evaluation={"on": "validation"})).config))
    summary = finished(tmp_path, evaluation={"on": "validation"})
    assert [one["test_rows"] for one in entries(summary, "own")] == [len(rows) for rows in setup.validation.values()]
    assert summary["test"]["metric"]["value"] == summary["test"]["two_class"]["auc"]


def test_rows_that_are_dealt_are_nobodys_own(tmp_path: Path) -> None:
    summary = finished(tmp_path, partition={"name": "iid", "clients": 3})
    assert entries(summary, "own") == [None] * 3
    assert summary["metric"]["own"] is None


def test_rows_that_clients_hold_out_are_their_own(tmp_path: Path) -> None:
    given = {"partition": {"name": "iid", "clients": 3}, "evaluation": {"clients": 0.4, "metric": "macro_f1"}}
    summary = finished(tmp_path, baselines=True, **given)
    kept = RunFolder(tmp_path / "run").arrays(JUDGED)
    for k, one in enumerate(entries(summary, "own")):
        y, p = kept[f"true-{k}"], kept[f"predicted-{k}"]
        assert one["test_rows"] == len(y) == summary["per_client"][k]["test_rows"]
        assert one["value"] == pytest.approx(metrics.f1_score(y, p, average="macro"))
    assert summary["metric"]["value"] == pytest.approx(summary["final"]["macro_f1"])
    for one in summary["gain"]["metric"]["clients"]:
        assert one["gain"]["value"] == one["own"]["gain"]["value"] == pytest.approx(difference(one))


def difference(one: Mapping[str, Any]) -> float:
    return float(one["federated"]["value"] - one["local_only"]["value"])


@pytest.mark.parametrize(
    ("label", "name", "value"),
    [
        ("two", "auc", 0.5),
        ("two", "log_loss", None),
        ("two", "accuracy", None),
        ("two", "pr_auc", None),
        ("many", "auc", 0.5),
        ("many", "log_loss", None),
        ("many", "balanced_accuracy", 1 / 3),
        ("number", "rmse", None),
        ("number", "mae", None),
    ],
)
def test_the_constant_model_comes_of_the_training_rows(
    label: str, name: str, value: float | None, tmp_path: Path
) -> None:
    given = tables(tmp_path, label=label, evaluation={"metric": name}, rounds=1)
    setup = set_up(checked(Experiment.of(**given).config))
    summary = finished(tmp_path, label=label, evaluation={"metric": name}, rounds=1)
    train, y = setup.dataset.train.y.numpy(), setup.dataset.test.y.numpy()
    found, classes = summary["trivial"], setup.dataset.classes
    counts = np.bincount(train.astype(int), minlength=classes)
    expected = {
        "log_loss": lambda: metrics.log_loss(y, np.tile(counts / counts.sum(), (len(y), 1)), labels=range(classes)),
        "accuracy": (y == counts.argmax()).mean,
        "pr_auc": (y == 1).mean,
        "rmse": lambda: np.sqrt(((y - train.mean(dtype=float)) ** 2).mean()),
        "mae": lambda: np.abs(y - train.mean(dtype=float)).mean(),
    }
    assert found["value"] == pytest.approx(expected[name]() if value is None else value, rel=1e-5)
    assert found["source"] == "training rows"
    assert found["answer"] == (
        pytest.approx(train.mean(dtype=float)) if label == "number" else setup.dataset.class_names[counts.argmax()]
    )
    sign = -1 if name in {"log_loss", "rmse", "mae"} else 1
    assert found["better_by"]["value"] == pytest.approx(sign * (summary["metric"]["value"] - found["value"]))
    kept = RunFolder(tmp_path / "run").arrays(JUDGED)
    assert said_of(kept, None, "trivial-") is not None


def test_models_of_clients_are_never_pooled(tmp_path: Path) -> None:
    """Their mean, and how many have no figure: here one that only "no" rows judge."""
    summary = finished(tmp_path, algorithm={"name": "ditto"})
    values = [one["value"] for one in entries(summary, "metric")]
    assert summary["metric"]["value"] == pytest.approx(np.mean(values))  # the same rows for all
    assert (summary["metric"]["models"], summary["metric"]["left_out"]) == (4, 0)
    assert summary["metric"]["test_rows"] == summary["per_client"][0]["test_rows"]
    assert summary["metric"]["own"]["left_out"] == 1
    assert summary["final"].get("two_class") is None


def test_the_headline_has_one_interval(tmp_path: Path) -> None:
    """Where the metric is the headline, a client has no second interval of the same figure."""
    summary = finished(tmp_path, algorithm={"name": "ditto"}, evaluation={"metric": "accuracy"})
    for one in summary["per_client"]:
        assert one["metric"] == {key: one[key] for key in ("value", "low", "high")}


def test_a_mean_over_clients_is_weighted_by_their_rows_and_counts_those_left_out() -> None:
    one, other = Resampled(0.8, np.array([0.7, np.nan, 0.9]), 10), Resampled(0.5, np.array([0.5, 0.4, 0.6]), 30)
    none = Resampled(None, np.array([np.nan] * 3), 20)
    mean, left_out = mean_of({0: one, 1: other, 2: none})
    assert (mean.value, left_out, mean.rows) == (pytest.approx(0.575), 1, 40)
    assert mean.values == pytest.approx([0.55, 0.4, 0.675])
    assert mean_of({2: none})[0].value is None


def test_stop_follows_the_metric_only_where_its_key_is_written(tmp_path: Path) -> None:
    rows = [{"round": i, "accuracy": a, "auc": b} for i, (a, b) in enumerate([(0.9, 0.5), (0.9, 0.6), (0.9, 0.7)])]
    config = parse({"stop": {"patience": 2}})
    assert stopped(config, rows) == "no better accuracy since round 0"
    assert not stopped(parse({"stop": {"patience": 2}, "evaluation": {"metric": "auc"}}), rows)
    falls = parse({"stop": {"patience": 2}, "evaluation": {"metric": "log_loss"}})
    assert stopped(falls, [{"round": i, "log_loss": x} for i, x in enumerate([0.5, 0.6, 0.7])])
    summary = finished(tmp_path, evaluation={"metric": "pr_auc"}, stop={"patience": 1}, rounds=3)
    last = RunFolder(tmp_path / "run").rows()[-1]
    assert last["pr_auc"] == pytest.approx(summary["metric"]["value"])


def test_without_the_key_the_curve_has_the_figure_that_was_chosen_and_no_other(tmp_path: Path) -> None:
    finished(tmp_path, stop={"patience": 9}, rounds=1)
    others = {"auc", "pr_auc", "log_loss", "balanced_accuracy"} & RunFolder(tmp_path / "run").rows()[-1].keys()
    assert others == {"auc"}


def test_a_metric_that_does_not_fit_is_refused_before_anything_trains(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^evaluation.metric = 'auc': the target of 'file' is a number; use rmse or"):
        finished(tmp_path, label="number", evaluation={"metric": "auc"})
    assert not (tmp_path / "run").exists()


def test_more_classes_have_macro_f1_if_they_are_skewed(tmp_path: Path) -> None:
    setup = set_up(checked(Experiment.of(**tables(tmp_path, label="many")).config))
    counts = np.bincount(setup.dataset.train.y.numpy())
    assert counts.max() > 0.5 * counts.sum()
    assert Evaluator(setup).metric.name == "macro_f1"
    setup = set_up(checked(Experiment.of(**tables(tmp_path, label="number")).config))
    assert Evaluator(setup).metric.name == "rmse"


def test_seeds_have_the_mean_of_the_metric(tmp_path: Path) -> None:
    summary = run(Experiment.of(**tables(tmp_path, seeds=[1, 2])), out=tmp_path / "run", baselines=False).summary
    each = [RunFolder(tmp_path / "run" / f"seed-{seed}").summary() for seed in (1, 2)]
    assert summary["metric"]["name"] == "auc"
    for part in ("metric", "trivial"):
        assert summary[part]["value"] == pytest.approx(np.mean([one[part]["value"] for one in each]))  # type: ignore[literal-required]
    assert summary["over_seeds"]["metric"]["value"]["n"] == 2


def test_too_many_numbers_are_not_kept() -> None:
    kept = KeptRows(10)
    kept.add({"true": np.zeros(6), "predicted": np.zeros(4)})
    kept.add({"true": np.zeros(6)})  # once
    assert kept.arrays.keys() == {"true", "predicted"}
    kept.add({"outputs": np.zeros(1)})
    assert not kept.arrays

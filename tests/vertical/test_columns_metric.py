"""The metric of a run whose parties hold columns: chosen from the training labels, with the constant model and the gain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn import metrics

from fedatlas import Experiment, run
from fedatlas.course.columns_end import by_metric
from fedatlas.errors import ConfigError
from fedatlas.record.judged_rows import said_of
from fedatlas.record.run_folder import JUDGED, RunFolder
from fedatlas.reporting import write_report
from fedatlas.setup.consortium import consortium
from fedatlas.setup.refusals import checked
from reports import Page


def given(folder: Path, share: float = 0.15, number: bool = False, **more: Any) -> dict[str, Any]:
    """Return an experiment of two tables whose label holds ``share`` of "yes", or is a number."""
    stream = np.random.default_rng(3)
    a, b = stream.normal(size=(2, 240))
    z = a + b + stream.normal(size=240)
    y = np.round(z, 3) if number else np.where(z > np.quantile(z, 1 - share), "yes", "no")
    ids = [f"i{k}" for k in range(240)]
    pd.DataFrame({"id": ids, "a": a, "y": y}).to_csv(folder / "one.csv", index=False)
    pd.DataFrame({"id": ids, "b": b}).to_csv(folder / "two.csv", index=False)
    parties = [
        {"name": "one", "path": str(folder / "one.csv"), "id": "id", "label": "y"},
        {"name": "two", "path": str(folder / "two.csv"), "id": "id"},
    ]
    return {"parties": parties, "algorithm": {"name": "secureboost", "trees": 2}, "data": {"test": 0.4}, **more}


def test_a_skewed_label_is_judged_by_auc_beside_the_constant_model(tmp_path: Path) -> None:
    summary = run(Experiment.of(**given(tmp_path)), out=tmp_path / "run", baselines=True).summary
    kept = RunFolder(tmp_path / "run").arrays(JUDGED)
    said = said_of(kept)
    assert said is not None
    metric, trivial = summary["metric"], summary["trivial"]
    assert (metric["name"], metric["asked"]) == ("auc", False)
    assert metric["value"] == pytest.approx(metrics.roc_auc_score(said.true, said.outputs))
    assert metric["value"] == summary["final"]["auc"]
    assert [metric["low"], metric["high"]] == summary["final"]["interval"]["auc"]
    assert metric["test_rows"] == len(kept["score"]) == summary["rows"]["test"]
    assert (trivial["answer"], trivial["source"], trivial["value"]) == ("no", "training rows", 0.5)
    assert trivial["better_by"]["value"] == pytest.approx(metric["value"] - 0.5)
    gain = summary["gain"]["metric"]
    assert gain["parties"]["two"]["value"] == pytest.approx(metric["value"] - gain["values"]["alone"])
    assert gain["parties"]["two"]["low"] <= gain["parties"]["two"]["value"] <= gain["parties"]["two"]["high"]


@pytest.mark.parametrize(
    ("name", "score"),
    [
        ("pr_auc", lambda s: metrics.average_precision_score(s.true, s.outputs)),
        ("balanced_accuracy", lambda s: metrics.balanced_accuracy_score(s.true, s.predicted)),
    ],
)
def test_the_metric_that_is_asked_for_is_that_of_scikit_learn(name: str, score: Any, tmp_path: Path) -> None:
    """So is the one that the party with the label tells where its rows are elsewhere."""
    tables = given(tmp_path, evaluation={"metric": name})
    summary = run(Experiment.of(**tables), out=tmp_path / "run", baselines=False).summary
    assert summary["metric"]["value"] == pytest.approx(score(said_of(RunFolder(tmp_path / "run").arrays(JUDGED))))
    held = consortium(checked(Experiment.of(**tables).config))
    low, high = summary["final"]["interval"][name]
    told = {"rows": summary["rows"], "intervals": {name: (summary["metric"]["value"], low, high, 0.95)}}
    elsewhere = by_metric(held, told, None)
    assert elsewhere == {"metric": summary["metric"]}


def test_where_the_label_is_elsewhere_its_classes_are_not_told(tmp_path: Path) -> None:
    held = consortium(checked(Experiment.of(**given(tmp_path)).config))
    found = by_metric(held, {"rows": {"test": 96}, "intervals": {"accuracy": (0.8, 0.7, 0.9, 0.95)}}, None)
    assert (found["metric"]["name"], found["metric"]["value"]) == ("accuracy", 0.8)
    assert "trivial" not in found


def test_even_labels_have_accuracy_and_numbers_their_error(tmp_path: Path) -> None:
    even = run(Experiment.of(**given(tmp_path, share=0.5)), out=tmp_path / "even", baselines=False).summary
    assert even["metric"]["name"] == "accuracy"
    assert even["metric"]["value"] == pytest.approx(even["final"]["accuracy"])
    tables = given(tmp_path, number=True, evaluation={"metric": "mae", "on": "validation"})
    numbers = run(Experiment.of(**tables), out=tmp_path / "numbers", baselines=False).summary
    assert numbers["metric"]["value"] == pytest.approx(numbers["final"]["mae"])
    assert numbers["metric"]["test_rows"] == numbers["rows"]["held"]
    assert isinstance(numbers["trivial"]["answer"], float)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"evaluation": {"metric": "rmse"}}, r"^evaluation.metric = 'rmse': the target of 'one' is a class; use"),
        (
            {"evaluation": {"metric": "pr_auc"}, "stop": {"patience": 1}},
            r"where parties hold columns, \[stop\] follows",
        ),
    ],
)
def test_a_metric_that_cannot_be_is_refused_in_a_sentence(more: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        run(Experiment.of(**given(tmp_path, **more)), out=tmp_path / "run")


def test_the_label_holder_is_told_whether_the_others_columns_are_worth_it(tmp_path: Path) -> None:
    """Half of what decides the label is in the other party's column: a yes; of noise in its place: none."""
    keys = {"algorithm": {"name": "secureboost", "trees": 8}, "evaluation": {"metric": "auc"}}
    told = given(tmp_path, 0.5, **keys)
    done = run(Experiment.of(**told), out=tmp_path / "run", baselines=True)
    answer = done.summary["answer"]
    gain = done.summary["gain"]["metric"]
    assert answer["verdict"] == "yes"
    assert answer["together"] == pytest.approx(gain["values"]["together"])
    assert answer["alone"] == pytest.approx(gain["values"]["alone"])
    assert answer["trivial"] == pytest.approx(done.summary["trivial"]["value"])
    assert answer["gain"]["value"] == pytest.approx(gain["against"]["alone"]["value"])
    assert [(one["name"], one["fate"]) for one in answer["parties"]] == [("one", "gains")]
    assert done.answer.startswith("Federate, with ")
    assert "certain for one" in done.answer
    page = Page(done.path / "report.html").text()
    assert " ".join(done.answer.split()) in page
    assert "Federate, with" not in Page(done.path / "report-two.html").text()

    noise = pd.read_csv(tmp_path / "two.csv").assign(b=np.random.default_rng(9).normal(size=240))
    noise.to_csv(tmp_path / "two.csv", index=False)
    other = run(Experiment.of(**told), out=tmp_path / "noise", baselines=True)
    assert other.summary["answer"]["verdict"] in {"cannot tell", "no"}


def test_alone_means_on_all_its_rows(tmp_path: Path) -> None:
    """Of 240 rows the other party has 60: what the holder loses by federating is the rows in which it is alone."""
    told = given(tmp_path)
    pd.read_csv(tmp_path / "two.csv").head(60).to_csv(tmp_path / "two.csv", index=False)
    done = run(Experiment.of(**told), out=tmp_path / "run", baselines=True)
    assert done.summary["answer"]["alone"] == pytest.approx(done.summary["gain"]["metric"]["values"]["alone_all"])


def test_without_baselines_there_is_no_answer(tmp_path: Path) -> None:
    done = run(Experiment.of(**given(tmp_path)), out=tmp_path / "run", baselines=False)
    assert "answer" not in done.summary


def test_encryption_is_a_difference_of_two_runs_side_by_side(tmp_path: Path) -> None:
    """One run encrypts and the other does not; nothing else differs."""
    protections: dict[str, list[dict[str, Any]]] = {"clear": [], "sealed": [{"name": "paillier"}]}
    for name, privacy in protections.items():
        tree = {"name": "secureboost", "trees": 1, "depth": 1}
        made = Experiment.of(**given(tmp_path, algorithm=tree, privacy=privacy))
        run(made, out=tmp_path / name, baselines=False)
    page = Page(write_report([tmp_path / name for name in protections], tmp_path / "page.html"))
    assert {"key": "privacy.name", "clear": "", "sealed": "paillier"} in page.table("differences")

"""The answer that opens a study's page is the one that runs and comparisons give, setting by setting."""

from __future__ import annotations

import json
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedatlas.comparison.compare import compare
from fedatlas.comparison.schemes import comparison_of
from fedatlas.study.analyse import analysis
from fedatlas.study.answers import answers, judged_of, of_setting
from fedatlas.study.measurements import Measurements, measurements_of
from fedatlas.study.page import render
from fedatlas.study.read_measurements import measured
from fedatlas.study.study import Study
from fedatlas.study.table import Table

SEEDS = (1, 2, 3)
CHOICES = ("fedavg", "fedprox")
FILE = """
rounds = 2
data = {{ name = "file", path = "{path}", label = "poor", client = "office", test = {test} }}
partition = {{ name = "natural" }}
model = {{ name = "logistic" }}
evaluation = {{ metric = "{metric}", margin = 0.01 }}
words = {{ party = "office" }}
"""


def table_of(path: Path, rows: int = 900) -> None:
    """Write a table in which offices differ: the same columns speak for "yes" in the one and for "no" in the other."""
    stream = np.random.default_rng(3)
    x, office = stream.normal(size=(rows, 3)), stream.integers(0, 3, rows)
    score = x[:, 0] + np.where(office == 2, -1.0, 1.0) * x[:, 1]
    poor = np.where(score + 0.5 * stream.normal(size=rows) > 0.6, "yes", "no")
    lines = [f"{a:.5f},{b:.5f},{c:.5f},o{k},{y}" for (a, b, c), k, y in zip(x, office, poor, strict=True)]
    path.write_text("\n".join(["a,b,c,office,poor", *lines]))


def made(folder: Path, metric: str, test: str = "0.3") -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the answer of a study and of a comparison of the same runs."""
    table_of(folder / "rows.csv")
    if test != "0.3":
        whole = (folder / "rows.csv").read_text().splitlines()
        (folder / "test.csv").write_text("\n".join([whole[0], *whole[600:]]))
        (folder / "rows.csv").write_text("\n".join(whole[:600]))
    file = folder / "one.toml"
    file.write_text(FILE.format(path=folder / "rows.csv", metric=metric, test=test))
    study = Study.of(
        "both",
        base=str(file),
        seeds=list(SEEDS),
        alone=True,
        factor=[
            {"name": "rate", "role": "setting", "key": "local.lr", "levels": [0.1]},
            {"name": "scheme", "role": "choice", "key": "algorithm.name", "levels": list(CHOICES)},
        ],
    )
    assert study.run(folder / "study")
    found = study.analyse(folder / "study")
    words = [f"algorithm.name={','.join(CHOICES)}", "local.lr=0.1"]
    given = comparison_of(file, words, ",".join(map(str, SEEDS)))
    return found, compare(given, folder / "compared", baselines=True, say=lambda line: None)


@pytest.mark.parametrize(
    ("metric", "test"), [pytest.param("auc", "0.3", marks=pytest.mark.slow), ("accuracy", "shared")]
)
def test_the_study_answers_as_a_comparison_of_the_same_runs(tmp_path: Path, metric: str, test: str):
    """By the metric, with cost, gain, the trivial model and each office; drawn test rows, and such as all seeds share."""
    shared = f'"{tmp_path / "test.csv"}"' if test == "shared" else test
    found, record = made(tmp_path, metric, shared)
    (one,) = found["answer"]["settings"]
    assert one["figure"] == metric
    assert one["order"] == [row["scheme"] for row in record["answer"]["rows"]]
    assert one["take"] == record["answer"]["take"]
    close = 0.2 if test == "shared" else 1e-5  # 200 draws of the rows beside 400
    for mine, theirs in zip(one["pairs"], record["answer"]["pairs"], strict=True):
        assert mine["difference"]["value"] == pytest.approx(theirs["difference"]["value"], abs=1e-5)
        assert mine["difference"]["error"] == pytest.approx(theirs["difference"]["error"], rel=close, abs=1e-6)
        assert mine["apart"] == theirs["apart"]
    summary = json.loads((tmp_path / "compared" / one["take"] / "summary.json").read_text())["answer"]
    answer = one["answer"]
    assert answer["verdict"] == summary["verdict"]
    for key in ("together", "alone", "trivial", "pooled"):
        assert answer[key] == pytest.approx(summary[key], abs=1e-5)
    for key in ("gain", "over_trivial"):
        assert answer[key]["value"] == pytest.approx(summary[key]["value"], abs=1e-5)
        assert answer[key]["error"] == pytest.approx(summary[key]["error"], rel=close, abs=1e-6)
    assert [(p["name"], p["test_rows"]) for p in answer["parties"]] == [
        (p["name"], p["test_rows"]) for p in summary["parties"]
    ]
    assert [p["gain"]["value"] for p in answer["parties"]] == pytest.approx(
        [p["gain"]["value"] for p in summary["parties"]], abs=1e-5
    )
    assert answer["asked"]["cost"] == summary["asked"]["cost"]
    assert answer["test_rows"] == summary["test_rows"]
    assert one["text"] in found["sentences"][0]
    assert one["text"] in unescape(render(found))


def rows(values: dict[str, list[float]], alone: list[float] | None = None, **more: Any) -> Measurements:
    """A study of one setting: each choice's accuracy by seed, on 500 rows of each seed."""

    def run(kind: str, scheme: str, seed: int, value: float) -> dict[str, Any]:
        judged = {"metric": {"name": "accuracy", "value": value, "test_rows": 500}, "judged_on": f"rows {seed}"}
        judged |= {"trivial": {"value": 0.5, "answer": "no"}}
        return {"run_key": f"{kind}{scheme}{seed}", "kind": kind, "status": "done", "seed": seed, "rounds": 1, "rows": 1000,
                "nodes": 3, "heterogeneity": 0.1, "classes": 2, "setting": "s", "scheme": scheme, "accuracy": value,
                "bytes_up": 10.0, "bytes_down": 10.0, "judged": judged, **more}  # fmt: skip

    given = [run("cell", name, s, v) for name, each in values.items() for s, v in enumerate(each, 1)]
    single = [run("baseline", "", s, v) for s, v in enumerate(alone or (), 1)]
    return measurements_of(given, ["setting"], ["scheme"], alone=single)


def test_a_known_gain_is_told_with_the_correction_for_drawn_rows():
    """Together .9 and alone .8 in each of three seeds, give or take: sd .01 times the root of 1/3 + 500/1000."""
    study = rows({"fedavg": [0.91, 0.90, 0.89]}, alone=[0.80, 0.80, 0.80])
    found = of_setting(study, ("s",)).answer
    assert found is not None
    assert found.gain is not None
    assert (found.verdict, round(found.gain.value, 9)) == ("yes", 0.1)
    assert found.gain.error == pytest.approx(0.01 * (1 / 3 + 0.5) ** 0.5)
    assert "Federate, with FedAvg: together accuracy 0.900, alone 0.800" in analysis(study)["answer"]["text"]


def test_one_rate_for_all_algorithms_is_said_and_not_where_rates_were_picked():
    """By the configurations of the runs: one algorithm alone has nothing to say, nor has a rate of each choice's own."""

    def said(lr: dict[str, float], **more: Any) -> bool:
        study = rows({name: [0.9, 0.91, 0.92] for name in lr}, **more)
        for run in study.runs:
            run["configuration"] = {"algorithm": {"name": run["scheme"]}, "local": {"lr": lr[run["scheme"]]}}  # type: ignore[index]
        found = analysis(study)
        note = "All choices ran with local.lr=0.05, which may suit one better than another"
        assert (note in found["answer"]["text"]) is (note in unescape(render(found)))
        return note in found["answer"]["text"]

    assert said({"fedavg": 0.05, "fedprox": 0.05})
    assert not said({"fedavg": 0.05, "fedprox": 0.1})
    assert not said({"fedavg": 0.05})
    assert not said({"fedavg": 0.05, "fedprox": 0.05}, rates={"local.lr": 0.05})


def test_values_are_called_picked_only_where_they_were():
    """Two settings, in which fedprox is 0.01 and 0.03 ahead: a range over settings reads like none of the intervals."""
    for rates, words in (({}, ""), ({"local.lr": 0.1}, ", each with the values picked for it")):
        both = [
            {**run, "setting": at, "run_key": run["run_key"] + at, "accuracy": run["accuracy"] + more, "judged": {}}
            for at, more in (("s", 0.0), ("t", 0.02))
            for run in rows({"fedavg": [0.9, 0.9, 0.91], "fedprox": [0.91, 0.91, 0.92]}, rates=rates).runs
            if (run["scheme"], at) != ("fedavg", "t")
        ]
        both += [
            {**run, "setting": "t", "run_key": run["run_key"] + "t", "judged": {}}
            for run in rows({"fedavg": [0.9, 0.9, 0.91]}, rates=rates).runs
        ]
        text = " ".join(analysis(measurements_of(both, ["setting"], ["scheme"]))["sentences"])
        assert f"Compared with fedavg{words}, over the settings: fedprox is better in 2 and worse in 0 of 2" in text
        assert "(from +0.010 to +0.030)" in text


def test_two_seeds_give_no_verdict_and_a_constant_as_good_gives_no_yes():
    few = analysis(rows({"fedavg": [0.91, 0.90], "fedprox": [0.5, 0.5]}, alone=[0.8, 0.8]))["answer"]
    assert few["verdict"] == "cannot tell"
    assert "2 seeds are too few for a verdict, which takes 3" in few["text"]
    assert few["settings"][0]["answer"]["gain"] is None
    useless = rows({"fedavg": [0.50, 0.51, 0.49]}, alone=[0.40, 0.41, 0.39])
    found = of_setting(useless, ("s",)).answer
    assert found is not None
    assert found.gain is not None
    assert found.gain.low > 0
    assert found.verdict == "cannot tell"


def test_without_models_alone_the_page_says_what_is_missing():
    text = analysis(rows({"fedavg": [0.9, 0.9, 0.91]}))["answer"]["text"]
    assert "Whether to federate is not answered" in text
    assert "alone = true" in text


def test_of_choices_that_are_not_told_apart_the_cheaper_is_taken():
    study = rows({"dear": [0.90, 0.91, 0.92], "cheap": [0.91, 0.90, 0.91]})
    for run in study.runs:
        run["bytes_up"] = 1000.0 if run["scheme"] == "dear" else 10.0  # type: ignore[index]
    (one,) = answers(study)
    assert (one.ranking.order[0], one.take, sorted(one.first)) == ("dear", "cheap", ["cheap", "dear"])


def test_holm_tells_apart_by_chance_in_at_most_a_twentieth_of_studies():
    """200 studies of four choices that are equally good, three seeds with a common part: wrongly told in at most 5% and its noise."""
    stream, wrong = np.random.default_rng(4), 0
    for _ in range(200):
        common = 0.05 * stream.normal(size=3)
        values = {name: [*(0.8 + common + 0.02 * stream.normal(size=3))] for name in "abcd"}
        wrong += any(pair.apart for pair in answers(rows(values))[0].ranking.pairs)
    assert wrong <= 10 + 2 * (200 * 0.05 * 0.95) ** 0.5


def test_the_table_keeps_figures_of_each_party_in_the_same_draws(tmp_path: Path):
    """Of few natural owners each, so that differences between a setting's runs are paired row by row."""
    table_of(tmp_path / "rows.csv", 400)
    file = tmp_path / "one.toml"
    file.write_text(FILE.format(path=tmp_path / "rows.csv", metric="accuracy", test="0.3"))
    factor = {"name": "scheme", "role": "choice", "key": "algorithm.name", "levels": list(CHOICES)}
    study = Study.of("kept", base=str(file), seeds=[1], factor=[factor])
    assert study.run(tmp_path / "out")
    table = Table.open(study.table(tmp_path / "out"))
    kept = [table.summary(run["run_key"])["judged"] for run in table.members("kept") if run["kind"] == "cell"]  # type: ignore[index]
    assert [p["name"] for p in kept[0]["parties"]] == ["o0", "o1", "o2"]
    for one, other in zip(kept[0]["parties"], kept[1]["parties"], strict=True):
        assert (one["rows"], one["trivial"]) == (other["rows"], other["trivial"])  # a model that is the same in both
        assert len(one["together"]) == 201
    assert measured(table, "kept").alone == []


def test_a_party_without_the_figure_is_left_out_of_a_setting_s_means():
    """One natural owner has test rows of one class only, so that the AUC is undefined there."""
    one = {"client": 0, "rows": 90, "together": [0.8, 0.7, 0.9]}
    other = {"client": 1, "rows": 30, "together": [None, None, None]}
    kept = {"own": True, "train_rows": 300, "parties": [one, other]}
    run = {"seed": 1, "judged": {"judged": kept, "metric": {"name": "auc"}, "judged_on": "rows"}}
    found = judged_of(run, "auc")  # type: ignore[arg-type]
    assert found is not None
    assert (found.mean.values.tolist(), found.mean.rows) == (pytest.approx([0.8, 0.7, 0.9]), 90)
    nobody = {**run["judged"], "judged": {**kept, "parties": [other]}}  # type: ignore[dict-item]
    assert judged_of({**run, "judged": nobody}, "auc") is None  # type: ignore[arg-type]


def test_a_run_without_a_kept_metric_has_all_of_its_setting_judged_by_accuracy():
    """As where a longer run answers for a shorter one: figures of one setting are never of different rows."""
    study = rows({"fedavg": [0.9, 0.9, 0.91], "fedprox": [0.8, 0.8, 0.81]}, alone=[0.7, 0.7, 0.7])
    for run in study.runs:
        if run["scheme"] == "fedavg" and run["seed"] == 1:
            run["judged"] = {}  # type: ignore[index]
        else:
            run["judged"]["metric"] |= {"name": "auc", "value": 0.1}
    one = of_setting(study, ("s",))
    assert (one.figure, one.rows_known, one.take) == ("accuracy", False, "fedavg")
    assert one.ranking.means["fedprox"] == pytest.approx((0.8 + 0.8 + 0.81) / 3)
    assert one.ranking.pairs[0].seeds == 3
    assert one.answer is not None
    assert one.answer.alone == pytest.approx(0.7)
    assert "does not keep how many test rows" in analysis(study)["answer"]["text"]

"""Several runs of parties that hold columns: seeds, comparisons, studies, and pages of several runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from fedatlas import Experiment, Study, compare, dry_run, report, resume, run
from fedatlas.errors import ConfigError
from fedatlas.metrics.intervals import over_seeds
from fedatlas.record.run_folder import RunFolder
from reports import Page
from test_columns_metric import given

KEYS = {"algorithm": {"name": "secureboost", "trees": 3}}


def trees_of(folder: Path) -> Any:
    return json.loads((folder / "model.json").read_text())["trees"]


def ids_of(page: Page) -> list[str]:
    return [held["id"] for _, held, _ in page.elements if held.get("id")]


def test_several_seeds_are_the_runs_of_each_and_their_mean(tmp_path: Path) -> None:
    tables = given(tmp_path, 0.5, **KEYS)
    done = run(Experiment.of(**tables, seeds=[4, 5, 6]), out=tmp_path / "run", baselines=True)
    one = run(Experiment.of(**tables, seed=5), out=tmp_path / "one", baselines=True)
    assert trees_of(tmp_path / "run" / "seed-5") == trees_of(tmp_path / "one")
    each = [RunFolder(tmp_path / "run" / f"seed-{seed}").summary() for seed in (4, 5, 6)]
    assert each[1]["answer"] == one.summary["answer"]
    for figure in ("auc", "accuracy"):
        values = [s["final"][figure] for s in each]
        assert done.summary["over_seeds"]["final"][figure] == over_seeds(values)._asdict()
    gains = [s["gain"]["parties"]["two"]["auc"]["value"] for s in each]
    assert done.summary["gain"]["parties"]["two"]["auc"]["value"] == pytest.approx(np.mean(gains))
    assert len({s["judged_on"] for s in each}) == 3  # each seed draws its test rows, which the answer has to know
    assert done.summary["answer"]["judged_on"] == [s["judged_on"] for s in each]
    assert [p["name"] for p in done.summary["answer"]["parties"]] == ["one"]  # the same party in every seed
    before = (tmp_path / "run" / "seed-4" / "metrics.jsonl").read_bytes()
    assert resume(tmp_path / "run").summary == done.summary
    assert (tmp_path / "run" / "seed-4" / "metrics.jsonl").read_bytes() == before

    page = Page(tmp_path / "run" / "report.html")
    assert len(ids := ids_of(page)) == len({*ids})
    said = page.text()
    assert "3 times, with the seeds 4, 5, 6" in said
    assert "mean of 3 seeds" in said
    assert {"gain-parties", "run-seed4-gain-parties", "run-seed6-tree-3"} <= {*ids}
    assert not (tmp_path / "run" / "report-two.html").exists()
    assert (tmp_path / "run" / "seed-4" / "report-two.html").exists()


def test_a_dry_run_counts_every_seed(tmp_path: Path) -> None:
    tables = given(tmp_path, 0.5, **KEYS)
    one, three = dry_run(Experiment.of(**tables)), dry_run(Experiment.of(**tables, seeds=[1, 2, 3]))
    assert (one["seeds"], three["seeds"]) == (1, 3)
    assert three["bytes"] == 3 * one["bytes"]


def test_the_same_rows_have_one_fingerprint_whatever_is_trained(tmp_path: Path) -> None:
    tables = given(tmp_path, 0.5)
    keys = [{"depth": 1}, {"depth": 2}]
    runs = [
        run(
            Experiment.of(**{**tables, "algorithm": {**KEYS["algorithm"], **one}}),
            out=tmp_path / f"{k}",
            baselines=False,
        )
        for k, one in enumerate(keys)
    ]
    first, second = (one.summary["judged_on"] for one in runs)
    assert first == second
    found = {**tables, **KEYS, "evaluation": {"on": "validation"}}
    other = run(Experiment.of(**found), out=tmp_path / "other", baselines=False).summary
    assert other["test"]["judged_on"] == first != other["judged_on"]
    assert other["test"]["metric"]["value"] == other["test"]["accuracy"]
    page = Page(report([one.path for one in runs], tmp_path / "both.html")).text()
    assert "These runs were judged on different rows" not in page
    assert "algorithm.depth" in page


@pytest.mark.slow
def test_a_comparison_ranks_schemes_on_columns(tmp_path: Path) -> None:
    tables = given(tmp_path, 0.5, algorithm={"name": "secureboost", "trees": 4})
    found = compare(
        Experiment.of(**tables), {"algorithm.depth": [1, 3]}, seeds=3, out=tmp_path / "cmp", baselines=True, parallel=1
    )
    rows = {one["scheme"]: one for one in found.record["answer"]["rows"]}
    assert set(rows) == {"depth=1", "depth=3"}
    for label, one in rows.items():
        each = [RunFolder(tmp_path / "cmp" / label / f"seed-{seed}").summary() for seed in (1, 2, 3)]
        assert one["mean"] == pytest.approx(np.mean([s["final"]["accuracy"] for s in each]))
        assert one["centralised"] == pytest.approx(np.mean([s["gain"]["metric"]["values"]["joined"] for s in each]))
        assert one["local_only"] == pytest.approx(np.mean([s["answer"]["alone"] for s in each]))
    assert found.record["answer"]["take"] in rows
    (pair,) = found.record["answer"]["pairs"]
    assert ({pair["one"], pair["other"]}, pair["seeds"], pair["shared"]) == (set(rows), 3, False)
    said = " ".join(found.record["answer"]["sentences"])
    assert "local.lr" not in said  # there is no such rate here
    page = Page(tmp_path / "cmp" / "comparison.html")
    assert len(ids := ids_of(page)) == len({*ids})
    assert "2 schemes compared in 6 runs" in page.text()

    # Another word changes the answer of every run, and makes none again.
    rounds = {path: path.stat().st_mtime_ns for path in (tmp_path / "cmp").rglob("metrics.jsonl")}
    named = Experiment.of(**tables, words={"party": "bank"})
    again = compare(named, {"algorithm.depth": [1, 3]}, seeds=3, out=tmp_path / "cmp", baselines=True, parallel=1)
    assert again.record["answer"]["rows"] == found.record["answer"]["rows"]
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cmp").rglob("metrics.jsonl")} == rounds
    assert len(rounds) == 6
    answer = RunFolder(tmp_path / "cmp" / "depth=3" / "seed-2").summary()["answer"]
    assert answer["asked"]["party"] == "bank"


def test_rows_and_columns_are_not_compared(tmp_path: Path) -> None:
    columns = run(Experiment.of(**given(tmp_path, 0.5, **KEYS)), out=tmp_path / "columns", baselines=False).path
    rows = run(
        Experiment.of(data={"name": "digits", "limit": 100}, rounds=1, partition={"name": "iid", "clients": 2}),
        out=tmp_path / "rows",
        baselines=False,
    ).path
    with pytest.raises(
        ConfigError, match=r"^in 'columns' parties hold columns, in 'rows' clients hold rows: write a report"
    ):
        report([rows, columns], tmp_path / "both.html")


def study_of(folder: Path, **more: Any) -> Path:
    tables = given(folder, 0.5, **KEYS)
    base = {"parties": tables["parties"], "algorithm": tables["algorithm"]}
    factors = [
        {"name": "test", "role": "setting", "key": "data.test", "levels": [0.3, 0.5]},
        {"name": "depth", "role": "choice", "key": "algorithm.depth", "levels": [1, 3]},
    ]
    path = folder / "study.toml"
    path.write_text(tomli_w.dumps({"seeds": [1, 2, 3], "base": base, "factor": factors, **more}))
    return path


def test_a_study_makes_the_runs_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    study = Study.read(study_of(tmp_path, execute={"keep": "folder", "parallel": 1}))
    plan = study.dry_run()
    assert (plan["cells"], plan["runs"], plan["runs_by_kind"]["baseline"]) == (4, 12, 0)
    assert plan["refused"] == []
    study.run()
    found = study.analyse()
    assert found["runs"] == {"done": 12}
    (one,) = (each for each in found["settings"] if each["levels"] == {"test": "0.3"})
    quality = {each["choice"]: each["quality"] for each in one["choices"]}
    tables = given(tmp_path, 0.5, algorithm={"name": "secureboost", "trees": 3, "depth": 3})
    made = [
        run(
            Experiment.of(**{**tables, "data": {"test": 0.3}}, seed=seed), out=tmp_path / f"s{seed}", baselines=False
        ).summary
        for seed in (1, 2, 3)
    ]
    assert quality["3"] == pytest.approx(np.mean([s["final"]["accuracy"] for s in made]))
    said = " ".join(found["sentences"])
    assert "'fedatlas compare' also train the party with the label alone" in said
    assert "alone = true" not in said


def test_a_study_on_columns_has_no_baselines_of_rows(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^alone = true trains clients that hold rows; parties that hold columns"):
        Study.read(study_of(tmp_path, alone=True)).dry_run()

"""A scheme on columns is one record: registered, it is run, resumed, compared, looked at before, reported and predicted with."""

from __future__ import annotations

from contextlib import nullcontext
from html import unescape
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedatlas
from additive import ADDITIVE, Fits, additive
from fedatlas import api, catalogue
from fedatlas.config import parse
from fedatlas.deployment.refusals import deployable
from fedatlas.errors import ConfigError
from fedatlas.record.run_folder import RunFolder
from fedatlas.registry import Whole
from fedatlas.runs.alignment_text import expectations
from fedatlas.vertical import SCHEMES
from test_vertical_run import IDS, plain_rows, tables

pytestmark = pytest.mark.timing

ROUNDS = 6
ALL = {**{name: one for name, one in SCHEMES.items() if one.layout == "columns"}, "additive": ADDITIVE}
"""Every scheme on columns, and the one that nobody but these tests knows."""

MORE = {
    "federated_forest": {"features": 1.0, "depth": 3},
    "split": {"hidden": [16, 8], "learning_rate": 0.1, "batch_size": 4},
    "hybrid": {"hidden": [16, 8], "learning_rate": 0.1, "batch_size": 4},
}
"""Keys under which a few rounds learn enough."""


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEMES, "additive", ADDITIVE)  # type: ignore[arg-type]


def experiment(name: str, folder: Path, rounds: int = ROUNDS) -> fedatlas.Experiment:
    parties = [{"name": n, "path": str(folder / f"{n}.csv"), "id": IDS[n]} for n in ("bank", "shop")]
    parties[0]["label"] = "default"
    keys = {SCHEMES[name].rounds: rounds, **MORE.get(name, {})}
    return fedatlas.Experiment.of(parties=parties, algorithm={"name": name, **keys})


@pytest.mark.parametrize(("name", "task"), [(name, task) for name, one in ALL.items() for task in one.tasks])
def test_a_scheme_is_run_compared_reported_and_predicted_with(name: str, task: str, tmp_path: Path) -> None:
    held, scheme = tables(tmp_path, task=task), SCHEMES[name]
    done = api.run(experiment(name, tmp_path), out=tmp_path / "run")
    headline = "auc" if task == "classes" else "r2"
    rows = RunFolder(done.path).rows()
    assert len(rows) == ROUNDS + 1
    assert done.summary["algorithm"] == name
    assert done.summary["model"] == scheme.words.model
    assert done.summary["final"][headline] > (0.8 if task == "classes" else 0.5)
    assert done.summary["gain"] is not None
    sides = done.summary["gain"]["sides"]
    key = "auc" if task == "classes" else "rmse"
    assert sides["together"][key] == pytest.approx(sides["joined"][key], abs=0.05 if task == "classes" else 0.5)
    assert done.summary["importance"]["shop"]["spent"] > 0
    page = (done.path / "report.html").read_text()
    assert "What each party contributed" in page
    cells = [cell for row in scheme.words.learns(scheme.build(), False) for cell in row]
    for said in (scheme.words.clear, scheme.words.gain, f"of each {scheme.words.round}", *cells):
        assert said in unescape(page)
    assert (done.path / "report-shop.html").exists()
    found = fedatlas.predict(done.path, {name: tmp_path / f"{name}.csv" for name in ("bank", "shop")})
    label = held["bank"].set_index("customer")["default"]
    said = found.set_index("customer")["prediction"]
    if task == "classes":
        assert (said == label[said.index]).mean() > 0.75
    else:
        assert np.corrcoef(said, label[said.index])[0, 1] > 0.7
    assert isinstance(found, pd.DataFrame)


@pytest.mark.parametrize("name", ALL)
def test_it_is_resumed_looked_at_before_listed_and_refused_in_the_clear_between_nodes(
    name: str, tmp_path: Path
) -> None:
    tables(tmp_path)
    scheme = SCHEMES[name]
    whole = api.run(experiment(name, tmp_path), out=tmp_path / "whole", baselines=False)
    short = api.run(experiment(name, tmp_path, 2), out=tmp_path / "run", baselines=False)
    api.resume(short.path, [f"algorithm.{scheme.rounds}={ROUNDS}"], baselines=False)
    assert plain_rows(short.path) == plain_rows(whole.path)
    before = fedatlas.dry_run(experiment(name, tmp_path))
    assert before["bytes_per_tree"] > 0
    assert any(line.startswith(f"One {scheme.words.round}, in the clear,") for line in expectations(before))
    (row,) = [row for row in catalogue.rows("algorithms") if row["name"] == name]
    assert row["leaves_client"] == scheme.words.leaves
    how = scheme.build()
    assert not scheme.protected(how)
    assert bool(scheme.refusal(how)) != scheme.labels_known, (
        "either no real party runs it in the clear, or those that name it"
    )
    with pytest.raises(ConfigError) if scheme.refusal(how) else nullcontext() as refused:
        deployable(experiment(name, tmp_path).config, ("bank", "shop"))
    assert refused is None or str(refused.value) == scheme.refusal(how)


def test_the_report_of_a_scheme_says_nothing_of_trees_that_it_does_not_grow(tmp_path: Path) -> None:
    tables(tmp_path)
    done = api.run(experiment("additive", tmp_path, 2), out=tmp_path / "run", baselines=False)
    for page in ("report.html", "report-shop.html"):
        text = (done.path / page).read_text()
        for word in ("of each tree", "every tree", "splits on a column", "every node", "complete_secure", "paillier"):
            assert word not in text


def test_a_label_that_a_scheme_does_not_learn_is_refused_before_anything_is_sent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(SCHEMES, "additive", ADDITIVE._replace(tasks=("classes",)))  # type: ignore[arg-type]
    tables(tmp_path, task="numbers")
    for act in (lambda one: api.run(one, out=tmp_path / "run"), fedatlas.dry_run):
        with pytest.raises(ConfigError, match="learns a label of classes, and the label of 'bank' is of numbers"):
            act(experiment("additive", tmp_path))
    assert not (tmp_path / "run").exists()


def test_a_scheme_may_call_its_number_of_rounds_rounds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def build(*, rounds: Whole = 8) -> Fits:
        return additive(fits=rounds)

    monkeypatch.setitem(SCHEMES, "additive", ADDITIVE._replace(build=build, rounds="rounds"))  # type: ignore[arg-type]
    tables(tmp_path)
    path = api.run(experiment("additive", tmp_path, 2), out=tmp_path / "run", baselines=False).path
    for rounds, key in ((3, "rounds"), (4, "algorithm.rounds")):
        api.resume(path, [f"{key}={rounds}"], baselines=False)
        assert len(RunFolder(path).rows()) == rounds + 1


def test_a_mechanism_that_a_scheme_without_any_does_not_know_is_refused(tmp_path: Path) -> None:
    values = experiment("additive", tmp_path).config.plain() | {"privacy": [{"name": "paillier"}]}
    with pytest.raises(ConfigError, match="'additive' runs only in the clear: remove the table"):
        parse(values)

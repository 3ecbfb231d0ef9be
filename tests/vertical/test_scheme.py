"""A scheme on columns is one record: registered, it is run, resumed, compared, looked at before, reported and predicted with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedatlas
from additive import ADDITIVE
from fedatlas import api, catalogue
from fedatlas.deployment.refusals import deployable
from fedatlas.errors import ConfigError
from fedatlas.record.run_folder import RunFolder
from fedatlas.vertical import SCHEMES
from test_vertical_run import IDS, plain_rows, tables

ROUNDS = 6
ALL = ("additive", "secureboost")


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEMES, "additive", ADDITIVE)  # type: ignore[arg-type]


def experiment(name: str, folder: Path, rounds: int = ROUNDS) -> fedatlas.Experiment:
    parties = [{"name": n, "path": str(folder / f"{n}.csv"), "id": IDS[n]} for n in ("bank", "shop")]
    parties[0]["label"] = "default"
    return fedatlas.Experiment.of(parties=parties, algorithm={"name": name, SCHEMES[name].rounds: rounds})


def test_every_scheme_is_tried() -> None:
    assert set(ALL) == set(SCHEMES)


@pytest.mark.parametrize("task", ["classes", "numbers"])
@pytest.mark.parametrize("name", ALL)
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
    (row,) = [row for row in catalogue.rows("algorithms") if row["name"] == name]
    assert row["leaves_client"] == scheme.words.leaves
    how = scheme.build()
    assert not scheme.protected(how)
    with pytest.raises(ConfigError) as refused:
        deployable(experiment(name, tmp_path).config, ("bank", "shop"))
    assert str(refused.value) == scheme.refusal(how)

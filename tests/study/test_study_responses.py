"""A response is one record: what is registered in `RESPONSES` reaches the table, the analysis, the recommender and the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedatlas.recommender.requirements import requirements
from fedatlas.study.analyse import analyse
from fedatlas.study.front import fronts
from fedatlas.study.plan import PlannedRun
from fedatlas.study.read_measurements import measured
from fedatlas.study.responses import RESPONSES, Response, columns, responses
from fedatlas.study.study import Study
from fedatlas.study.table import Table
from study_tables import filled

HALF = Response(
    "half the accuracy",
    "share from 0 to 1",
    "accuracy divided by two",
    quality=True,
    more=True,
    scale="logit",
    row=lambda row: row["accuracy"] / 2,
    over="last",
    forecast="gap",
    effects=True,
    front=True,
)
FACTORS = [
    {"name": "skew", "role": "setting", "key": "partition.alpha", "levels": [0.3, 30.0]},
    {
        "name": "scheme",
        "role": "choice",
        "level": [
            {"name": "fedavg", "set": {"algorithm.name": "fedavg"}},
            {"name": "prox", "set": {"algorithm.name": "fedprox", "algorithm.mu": 0.1}},
        ],
    },
]
BASE = {"rounds": 3, "data": {"limit": 300}, "partition": {"name": "dirichlet", "clients": 4}}


def reached(run: PlannedRun) -> float:
    return 0.9 if run.kind == "baseline" else 0.7 + 0.1 * (dict(run.levels)["scheme"] == "prox") + 0.01 * run.seed


def test_a_registered_response_is_seen_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(RESPONSES, "half", HALF)
    given = Study.of("halves", base=BASE, factor=FACTORS, seeds=[1, 2, 3])
    table = Table.open(filled(given, tmp_path / "table.sqlite", reached))
    frame, curves = table.frame(), table.curves()
    assert (frame["half"] == frame["accuracy"] / 2).all()
    assert (curves["half"] == curves["accuracy"] / 2).all()
    table.export(tmp_path / "runs.csv")
    assert "half" in (tmp_path / "runs.csv").read_text().splitlines()[0].split(",")
    study = measured(table)
    np.testing.assert_allclose(study.by_cell("half", 2), study.by_cell("accuracy", 2) / 2)
    assert all("half" in one.values for choices in fronts(study).values() for one in choices)
    found = analyse(table, "halves", tmp_path)
    assert found["effects"]["half"]["mean"] == pytest.approx(found["effects"]["accuracy"]["mean"] / 2)
    assert found["settings"][0]["choices"][0]["half"] == pytest.approx(
        found["settings"][0]["choices"][0]["quality"] / 2
    )
    page = (tmp_path / "analysis.html").read_text()
    assert "Half the accuracy: mean 0.38" in page
    assert ">Half the accuracy</th>" in page
    assert requirements({"federation": {"experiment": "x.toml"}, "at_least": {"half": 0.3}}).at_least == {"half": 0.3}


def test_a_factor_may_not_have_the_name_of_a_response(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(RESPONSES, "half", HALF)
    from test_study import SCHEME, refused

    factor = {"name": "half", "role": "setting", "key": "partition.clients", "levels": [2, 4]}
    assert "a column of the table has this name" in refused(factor=[factor, SCHEME])


def test_sums_are_unknown_where_one_row_must_not_tell():
    rows: list[dict[str, Any]] = [
        {"round": r, "loss": 1.0, "accuracy": 0.5, "seconds": 1.0, "bytes_up": 10, "bytes_down": None, "flops": 1}
        for r in range(3)
    ]
    found = responses(rows, {})
    assert (found["bytes_up"], found["bytes_down"], found["seconds"], found["epsilon"]) == (30, None, 3.0, "infinite")
    assert "rmse" not in found
    assert responses([{**row, "loss": None} for row in rows], {}) == {}


def test_each_column_is_told_on_the_page():
    page = (Path(__file__).parents[2] / "docs" / "study.md").read_text(encoding="utf-8")
    told = set(page.partition("## The table")[2].partition("\n## ")[0].replace("`", " ").split())
    assert not {column for column, one in columns().items() if one.listed} - told

"""Folders of the first reading rules (rules_1/make.py) are continued and predict by these rules; new ones keep their number."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import fedatlas
from fedatlas import Experiment, resume, run
from fedatlas.data.cells import NEWEST
from fedatlas.data.images import DIGITS
from fedatlas.errors import DataError

OLD = Path(__file__).parent / "rules_1"
KINDS = ("table", "columns", "pictures")
NEW: dict[str, Any] = {
    "table": "table.csv",
    "columns": {"bank": "bank.csv", "shop": "shop_new.csv"},
    "pictures": "photos",
}
RECORDS = {"table": "preprocess.json", "columns": "partition.json", "pictures": "preprocess.json"}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(OLD, tmp_path / "old")
    monkeypatch.chdir(tmp_path / "old")
    return tmp_path / "old"


def record(path: Path, kind: str) -> Any:
    return json.loads((path / RECORDS[kind]).read_text()).get("reading", {"rules": 1})["rules"]


@pytest.mark.parametrize("kind", KINDS)
def test_an_old_folder_predicts_as_it_did(kind: str, here: Path) -> None:
    found = fedatlas.predict(here / kind, NEW[kind])
    expected = pd.DataFrame(json.loads((here / "predictions.json").read_text())[kind])
    pd.testing.assert_frame_equal(found, expected, check_dtype=False, rtol=1e-4)
    assert record(here / kind, kind) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_an_old_folder_is_continued_with_the_rows_that_it_read(kind: str, here: Path) -> None:
    before = (here / kind / RECORDS[kind]).read_bytes()
    done = resume(here / kind, ["rounds=2"], baselines=False)
    assert done.summary["rounds"] == 2
    assert (here / kind / RECORDS[kind]).read_bytes() == before
    if kind == "table":
        assert done.summary["class_names"] == ["1", "2"]
    if kind == "columns":
        assert '"missing": "right"' not in (here / kind / "model-shop.json").read_text()
        assert "reading" not in json.loads((here / kind / "model-shop.json").read_text())
    fedatlas.report(here / kind)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_run_of_today_reads_by_its_own_rules(kind: str, here: Path) -> None:
    """So that the folders tell the rules apart: classes, categories, holes and pictures differ."""
    experiment = Experiment.read(here / kind / "config.toml")
    if kind == "table":
        with pytest.raises(DataError, match="column 'a' must hold numbers: found '0_2' in 4 rows, first in line 2"):
            fedatlas.predict(run(tables_of(here), out=here / "numbers", baselines=False).path, "table.csv")
    done = run(experiment, out=here / "new", baselines=False)
    assert record(here / "new", kind) == NEWEST
    if kind == "table":
        assert done.summary["class_names"] == ["01", "1", "2"]
    if kind == "columns":
        assert [one["missing"] for one in json.loads((here / "new" / "party-shop.json").read_text())["nodes"]] != [
            "left"
        ]
    if kind == "pictures":
        assert done.summary["data_facts"]["turned"] == 2
        assert done.summary["data_facts"]["pictures"] == 16


def tables_of(here: Path) -> Experiment:
    """The table's experiment on rows without ``1_24``."""
    text = (here / "table.csv").read_text().replace("_2", "")
    (here / "plain.csv").write_text(text)
    given = Experiment.read(here / "table" / "config.toml").config.plain()
    return Experiment.of(**{**given, "data": {**given["data"], "path": "plain.csv"}})


def test_a_run_without_cells_keeps_its_number_too(tmp_path: Path) -> None:
    done = run(Experiment.of(rounds=1, data={"limit": 60}), out=tmp_path / "run", baselines=False)
    assert record(done.path, "pictures") == NEWEST
    assert done.summary["class_names"] == [*DIGITS]

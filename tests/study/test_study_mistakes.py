"""Mistakes in a study file: each gets one sentence and exit code 2, and never rows of a table."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from fedatlas.cli import main
from fedatlas.errors import ConfigError
from fedatlas.study.design import StudyFile, read_study_file
from fedatlas.study.plan import plan_of

GOOD: dict[str, Any] = {
    "name": "s", "seeds": [1, 2], "alone": False,
    "base": {"rounds": 2, "data": {"name": "digits", "limit": 100}, "partition": {"name": "iid", "clients": 3}},
    "factor": [
        {"name": "nodes", "role": "setting", "key": "partition.clients", "levels": [2, 3], "scale": "log", "optional": False},
        {"name": "scheme", "role": "choice", "level": [
            {"name": "fedavg", "set": {"algorithm.name": "fedavg"}, "optional": False},
            {"name": "fedprox", "set": {"algorithm.name": "fedprox", "algorithm.mu": 0.1}},
        ]},
    ],
    "exclude": [{"nodes": 2, "scheme": "fedprox"}],
    "design": {"name": "random", "settings": 2, "evenly": ["nodes"], "holdout": 0.0, "seed": 1},
    "tuning": {"keys": {"local.lr": [0.05, 0.1]}, "validation": 0.1, "seed": 99},
    "execute": {"parallel": 1, "hours": 1.0, "seconds": 60.0, "memory": "1GiB", "retries": 1, "keep": "rows"},
}  # fmt: skip
WRONG: dict[str, Any] = {
    "text": "text?", "negative": -4, "nan": float("nan"), "table": {"a": 1}, "list": [[1]],
    "huge": 10**400, "true": True, "fraction": 0.5,
}  # fmt: skip
PLACES: list[tuple[str | int, ...]] = [
    *((key,) for key in GOOD), ("base", "rounds"), ("base", "data"), ("base", "data", "name"), ("base", "data", "limit"),
    ("base", "partition"), ("base", "partition", "name"), ("base", "partition", "clients"), ("base", "unknown"),
    *(("factor", 0, key) for key in (*GOOD["factor"][0], "unknown")), ("factor", 0, "levels", 0),
    *(("factor", 1, "level", 0, key) for key in (*GOOD["factor"][1]["level"][0], "unknown")),
    ("factor", 1, "level", 1, "set", "algorithm.mu"), ("factor", 1, "level", 1, "set", "algorithm.name"), ("factor", 1, "level"),
    ("exclude", 0, "nodes"), ("exclude", 0, "scheme"), ("exclude", 0, "unknown"),
    *(("design", key) for key in (*GOOD["design"], "cells", "unknown")),
    *(("tuning", key) for key in (*GOOD["tuning"], "unknown")), ("tuning", "keys", "local.lr"), ("tuning", "keys", "local.lr", 0),
    ("tuning", "keys", "unknown"), *(("execute", key) for key in (*GOOD["execute"], "unknown")), ("unknown",),
]  # fmt: skip
FINE = {
    ("name", "text"), ("alone", "true"), ("factor", 0, "name", "text"), ("factor", 0, "optional", "true"),
    ("factor", 1, "level", 0, "name", "text"), ("factor", 1, "level", 0, "optional", "true"), ("design", "holdout", "fraction"),
    ("tuning", "validation", "fraction"), ("execute", "hours", "fraction"), ("execute", "seconds", "fraction"),
    ("factor", 1, "level", 1, "set", "algorithm.mu", "fraction"), ("tuning", "keys", "local.lr", 0, "fraction"),
}  # fmt: skip


def changed(place: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    """The good study with another value at a place."""
    tables = copy.deepcopy(GOOD)
    at: Any = tables
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = value
    if place == ("factor", 0, "name"):
        tables["exclude"], tables["design"]["evenly"] = [], []
    if place == ("factor", 0, "levels"):
        tables["exclude"] = []
    return tables


def written(tmp_path: Path, tables: dict[str, Any]) -> StudyFile:
    file = tmp_path / "STUDY.toml"
    file.write_text(tomli_w.dumps(tables))
    return read_study_file(file)


def test_the_good_study_is_one(tmp_path: Path):
    assert len(plan_of(written(tmp_path, GOOD)).cells) == 3


@pytest.mark.parametrize("place", PLACES, ids=lambda place: ".".join(map(str, place)))
def test_every_wrong_value_of_every_key_is_refused_in_one_sentence(place: tuple[str | int, ...], tmp_path: Path):
    for kind, value in WRONG.items():
        tables = changed(place, value)
        try:
            plan = plan_of(written(tmp_path, tables))
        except ConfigError as error:
            said = str(error)
            assert "\n" not in said
            assert said.endswith((".", "?")), said
            assert len(said) < 400, said
        else:
            if place == ("base", "partition", "clients"):  # a factor sets it
                continue
            assert (*place, kind) in FINE, f"{place} = {kind} was taken"
            assert not any(run.refused for one in plan.cells for run in one.runs)


@pytest.mark.parametrize(
    ("place", "value", "sentence"),
    [
        (("base", "rounds"), -4, "rounds = -4: expected a number of 0 or more."),
        (("factor", 0, "levels"), [-4, 3], "partition.clients = -4: expected a number of 0 or more."),
        (("factor", 1, "level", 1, "set", "algorithm.mu"), -1, "algorithm.mu = -1: expected a number of 0 or more."),
        (("tuning", "keys", "local.lr"), [-0.1, 0.1], "local.lr = -0.1: expected a number above 0."),
    ],
)
def test_a_mistake_is_not_a_row_of_the_table(
    place: tuple[str | int, ...], value: Any, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):  # fmt: skip
    file, out = tmp_path / "STUDY.toml", tmp_path / "out"
    file.write_text(tomli_w.dumps(changed(place, value)))
    for words in (["--dry-run"], []):
        monkeypatch.setattr(sys, "argv", ["fedatlas", "study", str(file), "--out", str(out), *words])
        monkeypatch.setattr("signal.signal", lambda *_: None)
        with pytest.raises(SystemExit) as caught:
            main()
        assert caught.value.code == 2
        assert capsys.readouterr().err == f"fedatlas: {sentence}\n"
    assert not out.exists()


def test_a_combination_that_does_not_go_together_stays_an_outcome(tmp_path: Path):
    tables = copy.deepcopy(GOOD)
    tables["factor"][1]["level"].append({"name": "masked", "set": {"privacy": [{"name": "secagg"}]}})
    refused = [run for one in plan_of(written(tmp_path, tables)).cells for run in one.runs if run.refused]
    assert {dict(run.levels)["nodes"] for run in refused} == {"2"}

"""Races that are refused or not asked for, and what a choice costs by its first rounds."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import fedatlas
from fedatlas.errors import ConfigError
from fedatlas.race.course import AskedRun
from fedatlas.race.runs import ArmFile, RaceRuns
from fedatlas.study.table import Table
from test_race import LEVELS, MINE, asked, study_of_choices


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a study in which both choices are alike, and noise costs."""
    return study_of_choices(tmp_path_factory.mktemp("known"), LEVELS)


def test_a_choice_is_timed_by_its_second_round(tmp_path: Path):
    one = ArmFile({**MINE, "algorithm": {"name": "fedavg"}}, {}, [{"local.lr": 0.1}])
    wrong = ArmFile(
        {**MINE, "algorithm": {"name": "fedavg"}, "local": {"lr": 0.1, "batch_size": 0, "clip": 1.0}}, {}, [{}]
    )
    runs = RaceRuns({"one": one, "wrong": wrong}, 1, tmp_path, lambda _: None)
    costs = runs.timed()
    rows = Table.open(tmp_path / "table.sqlite")
    key = runs.planned(AskedRun("one", 0, 1, 2)).keys.run_key
    assert costs["one"].round == rows.rows(key)[2]["seconds"]
    assert costs["one"].start > 0
    assert {*costs} == {"one", "wrong"}


def test_without_minutes_the_study_answers_and_says_so(known: Path, tmp_path: Path):
    answer = fedatlas.recommend(asked(known, tmp_path, work=None, minutes=0), out=tmp_path / "out")
    assert "race" not in answer
    assert not (tmp_path / "out" / "race").exists()


def test_a_baseline_that_was_trained_for_the_answer_is_said_to_have_an_error(known: Path, tmp_path: Path):
    taken = "the intervals take it as exact, and are too narrow by its error."

    def told(folder: Path, **federation: float) -> int:
        file = asked(known, folder, study="small", work=None, minutes=0, federation=federation)
        answer = fedatlas.recommend(file, out=folder / "out")
        assert answer["quality"] == "prior"
        return sum(note.endswith(taken) for note in answer["notes"])

    assert told(tmp_path / "trained") == 1
    assert told(tmp_path / "given", centralised=0.9) == 0


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"work": 0}, "work is 0: give a whole number of rounds of runs"),
        ({"work": 10, "minutes": 1}, "work replaces minutes"),
        ({"work": None, "minutes": -1}, "minutes is -1: give 0 for no race"),
        ({"federation": {"rows_of": "mine"}}, "unknown value of federation.rows_of 'mine'"),
        (
            {"work": None, "minutes": 0, "at_most": {"memory": 500.0}},
            "only runs tell the memory that an experiment takes",
        ),
    ],
)
def test_a_wrong_race_is_refused(known: Path, tmp_path: Path, more: dict[str, Any], sentence: str):
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        fedatlas.recommend(asked(known, tmp_path, **more), out=tmp_path / "out")


def test_where_no_client_has_rows_to_judge_on_a_race_is_refused_before_anything_runs(known: Path, tmp_path: Path):
    small = asked(known, tmp_path, {"partition": {"name": "iid", "clients": 30}})  # 8 rows each
    said = list[str]()
    with pytest.raises(ConfigError, match="no client has 10 training rows"):
        fedatlas.recommend(small, out=tmp_path / "out", say=said.append)
    assert not said


def test_minutes_without_an_experiment_are_refused(known: Path):
    facts = {"nodes": 5, "rows": 450, "heterogeneity": 0.4}
    with pytest.raises(ConfigError, match=r"minutes is about a race on your rows: name an experiment"):
        fedatlas.recommend({"study": str(known), "minutes": 5, "federation": facts})

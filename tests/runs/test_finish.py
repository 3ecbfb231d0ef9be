"""The end of a run: its summary is whole when its rounds are over, and once more when gain and attacks are there."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from fedatlas import Experiment, resume, run
from fedatlas.course.progress import Silent
from fedatlas.leakage.attacker_process import carry_out
from fedatlas.runs import ensure
from test_vertical_run import experiment, tables

MEMBERS: dict[str, Any] = {
    "rounds": 2,
    "data": {"name": "digits", "limit": 300},
    "partition": {"name": "iid", "clients": 3},
    "model": {"hidden": [8]},
    "evaluation": {"clients": 0.4},
    "attack": [{"name": "membership"}],
    "engine": {"workers": 1},
}


@pytest.fixture(autouse=True)
def _attacks_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting a process takes seconds; tests/leakage attacks in one."""
    monkeypatch.setattr("fedatlas.leakage.attacker_folder.work_apart", carry_out)


class Killed(BaseException):
    """The process ends here."""


class Watching(Silent):
    """Notes the rounds that are done, of no baseline."""

    def __init__(self) -> None:
        self.rounds: list[int] = []

    def row(self, row: Mapping[str, Any]) -> None:
        self.rounds.append(row["round"])

    def beside(self, name: str) -> AbstractContextManager[Silent]:  # noqa: ARG002
        return nullcontext(Silent())


def rows(folder: Path) -> Experiment:
    return Experiment.of(**MEMBERS)


def columns(folder: Path) -> Experiment:
    tables(folder)
    return experiment(folder)


def values(path: Path) -> dict[str, Any]:
    """A summary without what a clock, the machine, and the steps that were derived decide."""
    found = json.loads((path / "summary.json").read_text())
    return {key: x for key, x in found.items() if key not in {"cost", "cpu", "plan", "system"}}


@pytest.mark.parametrize("made", [rows, columns])
def test_a_run_that_is_killed_between_its_two_summaries_is_finished_without_training(
    made: Callable[[Path], Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any) -> None:
        raise Killed

    given = made(tmp_path)
    whole = run(given, out=tmp_path / "whole", baselines=True).path
    path = tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr(ensure, "finish", killed)
        with pytest.raises(Killed):
            run(given, out=path, baselines=True)
    first = values(path)
    assert first == {key: x for key, x in values(whole).items() if key not in {"gain", "answer", "labels_told"}}, (
        "whole when the rounds are over"
    )
    assert not (path / "report.html").exists()
    watching = Watching()
    done = resume(path, progress=watching)
    assert watching.rounds == []
    assert values(path) == values(whole)
    assert done.summary["gain"] is not None
    assert (path / "report.html").exists()
    if made is rows:
        assert (path / "attacks" / "membership" / "attack.json").exists()
        assert "What a party could have learnt" in (path / "report.html").read_text()


def test_attacks_on_views_of_several_seeds_have_their_section_in_every_page(tmp_path: Path) -> None:
    path = run(Experiment.of(**MEMBERS, seeds=[1, 2]), out=tmp_path / "run", baselines=False).path
    for folder in (path, path / "seed-1", path / "seed-2"):
        assert "What a party could have learnt" in (folder / "report.html").read_text(), folder
    for folder in (path / "seed-1", path / "seed-2"):
        assert (folder / "attacks" / "membership" / "attack.json").exists()

"""Published experiments: what is finished is not run again, in the run folder or in the committed record; gates are judged as stated."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedatlas.errors import ConfigError
from fedatlas.experiment.config import parse
from fedatlas.experiment.reproduce import study as room
from fedatlas.experiment.reproduce.gates import Gate, Outcomes, Part, Study, Verdict


def small(rounds: int, floor: float) -> Study:
    def check(parts: Outcomes) -> Verdict:
        best = parts["one"].mean(lambda seed: parts["one"].at(seed, "accuracy", -1))
        return Verdict(f"{best:.2f}", best >= floor)

    tables = {"rounds": rounds, "partition": {"clients": 12}}
    gate = Gate("floor", "some", f"at least {floor}", ("one",), check)
    return Study("small", "A small study", "nobody", (Part("one", tables, (1, 2)),), (gate,))


@pytest.fixture
def studies(monkeypatch: pytest.MonkeyPatch) -> dict[str, Study]:
    made = {"small": small(1, 0.05)}
    monkeypatch.setattr(room, "EXPERIMENTS", {"small": lambda quick, rounds: made["small"]})
    return made


def seconds(folder: Path) -> list[float]:
    return [run["seconds"] for run in json.loads((folder / "small.json").read_text())["runs"]]


def test_what_is_published_is_not_run_again(
    studies: dict[str, Study], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second machine, with other run folders, takes the finished seeds from the committed record."""
    docs = tmp_path / "docs"
    assert room.reproduce("small", out=tmp_path / "a", publish=docs)
    first = seconds(docs / "results")
    assert room.reproduce("small", out=tmp_path / "b", publish=docs)
    assert seconds(docs / "results") == first
    assert len(first) == 2
    assert not (tmp_path / "b" / "small" / "one").exists()
    assert "seed 1" not in capsys.readouterr().err.split("seed 2")[-1]


def test_another_configuration_is_run_anew(studies: dict[str, Study], tmp_path: Path) -> None:
    """A record of other settings counts for nothing, and a gate that is missed is said to be."""
    docs = tmp_path / "docs"
    assert room.reproduce("small", out=tmp_path / "a", publish=docs)
    studies["small"] = small(2, 0.999)
    assert not room.reproduce("small", out=tmp_path / "b", publish=docs)
    record = json.loads((docs / "results" / "small.json").read_text())
    assert [len(run["rows"]) for run in record["runs"]] == [3, 3]
    assert [gate["passed"] for gate in record["gates"]] == [False]
    assert "| FAIL |" in (docs / "results.md").read_text()


def test_unknown_names_are_refused(studies: dict[str, Study], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="small"):
        room.reproduce("smal", out=tmp_path)
    with pytest.raises(ConfigError, match="one"):
        room.reproduce("small", only=["on"], out=tmp_path)


def test_every_study_is_made_of_experiments_that_parse() -> None:
    """Configurations as published, quick, and shortened; every gate asks for parts that exist."""
    for make in room.EXPERIMENTS.values():
        for study in (make(False, None), make(True, None), make(False, 7)):
            names = {part.name for part in study.parts}
            assert all(set(gate.parts) <= names for gate in study.gates)
            assert all(parse({**part.tables, "seed": 1}).rounds == part.tables["rounds"] for part in study.parts)
        assert {part.tables["rounds"] for part in study.parts} == {7}


def test_a_shortened_study_passes_no_gate(
    studies: dict[str, Study], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert room.reproduce("small", rounds=1, out=tmp_path)
    assert "smaller version" in capsys.readouterr().out
    record = json.loads((tmp_path / "small-1-rounds.json").read_text())
    assert [gate["passed"] for gate in record["gates"]] == [None]

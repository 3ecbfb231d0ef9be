"""A run that has to be there: what is done of it is not done again, another one in its place is never taken for it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from configured import ensure, finished, holds
from fedatlas import Experiment, resume, run
from fedatlas.config import ExperimentConfig, parse
from fedatlas.course.progress import Silent
from fedatlas.errors import CheckpointError, ConfigError, DivergedError
from fedatlas.runs import ensure as room
from fedatlas.setup.checked import Checked
from fedatlas.setup.resolution import resolve


def small(**tables: Any) -> ExperimentConfig:
    return parse({"rounds": 2, "data": {"limit": 300}, "partition": {"name": "iid", "clients": 3}, **tables})


class Watching(Silent):
    """Notes the rounds that are done."""

    def __init__(self) -> None:
        self.rounds: list[int] = []

    def row(self, row: Mapping[str, Any]) -> None:
        self.rounds.append(row["round"])


class Stop(Exception):
    """Somebody pulls the plug."""


class Stopping(Watching):
    """Ends the process after a round."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after = after

    def row(self, row: Mapping[str, Any]) -> None:
        super().row(row)
        if row["round"] == self.after:
            raise Stop


def done(config: ExperimentConfig, folder: Path, **how: Any) -> list[int]:
    """The rounds that `ensure` had to do."""
    watching = Watching()
    assert ensure(config, folder, progress=watching, **how).summary["rounds"] == config.rounds
    return watching.rounds


def figures(folder: Path) -> list[Any]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [[json.loads(line)[key] for key in ("round", "accuracy", "loss", "bytes_up")] for line in lines]


def test_what_is_there_is_not_run_again(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "run"
    assert finished(small(), folder) is None
    assert done(small(), folder, report=False) == [0, 1, 2]
    assert not (folder / "report.html").exists()
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert done(small(), folder, report=False) == []
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    assert done(small(), folder) == []
    assert (folder / "report.html").exists()
    assert done(small(checkpoint={"every": 2}), folder) == []  # how often it is saved changes no result
    assert done(small(rounds=4), folder) == [3, 4]


@pytest.mark.parametrize("after", [0, 1])
def test_what_was_stopped_goes_on(after: int, tmp_path: Path) -> None:
    whole, folder = ensure(small(), tmp_path / "whole", report=False), tmp_path / "run"
    with pytest.raises(Stop):
        ensure(small(), folder, progress=Stopping(after))
    assert finished(small(), folder) is None
    assert done(small(), folder) == list(range(after + 1, 3))
    assert (folder / "model.safetensors").read_bytes() == (whole.path / "model.safetensors").read_bytes()
    assert figures(folder) == figures(whole.path)


def test_what_was_stopped_before_it_was_saved_begins_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its configuration stands in the folder, and nothing to go on from."""

    def unplugged(*_: Any) -> None:
        raise Stop

    with monkeypatch.context() as patched:
        patched.setattr("fedatlas.course.rounds.write_beginning", unplugged)
        with pytest.raises(Stop):
            ensure(small(), tmp_path / "run", module=nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    assert (tmp_path / "run" / "config.toml").exists()
    own = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    assert ensure(small(), tmp_path / "run", module=own, report=False).summary["rounds"] == 2


@pytest.mark.parametrize(
    "other", [{"seed": 2}, {"local": {"lr": 0.01}}, {"algorithm": {"name": "fedprox"}}, {"data": {"limit": 200}}]
)
def test_another_configuration_is_refused(other: dict[str, Any], tmp_path: Path) -> None:
    ensure(small(), tmp_path / "run", report=False)
    with pytest.raises(ConfigError, match="run' holds a run of another configuration: remove it, or name another"):
        ensure(small(**other), tmp_path / "run")
    assert not holds(tmp_path / "run", small(**other))
    with pytest.raises(ConfigError, match="has done 2 rounds, more than the 1 asked for"):
        ensure(small(rounds=1), tmp_path / "run")


def test_a_default_that_is_written_is_no_other_configuration(tmp_path: Path) -> None:
    """config.toml names every key, also those that the algorithm sets."""
    config = small(algorithm={"name": "scaffold"})
    ensure(config, tmp_path / "run", report=False)
    written = small(algorithm={"name": "scaffold", "option": "II"}, model={"name": "mlp", "hidden": [64]})
    for same in (config, written, resolve(config).config):
        assert done(same, tmp_path / "run") == []


def test_a_run_that_diverged_is_not_whole(tmp_path: Path) -> None:
    config = small(algorithm={"name": "fedavgm", "server_lr": 1e38})
    for _ in range(2):
        with pytest.raises(DivergedError):
            ensure(config, tmp_path / "run")
        assert "This run diverged" in (tmp_path / "run" / "report.html").read_text()
        assert finished(config, tmp_path / "run") is None


def test_a_damaged_summary_is_written_anew(tmp_path: Path) -> None:
    path = ensure(small(), tmp_path / "run", report=False).path
    before = json.loads((path / "summary.json").read_text())
    (path / "summary.json").write_text("{")
    assert done(small(), path) == []
    assert json.loads((path / "summary.json").read_text())["final"] == before["final"]
    (path / "metrics.jsonl").write_text("")
    (path / "summary.json").unlink()
    with pytest.raises(CheckpointError, match="altered or cut short"):
        ensure(small(), path)


def test_seeds_and_baselines_that_are_there_are_not_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three seeds the last was stopped: the others, and their baselines, stay as they are."""
    tables = small(seeds=[1, 2, 3]).plain()
    whole = run(Experiment.of(**tables), out=tmp_path / "whole", baselines=True)
    path = Path(shutil.copytree(whole.path, tmp_path / "run"))
    (path / "summary.json").unlink()
    (path / "seed-3" / "summary.json").unlink()
    (path / "seed-2" / "baselines" / "centralised" / "summary.json").unlink()
    begun: list[str] = []
    run_one = room.run_one

    def noted(whole: Checked, folder: Path, *how: Any) -> Any:
        begun.append(str(folder.relative_to(path)))
        return run_one(whole, folder, *how)

    monkeypatch.setattr(room, "run_one", noted)
    again = resume(path)
    assert begun == ["seed-2/baselines/centralised", "seed-3"]
    assert again.summary["final"] == whole.summary["final"]
    assert again.summary["over_seeds"]["final"] == whole.summary["over_seeds"]["final"]
    begun.clear()
    resume(path, ["rounds=3"])
    every = [f"seed-{k}{part}" for k in (1, 2, 3) for part in ("", "/baselines/local_only", "/baselines/centralised")]
    assert begun == every


def test_one_network_is_not_taken_for_another(tmp_path: Path) -> None:
    own = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    config = small().model_copy(update={"model": small().model.given(own)})
    ensure(config, tmp_path / "run", module=own, report=False)
    assert done(config, tmp_path / "run", module=own) == []
    with pytest.raises(ConfigError, match="another configuration"):
        ensure(small(), tmp_path / "run", module=own)
    with pytest.raises(ConfigError, match="given in Python"):
        ensure(config, tmp_path / "run")

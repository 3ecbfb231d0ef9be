"""``[tracking]``: the real tools hear a run round by round, and go on with it; what fails ends no run; no client is told of."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from fedatlas import ConfigError, Experiment, dry_run, resume, run
from fedatlas.config import parse
from fedatlas.config.tracking import NEEDS, TrackingConfig
from fedatlas.course.progress import Silent
from fedatlas.deployment.refusals import deployable
from fedatlas.tracking import by_wandb, follower
from fedatlas.tracking.tracker import Beginning, Tracker
from wandb_files import wandb_run

SMALL: dict[str, Any] = {
    "rounds": 2,
    "data": {"name": "digits", "limit": 200},
    "partition": {"name": "iid", "clients": 3},
    "model": {"hidden": [4]},
    "engine": {"workers": 1, "plan": "tuned"},
}


class Hearing(Silent):
    """Keeps the notices."""

    def __init__(self) -> None:
        self.notices: list[str] = []

    def said(self, notice: str) -> None:
        self.notices.append(notice)

    def of_tracking(self) -> list[str]:
        return [one for one in self.notices if one.startswith("[tracking]")]


class Fake:
    """A tool that keeps what it is told, and breaks when it is asked to."""

    def __init__(self, breaks: str = "", at: int = 0) -> None:
        self.breaks, self.at = breaks, at
        self.begun: list[Beginning] = []
        self.settings: dict[str, str] = {}
        self.heard: dict[str, list[tuple[int, Mapping[str, float]]]] = {}
        self.files: dict[str, bytes] = {}
        self.ended: list[str] = []

    def begin(self, asked: Beginning) -> Any:
        if self.breaks == "begin":
            raise ConnectionError("the server is gone")
        self.begun.append(asked)
        return Told(self, asked.before or f"run-{len(self.begun)}")


class Told:
    def __init__(self, fake: Fake, id: str) -> None:
        self.fake, self.id = fake, id
        fake.heard.setdefault(id, [])

    def parameters(self, values: Mapping[str, str]) -> None:
        self.fake.settings.update(values)

    def figures(self, step: int, values: Mapping[str, float]) -> None:
        if self.fake.breaks == "figures" and step >= self.fake.at:
            raise OSError(28, "No space left on device")
        self.fake.heard[self.id].append((step, values))

    def artefact(self, file: Path) -> None:
        self.fake.files[file.name] = file.read_bytes()

    def end(self, how: str) -> None:
        self.fake.ended.append(how)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    return with_fake(monkeypatch, Fake())


def with_fake(monkeypatch: pytest.MonkeyPatch, made: Fake) -> Fake:
    monkeypatch.setattr(follower, "tracker", lambda name: Tracker(name, made.begin))
    monkeypatch.setattr("fedatlas.config.tracking.find_spec", lambda package: True)
    return made


def small(name: str, **more: Any) -> Experiment:
    tracking = {"name": name, **more.pop("tracking", {})}
    return Experiment.of(**{**SMALL, **more, "tracking": tracking})


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


# --- The real tools


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("mlflow", reason="the extra 'tracking' is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    for name in ("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "MLFLOW_HTTP_REQUEST_TIMEOUT", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    from mlflow import MlflowClient

    return MlflowClient


@pytest.mark.filterwarnings("ignore")  # those of the tools
def test_mlflow_hears_each_round_and_goes_on_with_the_same_run(mlflow: Any, tmp_path: Path):
    store = str(tmp_path / "store")
    done = run(small("mlflow", tracking={"to": store}), out=tmp_path / "run", baselines=False)
    client = mlflow(tracking_uri=store)
    (experiment,) = (one for one in client.search_experiments() if one.name == "fedatlas")
    (found,) = client.search_runs([experiment.experiment_id])
    kept = {one.step: one.value for one in client.get_metric_history(found.info.run_id, "accuracy")}
    assert kept == {row["round"]: row["accuracy"] for row in rows(done.path)}
    assert found.data.params["partition.clients"] == "3"
    assert found.data.metrics["final.accuracy"] == done.summary["final"]["accuracy"]
    assert {one.path for one in client.list_artifacts(found.info.run_id)} == {"summary.json", "report.html"}
    assert found.info.status == "FINISHED"
    resume(done.path, ["rounds=4"], baselines=False)
    (found,) = client.search_runs([experiment.experiment_id])
    history = client.get_metric_history(found.info.run_id, "accuracy")
    assert [(one.step, one.value) for one in history] == [(row["round"], row["accuracy"]) for row in rows(done.path)]


@pytest.mark.filterwarnings("ignore")
def test_seeds_are_child_runs_at_mlflow(mlflow: Any, tmp_path: Path):
    store = str(tmp_path / "store")
    run(small("mlflow", seeds=[1, 2], tracking={"to": store, "project": "two"}), out=tmp_path / "run", baselines=False)
    client = mlflow(tracking_uri=store)
    found = client.search_runs([client.get_experiment_by_name("two").experiment_id])
    parents = {one.info.run_id: one.data.tags.get("mlflow.parentRunId") for one in found}
    (top,) = (one for one, parent in parents.items() if parent is None)
    assert sorted(parents.values(), key=str) == sorted([None, top, top], key=str)


@pytest.mark.filterwarnings("ignore")
def test_a_server_that_is_gone_costs_a_notice(mlflow: Any, tmp_path: Path):
    heard = Hearing()
    asked = small("mlflow", seeds=[1, 2], tracking={"to": "http://127.0.0.1:9"})
    done = run(asked, out=tmp_path / "run", baselines=False, progress=heard)
    assert done.summary["final"]["accuracy"] > 0
    (said,) = heard.of_tracking()
    assert "mlflow is told no more" in said
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "1"
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "10"


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_hears_each_round_and_a_resumed_run_is_one_curve(tmp_path: Path):
    reader = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="the extra 'tracking' is not installed"
    )
    done = run(small("tensorboard"), out=tmp_path / "run", baselines=False)
    resume(done.path, ["rounds=4"], baselines=False)
    events = reader.EventAccumulator(str(done.path / "tensorboard"))
    events.Reload()
    curve = {one.step: one.value for one in events.Scalars("accuracy")}
    assert curve == pytest.approx({row["round"]: row["accuracy"] for row in rows(done.path)}, abs=1e-6)
    assert len(events.Scalars("accuracy")) == 5
    assert {"parameters/text_summary", "summary/text_summary"} <= {*events.Tags()["tensors"]}


@pytest.mark.filterwarnings("ignore")
def test_wandb_hears_each_round_offline_as_a_group_of_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("wandb", reason="the extra 'wandb' is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    done = run(small("wandb", seeds=[1, 2]), out=tmp_path / "run", baselines=False)
    top, *parts = (wandb_run(folder) for folder in (done.path, done.path / "seed-1", done.path / "seed-2"))
    assert [part.group for part in parts] == [top.name, top.name] == [top.group] * 2
    for part, seed in zip(parts, (1, 2), strict=True):
        here = rows(done.path / f"seed-{seed}")
        assert {step: row["accuracy"] for step, row in part.rows.items()} == {r["round"]: r["accuracy"] for r in here}
        assert part.settings["partition.clients"] == "3"
    assert {"summary.json"} <= top.files


@pytest.mark.filterwarnings("ignore")
def test_wandb_without_a_key_asks_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("wandb", reason="the extra 'wandb' is not installed")
    for name in [one for one in os.environ if one.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path))
    heard = Hearing()
    run(small("wandb"), out=tmp_path / "run", baselines=False, progress=heard)
    (said,) = heard.of_tracking()
    assert "WANDB_MODE=offline" in said
    assert (by_wandb.INIT, by_wandb.FINISH) == (20, 30)


# --- What holds for every tool


def test_a_tool_that_fails_ends_no_run_and_a_resumed_run_tells_what_was_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    heard, broken = Hearing(), with_fake(monkeypatch, Fake("figures", 1))
    done = run(small("mlflow"), out=tmp_path / "run", baselines=False, progress=heard)
    plain = run(Experiment.of(**SMALL), out=tmp_path / "plain", baselines=False)
    assert done.summary["final"] == plain.summary["final"]
    assert len(heard.of_tracking()) == 1
    assert [step for step, _ in broken.heard["run-1"]] == [0]
    mended = with_fake(monkeypatch, Fake())
    resume(done.path, ["rounds=3"], baselines=False)
    (again,) = mended.begun
    assert (again.before, again.told) == ("run-1", 0)
    assert [step for step, values in mended.heard["run-1"] if "loss" in values] == [1, 2, 3]


def test_a_tool_that_cannot_begin_is_asked_once_for_all_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    heard = Hearing()
    with_fake(monkeypatch, Fake("begin"))
    run(small("wandb", seeds=[1, 2, 3]), out=tmp_path / "run", baselines=False, progress=heard)
    assert len(heard.of_tracking()) == 1


def test_baselines_are_not_told(tmp_path: Path, fake: Fake):
    run(small("mlflow"), out=tmp_path / "run", baselines=True)
    assert len(fake.begun) == 1
    assert fake.ended == ["finished"]


def test_a_run_that_is_stopped_or_diverges_is_ended_as_such(tmp_path: Path, fake: Fake):
    class Impatient(Hearing):
        def row(self, row: Mapping[str, Any]) -> None:
            if row["round"] == 1:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(small("mlflow"), out=tmp_path / "run", baselines=False, progress=Impatient())
    resume(tmp_path / "run", baselines=False)
    assert fake.ended == ["stopped", "finished"]
    assert [step for step, values in fake.heard["run-1"] if "loss" in values] == [0, 1, 2]


def test_no_cell_no_owner_and_no_figure_of_one_is_told(tmp_path: Path, fake: Fake):
    """Numbers and names that stand nowhere but in the rows, and what summary.json says of single clients."""
    draw = np.random.default_rng(0)
    owners = ["Lienz-7731", "Wien-7732", "Tirol-7733"]
    lines = [f"{draw.integers(2)},{771300 + i}.5,colour{i % 3}x,{owners[i % 3]}" for i in range(120)]
    table = tmp_path / "rows.csv"
    table.write_text("\n".join(["y,height,colour,office", *lines]) + "\n")
    data = {"name": "file", "path": str(table), "label": "y", "client": "office"}
    heard = Hearing()
    asked = small("mlflow", data=data, partition={"name": "natural"})
    done = run(asked, out=tmp_path / "run", baselines=False, progress=heard)
    told = json.dumps(
        [fake.settings, fake.heard, {name: data.decode() for name, data in fake.files.items()}], default=str
    )
    assert "data.label" in told
    for secret in (*owners, "colour1x", "7713", str(tmp_path)):
        assert secret not in told, secret
    summary = json.loads(fake.files["summary.json"])
    assert not {"per_client", "partition_facts", "clusters", "groups", "data_facts", "class_names"} & summary.keys()
    assert {"per_client", "partition_facts"} <= done.summary.keys()
    assert "report.html" not in fake.files
    assert any("each owner holds" in one for one in heard.of_tracking())
    run(
        small("mlflow", data=data, partition={"name": "natural"}, tracking={"report": True}),
        out=tmp_path / "again",
        baselines=False,
    )
    assert "report.html" in fake.files


def test_the_table_changes_no_hash_and_says_what_is_missing(monkeypatch: pytest.MonkeyPatch):
    assert parse({**SMALL, "tracking": {"name": "wandb"}}).hash() == parse(SMALL).hash()
    assert {*get_args(TrackingConfig.model_fields["name"].annotation)} == NEEDS.keys() == follower.TRACKERS.keys()
    assert all(follower.tracker(name).name == name for name in NEEDS)
    monkeypatch.setattr("fedatlas.config.tracking.find_spec", lambda package: None)
    with pytest.raises(ConfigError, match=r'pip install "fedatlas\[wandb\]"'):
        dry_run(small("wandb"))
    with pytest.raises(ConfigError, match="holds a password"):
        parse({"tracking": {"name": "mlflow", "to": "https://me:secret@host/x"}})
    with pytest.raises(ConfigError, match="folders, not projects"):
        parse({"tracking": {"name": "tensorboard", "project": "x"}})
    with pytest.raises(ConfigError, match=r"\[tracking\]: a deployed run"):
        deployable(parse({**SMALL, "tracking": {"name": "mlflow"}}), ["a", "b", "c"])


def test_nothing_of_a_tool_is_imported_without_the_table(tmp_path: Path):
    code = (
        "import sys; from fedatlas import Experiment, run\n"
        f"run(Experiment.of(**{SMALL!r}), out={str(tmp_path / 'run')!r}, baselines=False)\n"
        "print(sorted({'mlflow', 'tensorboard', 'wandb'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

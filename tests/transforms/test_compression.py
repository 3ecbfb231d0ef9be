"""``[compression]`` from the experiment file to the run's record, and one sentence for every wrong input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from configured import set_up
from fedatlas import config
from fedatlas.api import resume, run
from fedatlas.cli import app
from fedatlas.federation.client_states import PartyState
from fedatlas.federation.party import PartyHalf
from fedatlas.federation.sealing import MEMORY
from fedatlas.record.checkpoint import Checkpoints
from fedatlas.transforms import TRANSFORMS
from test_run import refusal, rows, small, timeless

D = 64 * 64 + 64 + 64 * 10 + 10  # parameters of the default network
CLIENTS = 12


@pytest.mark.parametrize(
    ("table", "bits"),
    [
        ({"name": "topk"}, 49 * (32 + 13)),  # k = ceil(0.01 * 4810), 13 bits a place
        ({"name": "qsgd"}, 5 * D + 32 * 10),  # s = 15: 4 bits and a sign; 10 buckets
        ({"name": "float16"}, 16 * D),
        ({"name": "clip", "norm": 0.5}, 32 * D),
    ],
)
def test_rows_hold_the_bytes_that_were_sent(tmp_path: Path, table: dict[str, Any], bits: int) -> None:
    done = run(small(compression=table), out=tmp_path / "run", baselines=False)
    for row in rows(done.path)[1:]:
        each = row["bytes_up"] / CLIENTS
        assert bits / 8 < each < bits / 8 + 700  # heads, and places of 64 bytes
        assert row["bytes_down"] > 32 / 8 * D * CLIENTS  # down it goes whole
    assert config.read(done.path / "config.toml").compression is not None


def test_a_resumed_run_keeps_what_was_not_sent(tmp_path: Path) -> None:
    """Memories are in the checkpoint, also of an algorithm without state; the stopped run ends as the whole one."""
    tables = {"compression": {"name": "topk", "share": 0.05}, "cohort": {"fraction": 0.5}}
    whole = run(small(**{**tables, "rounds": 5}), out=tmp_path / "whole", baselines=False)
    run(small(**tables), out=tmp_path / "part", baselines=False)
    part = resume(tmp_path / "part", ["rounds=5"])
    assert timeless(whole.path) == timeless(part.path)
    assert (whole.path / "model.safetensors").read_bytes() == (part.path / "model.safetensors").read_bytes()
    kept = {}
    for path in (whole.path, part.path):
        states = PartyState()
        Checkpoints(path / "checkpoint", config.read(path / "config.toml").hash()).load(states)
        kept[path] = {k: (states.get(k) or {})[MEMORY]["train"]["model"].tolist() for k in states.after.clients()}
    assert kept[whole.path]
    assert kept[whole.path] == kept[part.path]


def test_baselines_of_a_compressed_run_are_trained_whole(tmp_path: Path) -> None:
    """They send nothing, so there is nothing to compress: their table is left out."""
    done = run(small(compression={"name": "qsgd"}), out=tmp_path / "run", baselines=True)
    assert set(done.summary["gain"]["summary"]) == {"local_only", "federated", "centralised"}
    assert config.read(done.path / "baselines" / "centralised" / "config.toml").compression is None


def test_error_feedback_is_worth_its_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One coordinate in a hundred a round: with what was left out sent later the default experiment learns, else much less."""
    table = {"rounds": 20, "compression": {"name": "topk"}}
    kept = run(small(**table), out=tmp_path / "kept", baselines=False).summary["final"]["accuracy"]
    monkeypatch.setattr(PartyHalf, "_memory", lambda self, request: {"off": True})  # a memory without the model
    lost = run(small(**table), out=tmp_path / "lost", baselines=False).summary["final"]["accuracy"]
    assert kept > lost + 0.05


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (("compression.name=topc",), "unknown transform 'topc': did you mean 'topk'?"),
        (("compression.share=0.1",), "compression.name: this key is required."),
        (("compression.name=topk", "compression.share=0"), "compression.share = 0: expected"),
        (("compression.name=topk", "compression.levels=3"), "unknown key 'compression.levels'"),
        (("compression.name=qsgd", "compression.levels=0"), "compression.levels = 0: expected"),
        (("compression.name=clip",), "compression.norm: this key is required."),
        (("compression.name=clip", "compression.norm=inf"), "compression.norm = inf: expected a finite number."),
        (
            ("compression.name=topk", "algorithm.name=local_only"),
            "[compression]: not with 'local_only': nothing leaves a client; remove the table.",
        ),
        (("compression.name=topk", "algorithm.name=centralised"), "[compression]: not with 'centralised'"),
        (
            ("compression={name='clip', norm=0.1}", "algorithm.name=fednova"),
            "compression.name = 'clip': not with 'fednova': the change would be clipped after division by its steps",
        ),
    ],
)
def test_one_sentence_for_what_cannot_be(overrides: tuple[str, ...], expected: str) -> None:
    assert expected in refusal(*overrides)


def test_devices_that_rarely_come_back_are_warned_of() -> None:
    def notices(name: str) -> str:
        setup = set_up(config.read(None, [f"compression.name={name}", "profile=device", "cohort.fraction=0.1"]), 1)
        return " ".join(setup.notices)

    assert "'topk' keeps what was not sent" in notices("topk")
    assert "not sent" not in notices("qsgd")


def test_list_and_show() -> None:
    listed = json.loads(CliRunner().invoke(app, ["list", "transforms", "--json"]).stdout)
    assert [entry["name"] for entry in listed] == list(TRANSFORMS)
    shown = CliRunner().invoke(app, ["show", "topk"]).stdout
    assert "share = 0.01" in shown
    assert "Stich, Cordonnier, Jaggi 2018" in shown

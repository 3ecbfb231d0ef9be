"""What a node is sent of a finished run, and how it keeps it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fedatlas.deployment import model_delivery
from fedatlas.deployment.model_delivery import delivery_of, store_delivery
from fedatlas.errors import ProtocolError
from fedatlas.record.run_folder import RunFolder
from fedatlas.record.summary import write_summary
from fedatlas.wire import codec
from fedatlas.wire.messages import FinishedModel

SUMMARY = {"algorithm": "fedavg", "final": {"accuracy": 0.5}, "cost": {"seconds": 1.0}, "sha256": {}}


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.toml").write_text("rounds = 1\n")
    (folder / "metrics.jsonl").write_text('{"round": 0, "clients": [1], "steps": [3]}\n')
    (folder / "preprocess.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"model")
    write_summary(RunFolder(folder), {**SUMMARY, "judged_on": "some", "per_client": [1]})  # type: ignore[typeddict-item]
    return folder


def test_a_node_keeps_a_run_without_what_tells_of_others_and_writes_its_summary_last(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there: list[str] = []

    def noted(folder: RunFolder, summary: Any) -> None:
        there.extend(path.name for path in folder.path.iterdir())
        write_summary(folder, summary)

    monkeypatch.setattr(model_delivery, "write_summary", noted)
    kept = store_delivery(tmp_path / "node", delivery_of(finished, "one"))
    assert kept == tmp_path / "node" / "runs" / "one"
    assert {*there} == {"config.toml", "metrics.jsonl", "preprocess.json", "model.safetensors"}
    assert (kept / "summary.json").read_text() == json.dumps(SUMMARY, indent=1) + "\n"
    assert (kept / "metrics.jsonl").read_text() == '{"round": 0}\n'
    assert (kept / "model.safetensors").read_bytes() == b"model"


def test_nor_does_the_answer_tell_of_others(finished: Path, tmp_path: Path) -> None:
    told: Any = {**SUMMARY, "judged_on": "some", "answer": {"text": "With FedAvg", "judged_on": ["some"]}}
    write_summary(RunFolder(finished), told)
    kept = store_delivery(tmp_path / "node", delivery_of(finished, "one"))
    assert json.loads((kept / "summary.json").read_text())["answer"] == {"text": "With FedAvg", "judged_on": []}


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({"summary.json": b"{"}, "the summary.json of the run cannot be read"),
        ({"summary.json": b"[1]"}, "the summary.json of the run cannot be read"),
        ({}, "the summary.json of the run cannot be read"),
        ({"summary.json": b"{}", "policy.toml": b""}, "'policy.toml' is not a file that nodes keep of a run"),
    ],
)
def test_a_delivery_of_something_else_is_refused_and_ends_no_run(
    files: dict[str, bytes], why: str, tmp_path: Path
) -> None:
    tensors = {name: torch.tensor([*data], dtype=torch.uint8) for name, data in files.items()}
    with pytest.raises(ProtocolError, match=why):
        store_delivery(tmp_path, FinishedModel("one", codec.encode(tensors)))
    assert not (tmp_path / "runs" / "one" / "summary.json").exists()

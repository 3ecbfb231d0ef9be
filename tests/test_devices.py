"""Work on a GPU: every tensor where it belongs, by a device that refuses others' tensors; and on a real one, where there is one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import elsewhere
from fedatlas import load, run
from fedatlas.engine.device import find_device
from fedatlas.engine.executors import Plan
from fedatlas.errors import ConfigError
from fedatlas.experiment import run as running
from fedatlas.experiment.config import read
from fedatlas.experiment.resolve import resolve_plan
from fedatlas.experiment.setup import Setup

SHORT = ["rounds=2", "partition={name='iid', clients=4}"]
FIGURES = ("accuracy", "macro_f1", "loss", "train_loss", "bytes_up", "bytes_down")
WORK = {
    "dense": [],
    "momentum": ["local.momentum=0.9", "local.clip=1.0"],
    "adam": ["local.optimizer=adam", "local.lr=0.003"],
    "dropout": ["model.name=emnist_cnn", "local.batch_size=50"],
    "convolutions": ["model.name=cnn2", "local.batch_size=50"],
    "batch norm": ["model={name='cnn2', norm='batch'}", "local.batch_size=50"],
    "crops": ["data.augment=crop_flip", "data.scale=federated", "model.name=cnn2", "local.batch_size=50"],
    "top-k": ["compression={name='topk', share=0.1}"],
    "levels": ["compression.name=qsgd", "algorithm.name=scaffold"],
    "losses of clusters": ["algorithm={name='ifca', clusters=2}"],
    "several models": [
        "algorithm={name='fedmd', start_epochs=1, private_epochs=1}",
        "models=[{name='mlp', hidden=[8], share=0.5}, {name='mlp', hidden=[12], share=0.5}]",
        "public={from='test', per_class=5}",
    ],
    "stopping early": ["algorithm={name='feddf', steps=30, patience=5}", "public={from='test', per_class=5}"],
}


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [{key: row[key] for key in FIGURES} for row in load(path).rows.to_dict("records")]


@pytest.mark.parametrize("work", WORK)
def test_a_run_elsewhere_is_the_run_here(work: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = read(None, [*SHORT, *WORK[work], "engine={workers=1, precision='float64'}"])
    here = run(config, out=tmp_path / "here", baselines=False)

    def planned(setup: Setup) -> Plan:
        return resolve_plan(setup)._replace(device=elsewhere.NAME)

    monkeypatch.setattr(running, "resolve_plan", planned)
    there = run(config, out=tmp_path / "there", baselines=False)
    assert there.summary["plan"]["device"] == elsewhere.NAME
    for near, far in zip(rows_of(here.path), rows_of(there.path), strict=True):
        assert far == pytest.approx(near, rel=1e-9, nan_ok=True)


def test_no_gpu_is_said_in_one_sentence() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(ConfigError, match="torch sees no GPU here"):
        find_device("cuda")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("work", WORK)
def test_a_gpu_repeats_its_bits_and_stays_near_the_processor(work: str, tmp_path: Path) -> None:
    here, once, again = (
        run(read(None, [*SHORT, *WORK[work], f"engine.device={device}"]), out=tmp_path / name, baselines=False)
        for name, device in (("here", "cpu"), ("once", "cuda"), ("again", "cuda"))
    )
    assert str(rows_of(once.path)) == str(rows_of(again.path))
    for near, far in zip(rows_of(here.path), rows_of(once.path), strict=True):
        assert far["loss"] == pytest.approx(near["loss"], rel=1e-2)
        assert far["bytes_up"] == near["bytes_up"]

"""Work on a GPU: every tensor where it belongs, by a device that refuses others' tensors; and on a real one, where there is one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import second_device
from configured import set_up
from fedatlas import Experiment, cli, load, run
from fedatlas.config import read
from fedatlas.course.plan import resolve_plan
from fedatlas.engine.device import find_device
from fedatlas.errors import ConfigError, first_line, lacks_memory

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
    "a look at the batches": [
        "algorithm={name='scaffold', variant='fedseq_code'}",
        "model.name=emnist_cnn",
        "data.augment=crop_flip",
        "data.scale=federated",
        "local.batch_size=50",
    ],
    "tuned": ["engine.plan=tuned"],
    "loop": ["engine.name=loop"],
    "losses of clusters": ["algorithm={name='ifca', clusters=2}"],
    "several models": [
        "algorithm={name='fedmd', start_epochs=1, private_epochs=1}",
        "models=[{name='mlp', hidden=[8], share=0.5}, {name='mlp', hidden=[12], share=0.5}]",
        "public={from='test', per_class=5}",
    ],
    "flipped labels": ["rounds=3", "attack=[{name='label_flip', clients=[1], pairs=[[3, 5]]}]"],
    "a backdoor": ["attack=[{name='backdoor', clients=[1]}]"],
    "a drift": ["rounds=3", "drift={kind='feature', at=2}"],
    "stopping early": ["algorithm={name='feddf', steps=30, patience=5}", "public={from='test', per_class=5}"],
}


class Rows(nn.Module):
    """Digits read row by row."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 16, batch_first=True)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x.flatten(0, 1))[0][:, -1])


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [{key: row[key] for key in FIGURES} for row in load(path).rows.to_dict("records")]


@pytest.mark.parametrize("work", WORK)
def test_a_run_elsewhere_is_the_run_here(work: str, tmp_path: Path) -> None:
    overrides = [*SHORT, *WORK[work], "engine.workers=1"]
    here = run(read(None, overrides), out=tmp_path / "here", baselines=False)
    assert second_device.ask("run_there", overrides, str(tmp_path / "there")) == "elsewhere"
    there = load(tmp_path / "there")
    assert there.summary["plan"]["steps"] == here.summary["plan"]["steps"]
    assert str(rows_of(there.path)) == str(rows_of(here.path))


@pytest.mark.parametrize("engine", ["loop", "fast", "tuned", "stacked"])
def test_a_constant_of_ones_own_is_made_where_the_work_is(engine: str) -> None:
    found = second_device.ask("constant", engine)
    assert found["server"]


def test_recurrent_networks_are_not_planned_as_stacks() -> None:
    config = read(None, [*SHORT, "engine.workers=1"])
    assert resolve_plan(set_up(config, 1)).step == "stacked"
    assert resolve_plan(set_up(config, 1, module=Rows())).step == "program"


def test_too_little_memory_is_said_wherever_it_lacks() -> None:
    error = torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 16.00 GiB"
    )
    assert lacks_memory(error)
    assert first_line(error) == "there is not enough memory for a piece of 21.5 GB"
    assert not lacks_memory(RuntimeError("something else"))


def test_who_does_not_ask_for_a_gpu_has_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Autograd keeps threads for a GPU that it sees, and then works in no forked process: the command line hides it."""
    setup = set_up(read(None, ["engine.workers=2", "model.name=cnn2"]), 1)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 0)
    assert resolve_plan(setup).workers == 2
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    plan = resolve_plan(setup)
    assert (plan.workers, plan.step) == (1, "program")
    assert "CUDA_VISIBLE_DEVICES" in plan.reason
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    cli.without_gpus("cuda")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"
    cli.without_gpus("auto")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


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


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_recurrent_networks_on_a_gpu(algorithm: str, tmp_path: Path) -> None:
    """Weights that are handed in one by one, and gradients in evaluation mode."""
    option = ["algorithm.option=I"] if algorithm == "scaffold" else []
    config = read(None, [*SHORT, f"algorithm.name={algorithm}", *option, "engine.device=cuda"])
    assert run(Experiment(config, Rows()), out=tmp_path / "run", baselines=False).summary["final"]["loss"] > 0

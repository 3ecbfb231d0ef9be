"""Rows that stay on a device, and steps that are recorded there: when, for whom, and with which bits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedatlas import run
from fedatlas.config import read
from fedatlas.data.batches import Rows
from fedatlas.engine.fast import FastRunner
from fedatlas.engine.program import derive
from fedatlas.engine.replay import KEPT, Replays, replayable
from fedatlas.engine.resident import ResidentRows
from fedatlas.engine.step import batch_arguments
from steps import DIRECTIONS, OPTIMIZERS, Smooth, batches_of, inputs_of, made, noise, parts, spec_of, stepped


def test_rows_are_gathered_once_while_there_is_room() -> None:
    asked: list[int] = []

    def source(party: int) -> Rows:
        asked.append(party)
        return Rows(torch.full((4, 2), float(party)), torch.zeros(4, dtype=torch.int64))

    one = 4 * 2 * 4 + 4 * 8  # bytes of a party
    kept = ResidentRows(source, torch.device("cpu"), 2 * one + 1)
    for _ in range(2):
        for party in (3, 1, 2):
            assert kept(party).x[0, 0] == party
    assert asked == [3, 1, 2, 2]  # the third found no room


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_steps_that_read_a_clients_own_tensors_are_not_recorded(direction: str, optimizer: str) -> None:
    spec = spec_of(made(Smooth), direction=DIRECTIONS[direction], optimizer=OPTIMIZERS[optimizer])
    params, _ = parts(spec.module)
    program = derive(spec, batches_of((12,), [5])[0], inputs_of(params, 0))
    assert replayable(program) == (direction == "fedavg" and optimizer != "adam")


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "nesterov"])
def test_clients_that_take_turns_leave_each_other_nothing(optimizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tensors that recorded steps work on, without the recording: that needs a GPU."""
    monkeypatch.setattr(
        Replays, "record", lambda self, program, inputs, given: program.bind(self.params, self.memory, inputs)
    )
    spec, batches = spec_of(made(Smooth), optimizer=OPTIMIZERS[optimizer]), batches_of((12,), [5] * 4)
    params, buffers = parts(spec.module)
    program = derive(spec, batches[0], inputs_of(params, 0))
    turns = Replays(program, params)
    for k in (0, 1, 0):
        start, inputs = params + noise(params, 50 + k), inputs_of(params, k)
        expected, _, _ = stepped({5: program}, start, buffers, inputs, batches)
        turns.begin(start)
        with program.mode():
            for batch in batches:
                turns.step(program, inputs, batch)(*batch_arguments(batch))
        assert all(torch.equal(x, expected[name]) for name, x in turns.params.items())
    for number in range(2 * KEPT):
        turns.step(program, {**inputs, "lr": 0.1 + number}, batches[0])
    assert len(turns.steps) == KEPT


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("work", [[], ["local.momentum=0.9"], ["local.schedule={name='exponential', gamma=0.9}"]])
def test_recorded_steps_give_the_bits_of_others(
    work: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = read(None, ["rounds=3", "model.name=cnn2", "local.batch_size=50", "engine.device=cuda", *work])
    models = []
    for name in ("recorded", "others"):
        run(config, out=tmp_path / name, baselines=False)
        models.append((tmp_path / name / "model.safetensors").read_bytes())
        monkeypatch.setattr(FastRunner, "turns", lambda *_: None)
    assert models[0] == models[1]

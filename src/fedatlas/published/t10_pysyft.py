"""T10: PySyft's training times: plain PyTorch, a federation in one process, over sockets, and with noise (the CSI5340 slides)."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

from fedatlas.config import parse
from fedatlas.data.sources import load_dataset
from fedatlas.machine import one_thread_an_operator
from fedatlas.published.gates import Gate, GateVerdict, Part, PartRuns, Runs, Target, listed
from fedatlas.record.run_folder import RunFolder
from fedatlas.rng import torch_stream
from fedatlas.runs.ensure import ensure
from fedatlas.runs.finish import More
from fedatlas.setup.refusals import checked

PUBLISHED: Mapping[str, float] = {"plain": 0.22, "process": 10.1, "sockets": 14.6, "noise": 15.3}  # seconds
CALLED = {"plain": "plain PyTorch", "process": "in process", "sockets": "sockets", "noise": "in process with noise"}
REPEATS, EPOCHS, CLIENTS = 3, 10, 2
HIDDEN, BATCH, RATE = 32, 8, 0.01
NOTES = (
    f"Boston Housing, MLP 13-{HIDDEN}-1, {EPOCHS} epochs (as many rounds of one), batches of {BATCH}, SGD {RATE}, {CLIENTS} parties; the",
    "slides give neither network nor epochs. Medians of three; seconds are those of the rounds, without start and data.",
    "Sockets: a server and two nodes as processes of this machine, mutual TLS. Noise: DP-SGD, clip 1, multiplier 1.",
)
EXPERIMENT: Mapping[str, Any] = {
    "rounds": EPOCHS,
    "data": {"name": "boston_housing"},
    "partition": {"name": "iid", "clients": CLIENTS},
    "cohort": {"fraction": 1.0},
    "model": {"name": "mlp", "hidden": [HIDDEN]},
    "local": {"epochs": 1, "batch_size": BATCH, "lr": RATE},
}
NOISE = {"name": "dp_sgd", "clip": 1.0, "noise_multiplier": 1.0}


def pysyft_times(quick: bool = False, shorter: int | None = None) -> Target:
    """Training time of one federation: plain PyTorch, in process, over sockets, and in process with noise."""
    rounds = shorter or EPOCHS
    kinds = {"plain": plain_torch, "process": in_process, "noise": noisy, "sockets": over_sockets}
    parts = tuple(
        Part(name, {"kind": CALLED[name]}, (1,), None, measured(kind, rounds)) for name, kind in kinds.items()
    )
    source = (
        "Ryffel, Trask, Dahl, Wagner, Mancuso, Rueckert, Passerat-Palmbach 2018, as the CSI5340 slides show it (S2)"
    )
    return Target("pysyft", "Training time: plain, in process, over sockets, with noise", source, parts, gates(), NOTES)


def measured(kind: Callable[[int, int], float], rounds: int) -> Callable[[int], list[dict[str, Any]]]:
    """Return the measurement of one kind: seconds, the median of several runs."""

    def measure(seed: int) -> list[dict[str, Any]]:
        with one_thread_an_operator():  # as the engine's workers: tensors this small lose by more
            return [{"spent": median(kind(seed, rounds) for _ in range(REPEATS))}]

    return measure


def plain_torch(seed: int, rounds: int) -> float:
    """Return the seconds of a loop as a tutorial writes it, on all training rows."""
    rows = load_dataset(parse({**EXPERIMENT, "seed": seed}).data, seed).train
    x, y = rows.x.float(), rows.y.float().reshape(-1, 1)
    x, y = ((z - z.mean(0)) / z.std(0) for z in (x, y))
    net = nn.Sequential(nn.Linear(x.shape[1], HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))
    optimiser, loss = torch.optim.SGD(net.parameters(), lr=RATE), nn.MSELoss()
    stream, began = torch_stream(seed, "plain"), time.perf_counter()
    for _ in range(rounds):
        for index in torch.split(torch.randperm(len(x), generator=stream, device="cpu"), BATCH):
            optimiser.zero_grad()
            loss(net(x[index]), y[index]).backward()
            optimiser.step()
    return time.perf_counter() - began


def in_process(seed: int, rounds: int) -> float:
    """Return the seconds of the rounds of a simulation."""
    with tempfile.TemporaryDirectory() as folder:
        return simulated(seed, rounds, Path(folder) / "run")


def noisy(seed: int, rounds: int) -> float:
    """Return the seconds of the same with noise at record level, which asks for constants that were not computed under it."""
    with tempfile.TemporaryDirectory() as folder:
        simulated(seed, 1, Path(folder) / "plain")
        data = {**EXPERIMENT["data"], "constants": str(Path(folder) / "plain" / "preprocess.json")}
        return simulated(seed, rounds, Path(folder) / "run", {"data": data, "privacy": [NOISE]})


def simulated(seed: int, rounds: int, folder: Path, more: Mapping[str, Any] | None = None) -> float:
    """Run a simulation in a folder, and return the seconds of its rounds."""
    whole = checked(parse({**EXPERIMENT, "rounds": rounds, "seed": seed, **(more or {})}))
    done = ensure(whole, folder, More(False, report=False, options={"baselines": False}))
    return float(done.summary["cost"]["seconds"])


def over_sockets(seed: int, rounds: int) -> float:
    """Return the seconds of the rounds of a deployed run: a server and the parties are processes of their own."""
    from fedatlas.deployment.trial import trial

    tables = {name: table for name, table in EXPERIMENT.items() if name != "rounds"}
    given = [f"rounds={rounds}", f"seed={seed}"]
    given += [f"{name}.{key}={json.dumps(value)}" for name, table in tables.items() for key, value in table.items()]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        trial(None, given, CLIENTS, out, quiet=True)
        return float(RunFolder.open(out).summary()["cost"]["seconds"])


def spent(runs: PartRuns, seed: int) -> float:
    """Return the seconds of a part."""
    return float(runs.rows[seed][-1]["spent"])


def order(runs: Runs) -> GateVerdict:
    """Return whether the published order holds, with seconds and ratios to plain PyTorch."""
    found = {name: runs[name].mean(spent) for name in PUBLISHED}
    plain, process, sockets, noise = found.values()
    ratios = [
        f"{CALLED[name]} {x / plain:.2f}x (published {PUBLISHED[name] / PUBLISHED['plain']:.0f}x)"
        for name, x in found.items()
    ]
    text = listed([*CALLED.values()], [*found.values()], "{:.3f} s".format)
    return GateVerdict(f"{text}; {', '.join(ratios[1:])}", plain < process < min(sockets, noise))


def gates() -> tuple[Gate, ...]:
    """Return the gate of T10."""
    said = listed([*CALLED.values()], [*PUBLISHED.values()], "{:.2f} s".format)
    rule = "order: plain < in process < sockets, in process < with noise; ratios reported"
    return (Gate("times", said, rule, tuple(PUBLISHED), order),)

"""One step of DP-SGD on MLP1: ``python benchmarks/privacy.py dp_sgd [--opacus PYTHON] [--turns 15] [--json FILE]``.

The plain step (as the program that a run derives, and as the tuned step) and the step of DP-SGD, its noise from the operating system,
on the same rows, 784-200-10 with SGD. A batch of DP-SGD is padded as in a run. Drawing and gathering its rows of 60,000 is timed beside.
With ``--opacus``, the interpreter of an environment with ``peers/opacus.txt``, Opacus' modes take the same steps in a process of their own.
All take turns of a few steps, in one thread each. Medians over the turns, of processor and of wall-clock time.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from table import table

from fedatlas.algorithm import Batch, Budget
from fedatlas.data.batches import Draw, Rows, batches
from fedatlas.engine.model import Network
from fedatlas.engine.program import step_for
from fedatlas.engine.row_gradients import clipped_sum, dense_layers
from fedatlas.engine.step import StepSpec, batch_arguments, local_copy
from fedatlas.engine.tuned import TunedStep
from fedatlas.models.dense import mlp1
from fedatlas.models.losses import make_loss
from fedatlas.privacy.dp_sgd.poisson import Poisson
from fedatlas.privacy.mechanism import Noise
from fedatlas.privacy.mechanisms import dp_sgd
from fedatlas.privacy.protocol import Doing

CLIP, NOISE, LR = 1.0, 1.0, 0.1
ROWS = 60_000
MODES = ("plain", "hooks", "functorch", "ghost")
TARGET = 3.0  # times the plain step, at 256 rows
Turn = Callable[[int], tuple[float, float]]
"""(steps) -> (milliseconds of processor time, of wall-clock time) of one."""


def timed(step: Callable[[], Any]) -> Turn:
    """A turn of so many steps."""

    def turn(count: int) -> tuple[float, float]:
        work, wall = time.process_time(), time.perf_counter()
        for _ in range(count):
            step()
        return 1e3 * (time.process_time() - work) / count, 1e3 * (time.perf_counter() - wall) / count

    step()
    return turn


def ours(size: int) -> dict[str, Turn]:
    """The plain step, that of DP-SGD, and its batches."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(ROWS, 1, 28, 28, generator=generator)
    held = Rows(x, torch.randint(0, 10, (ROWS,), generator=generator))
    network = Network(mlp1((28, 28), 10), make_loss("cross_entropy", "classes", 10).mean)
    params = network.initial()[0]
    rows = Batch(x[:size], held.y[:size])
    inputs = {"message": {}, "client": {}, "facts": {}, "lr": LR}
    plain = StepSpec(network.module, lambda params, buffers, batch, inputs: network.loss(params, batch))
    budget = Budget(steps=1_000_000_000)
    sampling = Poisson(Doing(0, 1, "train", 0, ROWS), budget, size, params, CLIP * NOISE, Noise("os"))
    found = batches(held, budget, Draw(0, 1, 0, size, sampling=sampling))
    noising = dp_sgd(clip=CLIP, noise_multiplier=NOISE).work().gradient
    assert noising is not None
    layers = dense_layers(network.module)

    def private(objective: Any, params: Any, batch: Batch) -> Any:
        return noising(partial(clipped_sum, layers, objective, params), params, batch)

    batch = next(b for b in found if len(b.x) == sampling.room)
    made = {
        "plain, program": (step_for(plain, rows, inputs), rows),
        "plain, tuned": (TunedStep(plain, rows), rows),
        "DP-SGD": (TunedStep(plain._replace(gradient=private), batch), batch),
    }
    turns: dict[str, Turn] = {}
    for name, (one, given) in made.items():
        with one.mode():
            step = one.bind(local_copy(params), None, inputs)
        turns[name] = timed(partial(stepped, one, step, given, sampling if name == "DP-SGD" else None))
    turns["DP-SGD: drawing rows and noise"] = timed(lambda: next(found))
    return turns


def stepped(made: Any, step: Any, batch: Batch, sampling: Poisson | None) -> None:
    """One step, with new noise if it has any."""
    if sampling is not None:
        batch = batch._replace(extra=sampling.beside(0))
    with made.mode():
        step(*batch_arguments(batch))


@contextmanager
def theirs(python: str | None, size: int) -> Iterator[dict[str, Turn]]:
    """Opacus' steps; none without its interpreter."""
    if python is None:
        yield {}
        return
    script = Path(__file__).parent / "peers" / "opacus_steps.py"
    with subprocess.Popen([python, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def turn(mode: str, count: int) -> tuple[float, float]:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"{mode} {size} {count}\n")
            process.stdin.flush()
            work, wall = json.loads(process.stdout.readline())
            return work, wall

        yield {f"Opacus, {mode}": partial(turn, mode) for mode in MODES}


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Take turns, and return medians by batch size and way."""
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    for size in given.batches:
        with theirs(given.opacus, size) as others:
            ways = {**ours(size), **others}
            turns: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
            for _ in range(given.turns):
                for name, turn in ways.items():
                    turns[name].append(turn(given.steps))
        found[str(size)] = {name: [median(x) for x in zip(*each, strict=True)] for name, each in turns.items()}
    return found


def said(found: dict[str, Any]) -> str:
    """The figures as a table, and whether the target is met."""
    out = []
    for size, ways in found.items():
        base = min(ways[name][0] for name in ("plain, program", "plain, tuned"))
        rows = [[name, f"{work:.2f}", f"{wall:.2f}", f"{work / base:.2f}"] for name, (work, wall) in ways.items()]
        out += [f"batches of {size}", table(["a step", "processor ms", "ms", "of the plain step"], rows)]
        ratio = ways["DP-SGD"][0] / base
        if size == "256":
            out.append(
                f"at most {TARGET:g} times the plain step: {'met' if ratio <= TARGET else 'MISSED'} ({ratio:.2f})"
            )
        private = {name: work for name, (work, _) in ways.items() if name.startswith("Opacus") and "plain" not in name}
        if private:
            fastest = min(private, key=private.__getitem__)
            verdict = "met" if ways["DP-SGD"][0] <= private[fastest] else "MISSED"
            out.append(f"no slower than the fastest mode, {fastest}: {verdict}")
    return "\n\n".join(out)


def options(parser: argparse.ArgumentParser) -> None:
    """What can be asked for."""
    parser.add_argument("--opacus", help="interpreter of an environment with peers/opacus.txt")
    parser.add_argument("--batches", type=int, nargs="+", default=[10, 256])
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--steps", type=int, default=10, help="of a turn")
    parser.add_argument("--json", type=Path, help="where the figures go")

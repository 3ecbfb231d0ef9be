"""Our engines, the loops that people write, and two other simulators, on the same work: ``python benchmarks/simulation_speed.py``.

MNIST, 10 of 100 clients with 600 rows each, 5 epochs, MLP1 and CNN2, batches of 10 and 50, FedAvg, nothing evaluated. Each
contestant is a process of its own; the rounds are taken in turn, so that what disturbs one disturbs all; speeds are ratios of
medians within this one run. Prints its tables, and writes them down with ``--json FILE``; docs/performance.md says more.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from contest import Entry, OutError, Running, busy, machine_busy, watched
from table import tables
from torch.utils.flop_counter import FlopCounterMode
from workload import Workload, network

from fedatlas.config import parse
from fedatlas.errors import FedatlasError
from fedatlas.machine import accelerator, describe, processor
from fedatlas.models.registry import MODELS, PAPER_SIZES
from fedatlas.rng import numpy_stream
from fedatlas.setup.assembly import set_up
from fedatlas.setup.refusals import checked

PEERS = Path(os.environ.get("FEDATLAS_PEERS", "~/.cache/fedatlas-peers")).expanduser()
JUDGED = 2000  # test rows on which contestants are compared
ALIKE = 1e-5  # of a loss of about 2.3: the rounding of float32 over one step and a mean of a hundred models

ENTRIES: dict[str, tuple[str, str]] = {  # label -> script and name; "PEER/" names the environment
    "plain loop": ("loops.py", "plain"),
    "tuned loop, 1 thread": ("loops.py", "tuned-1"),
    "tuned loop, 2 threads": ("loops.py", "tuned-2"),
    "fedatlas, loop": ("ours.py", "loop"),
    "fedatlas, fast": ("ours.py", "fast"),
    "fedatlas, fast, one process": ("ours.py", "program"),
    "fedatlas, fast, stacked": ("ours.py", "stacked"),
    "fedatlas, fast, in C": ("ours.py", "native"),
    "fedatlas, fast, bfloat16": ("ours.py", "bfloat16"),
    "fedatlas, on a GPU": ("ours.py", "cuda"),
    "by hand, one process": ("loops.py", "by-hand"),
    "Flower, plain client": ("flower/flower_sim.py", "plain"),
    "Flower, tuned client": ("flower/flower_sim.py", "tuned"),
    "pfl, one process": ("pfl/pfl_sim.py", "one"),
    "pfl, a process a core": ("pfl/pfl_sim.py", "two"),
    "limit: centralised, by hand": ("loops.py", "limit"),
    "matrix products": ("loops.py", "products"),
}
NOT_SIMULATORS = ("limit", "products")


class Setting(NamedTuple):
    """How a model is measured."""

    cohort: int = 10
    epochs: int = 5
    rounds: int = 5  # timed
    first_epochs: int = 5  # of the round that warms up


# A whole round of CNN2 would take everybody together more than two minutes: two clients, one for each core, and fewer epochs.
SETTINGS = {"mlp1": Setting(), "cnn2": Setting(cohort=2, epochs=3, rounds=3, first_epochs=1)}


def prepare(model: str, folder: Path) -> str:
    """Writes MNIST, who holds which rows, and the initial model to a file that every contestant can read."""
    tables = {"data": {"name": "mnist"}, "partition": {"name": "iid", "clients": 100}, "model": {"name": model}}
    setup = set_up(checked(parse(tables)))
    data, path = setup.dataset, folder / f"{model}.npz"
    arrays = {"x": data.train.x, "y": data.train.y, "test_x": data.test.x[:JUDGED], "test_y": data.test.y[:JUDGED]}
    arrays |= {f"p{i}": x for i, x in enumerate(setup.first.params.values())}
    np.savez(path, clients=np.stack(setup.partition.clients), **{name: x.numpy() for name, x in arrays.items()})
    return str(path)


def operations(model: str, batch: int) -> float:
    """Floating-point operations of a step's matrix products and convolutions, for each row."""
    net, counter = network(model), FlopCounterMode(display=False)
    with counter:
        net(torch.rand(batch, 1, 28, 28)).sum().backward()
    return counter.get_total_flops() / batch


def entries(model: str, peers: Path) -> Iterator[tuple[str, Entry | str]]:
    """Who takes part with a model: (label, entry), or the reason why not."""
    low = {"amx_bf16", "avx512_bf16"} & set(processor()["flags"])
    for label, (script, name) in ENTRIES.items():
        peer, _, _ = script.rpartition("/")
        python = peers / peer / "bin" / "python" if peer else Path(sys.executable)
        if (
            name in {"mlp1": ("bfloat16",), "cnn2": ("stacked", "native")}[model]
        ):  # for convolutions; for dense networks
            continue
        if name == "bfloat16" and not low:
            yield label, "this processor has no bfloat16 products"
        elif name == "cuda" and accelerator() is None:
            yield label, "torch sees no GPU here"
        elif not python.exists():
            yield label, f"no environment '{python.parent.parent}' (docs/performance.md tells how to make it)"
        else:
            yield label, Entry(label, str(python), f"peers/{script.rpartition('/')[2]}" if peer else script, name)


def cohort_of(number: int, setting: Setting, clients: int = 100) -> list[int]:
    """The clients of a round."""
    drawn = numpy_stream(1, "benchmark", number).choice(clients, setting.cohort, replace=False)
    return sorted(int(k) for k in drawn)


class Race:
    """All contestants with one model: each in its own process, which all batch sizes share."""

    def __init__(self, model: str, setting: Setting, given: argparse.Namespace, folder: Path) -> None:
        self.model, self.setting, self.folder = model, setting, folder
        self.data = prepare(model, folder)
        self.found: dict[str, dict[str, Any]] = {}
        self.entries: dict[str, Entry] = {}
        self.running: dict[str, Running] = {}
        for label, entry in entries(model, given.peers):
            if given.only is not None and not any(text in label for text in given.only):
                continue
            self.found[label] = {"label": label}
            if isinstance(entry, str):
                self.found[label]["out"] = entry
            else:
                self.entries[label] = entry

    def workload(self, batch: int) -> Workload:
        """What is trained with this batch size."""
        return Workload(self.model, batch, self.data, cohort=self.setting.cohort, epochs=self.setting.epochs)

    def take_out(self, label: str, error: OutError) -> None:
        """Takes a contestant out, with its reason."""
        self.found[label]["out"] = str(error)
        self.entries.pop(label)
        self.running.pop(label, None)

    def weigh(self, batch: int, *, peers: bool) -> None:
        """Everybody's peak memory over one round, with nobody beside them: pages shared with others would count less."""
        for label, entry in list(self.entries.items()):
            if entry.name in NOT_SIMULATORS or (entry.script.startswith("peers/") and not peers):
                continue
            say(f"memory: {label}")
            try:
                with Running(entry, self.log(entry)) as contestant, watched(contestant.process.pid) as peak:
                    contestant.open(self.workload(batch))
                    contestant.round(cohort_of(1, self.setting), 1)
                self.found[label]["peak"] = peak.bytes
            except OutError as error:
                self.take_out(label, error)

    def log(self, entry: Entry) -> Path:
        """Where a contestant writes what nobody asked for."""
        return self.folder / f"{entry.label}.log"

    def start(self, batch: int, stack: ExitStack) -> None:
        """Starts everybody and trains a first round, one after another."""
        for label, entry in list(self.entries.items()):
            say(f"start: {label}")
            contestant = stack.enter_context(Running(entry, self.log(entry)))
            try:
                self.found[label] |= contestant.open(self.workload(batch))
                contestant.round(cohort_of(1, self.setting), self.setting.first_epochs)
                self.found[label]["first"] = time.perf_counter() - contestant.started
                self.running[label] = contestant
            except OutError as error:
                self.take_out(label, error)

    def reopen(self, batch: int) -> None:
        """Everybody begins anew with another batch size, and warms up."""
        for label, contestant in list(self.running.items()):
            try:
                self.found[label] |= contestant.open(self.workload(batch))
                contestant.round(cohort_of(1, self.setting), self.setting.first_epochs)
            except OutError as error:
                self.take_out(label, error)

    def run(self, batch: int) -> dict[str, Any]:
        """Rounds in turn, each time beginning with another contestant; what was measured, as plain values."""
        timed: dict[str, list[float]] = {label: [] for label in self.running}
        before, began = others_busy(), time.perf_counter()
        for number in range(2, self.setting.rounds + 2):
            say(f"{self.model}, batches of {batch}: round {number - 1} of {self.setting.rounds}")
            labels = list(self.running)
            first = number % max(len(labels), 1)
            for label in labels[first:] + labels[:first]:
                self.turn(label, number, timed[label])
        others = (others_busy() - before) / (time.perf_counter() - began)
        judged = {label: self.judged(label) for label in list(self.running)}
        contestants = [{**c, "seconds": timed.get(k, []), **judged.get(k, {})} for k, c in self.found.items()]
        rows = 600 * self.setting.cohort * self.setting.epochs
        facts = {"rows": rows, "operations": operations(self.model, batch) * rows, "others": others}
        facts |= {"data": Path(self.workload(batch).data).name, "contestants": contestants}
        return {**self.workload(batch)._asdict(), **self.setting._asdict(), **facts}

    def turn(self, label: str, number: int, seconds: list[float]) -> None:
        """One timed round of one contestant."""
        try:
            answer = self.running[label].round(cohort_of(number, self.setting), self.setting.epochs)
            seconds.append(answer["seconds"])
            self.found[label]["note"] = answer["note"]
        except OutError as error:
            self.take_out(label, error)

    def judged(self, label: str) -> dict[str, Any]:
        """How good the model has become."""
        try:
            return self.running[label].ask(do="judge")
        except OutError as error:
            self.take_out(label, error)
            return {}


def others_busy() -> float:
    """Seconds that cores have worked so far for anybody but this benchmark."""
    return machine_busy() - busy(os.getpid())


def measure(model: str, setting: Setting, given: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """One model with every batch size."""
    race = Race(model, setting, given, folder)
    first, *more = given.batches
    race.weigh(first, peers=model == given.models[0])  # their memory hardly depends on the model
    with ExitStack() as stack:
        race.start(first, stack)
        yield race.run(first)
        for contestant in race.found.values():
            contestant.pop("first", None)
            contestant.pop("peak", None)
        for batch in more:
            race.reopen(batch)
            yield race.run(batch)


def check(model: str, given: argparse.Namespace, folder: Path) -> str:
    """Everybody trains everybody in whole batches: no draw is left, so all must end at the same model. '' if they do."""
    setting = Setting(cohort=100, epochs=1, rounds=1, first_epochs=1)
    race = Race(model, setting, given, folder)
    ends: dict[str, float] = {}
    with ExitStack() as stack:
        race.start(600, stack)
        ends = {label: found["loss"] for label in list(race.running) if (found := race.judged(label))}
    for label, contestant in race.found.items():
        print(
            f"{label:32s} {ends[label]:.7f}"
            if label in ends
            else f"{label:32s} {contestant.get('out', 'has no model')}"
        )
    apart = max(ends.values(), default=0.0) - min(ends.values(), default=0.0)
    return (
        ""
        if apart <= ALIKE
        else f"the contestants' losses after one round are {apart:.1e} apart: they do not do the same work."
    )


SWEPT = 4  # clients, all of whom train one epoch a round
SWEEP_BATCH = 10
MORE = {"lenet5": (64,)}  # further batch sizes: that of the CIFAR-10 reproductions
SECONDS = {"shakespeare_lstm": 1.5, "stackoverflow_lstm": 1.5}  # of a round of the tuned loop; else `USUAL`
USUAL = 0.4


def synthetic(model: str, batch: int, steps: int, folder: Path) -> str:
    """Rows that the model can read, so many batches for each client; what they hold does not change the time of a step."""
    shape, outputs = PAPER_SIZES.get(model, ((64,), 10))
    n, stream = SWEPT * batch * steps, numpy_stream(1, "benchmark", model)
    labels = np.arange(outputs)
    if model.endswith("lstm"):
        x, test_x = stream.integers(1, outputs, (n, *shape)), np.ones((outputs, *shape), np.int64)
    else:
        x, test_x = stream.normal(size=(n, *shape)).astype(np.float32), np.zeros((outputs, *shape), np.float32)
    y = stream.permutation(np.arange(n) % outputs)  # every class that a test row has
    if model == "stackoverflow_lstm":  # an answer at every step
        y, test_x = stream.integers(1, outputs, (n, *shape)), test_x[:2]
        labels = np.full((2, *shape), outputs - 1)
    path = folder / f"{model}.rows.npz"
    np.savez(path, x_train=x, y_train=y, x_test=test_x, y_test=labels)
    return str(path)


def sweep(models: Sequence[str], rounds: int, folder: Path) -> list[dict[str, Any]]:
    """Every model of the registry: the fast engine beside the tuned loop, one small round in turn."""
    found: list[dict[str, Any]] = []
    names = ("fast", "tuned-1", "tuned-2")
    with ExitStack() as stack:
        running: dict[str, Running] = {}
        for model in models:
            say(f"every model: {model}")
            for name in names:
                if name not in running:
                    entry = Entry(name, sys.executable, "ours.py", name)
                    running[name] = stack.enter_context(Running(entry, folder / f"sweep-{name}.log"))
            for batch in (SWEEP_BATCH, *MORE.get(model, ())):
                try:
                    found.append({"model": model, **swept(model, batch, running, rounds, folder)})
                except OutError as error:
                    found.append({"model": model, "batch": batch, "out": str(error)})
                    running.clear()
                    break
    return found


def swept(model: str, batch: int, running: dict[str, Running], rounds: int, folder: Path) -> dict[str, Any]:
    """One model: seconds of each contestant's rounds. The tuned loop says how many steps make a round of the wanted length."""
    cohort, steps = list(range(SWEPT)), 3
    seconds: dict[str, list[float]] = {name: [] for name in running}
    trial = Workload(model, batch, synthetic(model, batch, steps, folder), SWEPT, SWEPT, 1)
    running["tuned-1"].open(trial)
    step = [running["tuned-1"].round(cohort, 1)["seconds"] for _ in range(2)][1] / (SWEPT * steps)
    steps = max(3, min(200, round(SECONDS.get(model, USUAL) / (SWEPT * step))))
    workload = trial._replace(data=synthetic(model, batch, steps, folder))
    for contestant in running.values():
        contestant.open(workload)
        contestant.round(cohort, 1)
    note = ""
    for _ in range(rounds):
        for name, contestant in running.items():
            answer = contestant.round(cohort, 1)
            seconds[name].append(answer["seconds"])
            note = answer["note"] if name == "fast" else note
    return {"batch": batch, "steps": steps, "note": note, "seconds": seconds}


def say(text: str) -> None:
    """What is being done, on stderr: the tables go to stdout."""
    print(f"{time.perf_counter() - BEGAN:6.0f} s {text}", file=sys.stderr, flush=True)


BEGAN = time.perf_counter()


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", choices=SETTINGS, default=list(SETTINGS), help="default: both")
    parser.add_argument("--batches", nargs="*", type=int, default=[10, 50], help="default: 10 50")
    parser.add_argument("--rounds", type=int, help="timed rounds of each (default: 5 with mlp1, 3 with cnn2)")
    parser.add_argument("--cohort", type=int, help="clients in a round (default: 10 with mlp1, 2 with cnn2)")
    parser.add_argument("--epochs", type=int, help="epochs of a client in a round (default: 5 with mlp1, 3 with cnn2)")
    parser.add_argument("--only", nargs="*", help="only contestants whose label holds one of these texts")
    parser.add_argument(
        "--sweep", nargs="*", choices=MODELS, default=list(MODELS), help="models of the sweep (default: all)"
    )
    parser.add_argument("--cores", type=int, default=2, help="cores that everybody may use (default: 2)")
    parser.add_argument("--peers", type=Path, default=PEERS, help=f"environments of the peers (default: {PEERS})")
    parser.add_argument(
        "--quick", action="store_true", help="a small version to see that all works: its figures mean little"
    )
    parser.add_argument("--check", action="store_true", help="only see that all contestants do the same work")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything measured to FILE")
    return parser.parse_args()


def settings(given: argparse.Namespace) -> dict[str, Setting]:
    """How each model is measured, as asked."""
    changes = {"cohort": given.cohort, "rounds": given.rounds, "epochs": given.epochs}
    if given.quick:
        changes = {"cohort": 2, "epochs": 1, "first_epochs": 1, "rounds": 2} | {k: v for k, v in changes.items() if v}
    changed = {key: value for key, value in changes.items() if value}
    return {model: SETTINGS[model]._replace(**changed) for model in given.models}


def main() -> None:
    """Measures, prints, writes."""
    given = arguments()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: given.cores])
    result: dict[str, Any] = {**describe(), "quick": given.quick, "cells": [], "sweep": []}
    with tempfile.TemporaryDirectory(prefix="fedatlas-benchmark-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        if given.check:
            sys.exit("\n".join(filter(None, [check(model, given, folder) for model in given.models])) or None)
        for model, setting in settings(given).items():
            result["cells"] += measure(model, setting, given, folder)
        if given.sweep:
            result["sweep"] = sweep(given.sweep, 2 if given.quick else 3, folder)
    result["minutes"] = (time.perf_counter() - BEGAN) / 60
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(tables(result))


if __name__ == "__main__":
    try:
        main()
    except FedatlasError as error:
        sys.exit(str(error))

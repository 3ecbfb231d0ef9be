"""Every algorithm on the same work: ``python benchmarks/algorithms.py [NAME ...] [--json FILE]``.

MLP1 on MNIST, ten clients with 600 rows each, all of them in every round, batches of 10; nothing is evaluated. For each
algorithm the rate at which it does its own operations (C13) beside FedAvg's, and its time beside the same
algorithm's by ``plan = "tuned"`` in one process with two threads. Medians of rounds taken in turn; ratios within one run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from fedatlas.algorithms import ALGORITHMS
from fedatlas.config import parse
from fedatlas.course.plan import resolve_plan
from fedatlas.engine.executors import make_executor
from fedatlas.errors import FedatlasError
from fedatlas.federation.client_states import PartyState
from fedatlas.federation.in_process import InProcess
from fedatlas.federation.start import RoundStart
from fedatlas.machine import cores, describe
from fedatlas.rounds import federated
from fedatlas.setup.assembly import all_clients, first_server, set_up
from fedatlas.setup.cohort import draw_round
from fedatlas.setup.refusals import checked

WANTED = {"share of FedAvg's rate": 0.8, "x tuned": 2.0}
LESS = {"fedseq": {"pretrain_epochs": 1}, "fedseq_inter": {"pretrain_epochs": 1}}  # a set-up is not what is measured
BASELINES = ("centralised", "local_only")
TUNED = {"plan": "tuned", "workers": 1}


class Contestant:
    """An algorithm under a plan, ready for its next round."""

    def __init__(self, name: str, engine: dict[str, Any], epochs: int) -> None:
        tables = {
            "data": {"name": "mnist", "limit": 6000},
            "partition": {"name": "iid", "clients": 10},
            "model": {"name": "mlp1"},
            "algorithm": {"name": name, **LESS.get(name, {})},
            "local": {"batch_size": 10, "epochs": epochs, "lr": 0.01},
            "engine": engine,
        }
        if "local.epochs" in ALGORITHMS[name]().fixes:  # FedSGD: one whole batch an epoch is what it is
            tables["local"] = {"lr": 0.01}
        self.setup = set_up(checked(parse(tables)))
        plan = resolve_plan(self.setup)
        self.step, self.threads = plan.step, cores() if engine else 1
        self.executor = make_executor(plan, self.setup.bench, self.setup.sizes.values())
        self.host = InProcess(self.setup.bench, self.executor, PartyState(), self.setup.sizes, 1)
        self.server, self.number = first_server(self.setup), 0
        self.seconds: list[float] = []
        if self.setup.algorithm.prepare is not None:
            before = self.setup.algorithm.prepare(self.setup.algorithm, self.server, all_clients(self.setup))
            self.server = self.host.drive(before, RoundStart(0, 0.01))

    def round(self) -> None:
        """The next round; the first derives the step and is forgotten."""
        self.number += 1
        algorithm = self.setup.algorithm
        groups = algorithm.groups(self.server) if algorithm.groups is not None else None
        drawn = draw_round(self.setup.config, self.setup.sizes, 1, self.number, groups).round
        torch.set_num_threads(self.threads)
        started = time.perf_counter()
        self.server = self.host.drive(
            (algorithm.rounds or federated)(algorithm, self.server, drawn), RoundStart(self.number, 0.01)
        )
        if self.number > 1:
            self.seconds.append(time.perf_counter() - started)

    def median(self) -> float:
        """Seconds of a round."""
        return statistics.median(self.seconds)

    def rate(self) -> float:
        """Operations a second of its own work."""
        return self.host.view.passes * self.setup.first.flops / self.median()


def measure(names: list[str], rounds: int, epochs: int) -> dict[str, dict[str, Any]]:
    """The table: a row an algorithm. FedAvg runs beside each of them, so that what disturbs one disturbs both."""
    out = {}
    for name in names:
        try:
            three = [Contestant(name, {}, epochs), Contestant(name, TUNED, epochs), Contestant("fedavg", {}, epochs)]
        except FedatlasError as error:
            out[name] = {"note": str(error)}
            continue
        for _ in range(rounds + 1):
            for one in three:
                one.round()
        ours, tuned, fedavg = three
        out[name] = {
            "seconds": ours.median(),
            "share of FedAvg's rate": ours.rate() / fedavg.rate(),
            "x tuned": tuned.median() / ours.median(),
            "step": ours.step,
            "passes of an example": ours.host.view.passes / max(ours.host.view.examples, 1),
        }
        for one in three:
            one.executor.close()
            one.host.states.close()
        print(f"{name} done", flush=True)
    return out


def table(found: dict[str, dict[str, Any]]) -> str:
    """The rows as Markdown, with what misses a target marked."""
    lines = ["| algorithm | round, s | passes an example | share of FedAvg's rate | x tuned, two threads | step |"]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    for name, row in found.items():
        if "note" in row:
            lines.append(f"| {name} | {row['note']} | | | | |")
            continue
        cells = [f"{row[key]:.2f}{'' if row[key] >= least else ' (missed)'}" for key, least in WANTED.items()]
        passes = f"{row['passes of an example']:.1f}"
        lines.append(f"| {name} | {row['seconds']:.3f} | {passes} | {cells[0]} | {cells[1]} | {row['step']} |")
    return "\n".join(lines)


def main() -> None:
    """Measures, prints, writes down."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help="algorithms; all but the baselines by default")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    names = given.names or [name for name in sorted(ALGORITHMS) if name not in BASELINES]
    found = measure(names, given.rounds, given.epochs)
    print(table(found))
    if given.json is not None:
        given.json.write_text(json.dumps({**describe(), "algorithms": found}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

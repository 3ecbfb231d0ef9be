"""Contestants that are fedatlas itself, set up as `fedatlas run` does it, from a configuration; nothing is evaluated.

``python ours.py PIPE NAME``; NAME is a key of `ENGINES`, or ``tuned-1``, ``tuned-2``: the tuned loop on a model of the registry.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from loops import TunedLoop
from torch import Tensor, nn
from workload import Unavailable, Workload, serve

from fedatlas.algorithm import Budget, Round
from fedatlas.config import ExperimentConfig, parse
from fedatlas.course.plan import resolve_plan
from fedatlas.engine.executors import make_executor
from fedatlas.federation.client_states import PartyState
from fedatlas.federation.in_process import InProcess, server_facts
from fedatlas.federation.start import RoundStart
from fedatlas.models import Dropout
from fedatlas.rounds import federated
from fedatlas.setup.assembly import Setup, set_up
from fedatlas.setup.refusals import checked

ENGINES: dict[str, dict[str, Any]] = {
    "loop": {"name": "loop"},
    "fast": {},
    "program": {"plan": "program", "workers": 1},
    "stacked": {"plan": "stacked", "workers": 1},
    "native": {"plan": "native"},
    "bfloat16": {"precision": "bfloat16"},
    "cuda": {"device": "cuda"},
}


def configuration(workload: Workload, engine: dict[str, Any]) -> ExperimentConfig:
    """The experiment file of a workload: real MNIST, or the rows of a .npz for the models that read other shapes."""
    own = workload.data.endswith(".rows.npz")
    return parse(
        {
            "seed": workload.seed,
            "data": {"name": "file", "path": workload.data} if own else {"name": "mnist"},
            "partition": {"name": "iid", "clients": workload.clients},
            "cohort": {"size": workload.cohort},
            "model": {"name": workload.model},
            "local": {"epochs": workload.epochs, "batch_size": workload.batch, "lr": workload.lr},
            "engine": engine,
        }
    )


class Ours:
    """One of our engines."""

    def __init__(self, workload: Workload, name: str) -> None:
        setup = set_up(checked(configuration(workload, ENGINES[name])))
        plan = resolve_plan(setup)
        if name == "stacked" and plan.step != "stacked":
            raise Unavailable(f"the plan 'stacked' came out as '{plan.step}': {plan.reason}")
        self.setup, self.plan, self.lr, self.number = setup, plan, workload.lr, 0
        self.executor = make_executor(plan, setup.bench, setup.sizes.values())
        self.host = InProcess(setup.bench, self.executor, PartyState(), setup.sizes, workload.seed)
        facts = server_facts(setup.bench, setup.sizes)
        self.server = dict(setup.algorithm.server_init({"global": setup.first.params}, facts))
        if setup.first.buffers:
            self.server["buffers"] = setup.first.buffers

    @property
    def note(self) -> str:
        """The plan, and what the steps turned out to be."""
        runner = getattr(self.executor, "run_job", None) or getattr(self.executor, "runner", None)
        steps = [note for note in getattr(runner, "notes", list)() if not note.endswith("a rare batch size")]
        return "; ".join([f"{self.plan.step}, {self.plan.workers} at work", *steps])

    def round(self, cohort: Sequence[int], epochs: int) -> None:
        setup, sizes = self.setup, {k: self.setup.sizes[k] for k in cohort}
        budgets = {k: Budget(epochs=epochs) for k in cohort}
        self.number += 1
        K, n = self.host.server.of.K, self.host.server.of.n
        given = Round(self.number, tuple(cohort), K, n, sizes, epochs * sum(sizes.values()), budgets)
        self.server = dict(
            self.host.drive(federated(setup.algorithm, self.server, given), RoundStart(self.number, self.lr))
        )

    def parameters(self) -> list[Tensor]:
        return list(self.server["model"].values())

    def close(self) -> None:
        self.executor.close()


class RegistryLoop(TunedLoop):
    """The tuned loop on the rows, the network and the loss that our engines get."""

    def open(self) -> None:
        setup = set_up(checked(configuration(self.workload, {})))
        self.model, self.loss = with_torch_dropout(setup.first.network.module).train(), setup.loss.mean
        self.rows = rows_of(setup)


def rows_of(setup: Setup) -> Any:
    """client -> (inputs, targets)."""
    held = [setup.bench.rows(k) for k in setup.sizes]
    return lambda k: (held[k].x, held[k].y)


def with_torch_dropout(module: nn.Module) -> nn.Module:
    """Our dropout layers, whose masks are inputs, made torch's own again: that is what a loop would use."""
    for path, layer in list(module.named_modules()):
        if isinstance(layer, Dropout):
            module.set_submodule(path, nn.Dropout2d(layer.p) if layer.channelwise else nn.Dropout(layer.p))
    return module


def make(workload: Workload, name: str) -> Ours | RegistryLoop:
    """The contestant of that name."""
    if name in ENGINES:
        return Ours(workload, name)
    return RegistryLoop(workload, int(name.removeprefix("tuned-")))


if __name__ == "__main__":
    serve(lambda workload: make(workload, sys.argv[2]))

"""The bench of a run on a node: rebuilt from the run's plain configuration, and compared with the one where the run began."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch

from fedatlas.config import parse
from fedatlas.data.cells import Reading, now, read_as
from fedatlas.engine.executors import Plan
from fedatlas.errors import ConfigError
from fedatlas.record.fingerprint import fingerprint, of_rows
from fedatlas.setup.assembly import Setup, set_up
from fedatlas.setup.checked import Checked
from fedatlas.setup.refusals import checked

INSTRUCTIONS, PLAN = "processor's instructions", "plan"


class BenchOrder(NamedTuple):
    """A run as its nodes are told of it."""

    config: Mapping[str, Any]  # as plain values, without the cluster
    plan: Plan
    marks: Mapping[str, str]  # `marks` where the run began
    reading: Reading  # rules by which its files are read

    @classmethod
    def of(cls, setup: Setup, plan: Plan) -> BenchOrder:
        """Return the order of a run."""
        config = setup.config.plain()
        config["engine"].pop("cluster", None)
        return cls(config, plan, marks(setup, plan), now())

    def checked(self) -> Checked:
        """Return the experiment."""
        return checked(parse(self.config))


def marks(setup: Setup, plan: Plan) -> dict[str, str]:
    """Return fingerprints of all that decides the bits of a client's work; each key names its part for a sentence."""
    return {
        INSTRUCTIONS: torch.backends.cpu.get_cpu_capability(),
        "rows": fingerprint(of_rows(setup)),
        "initial model": fingerprint(parameters(setup)),
        PLAN: f"{plan.engine} {plan.step} {plan.precision}",
    }


def parameters(setup: Setup) -> Iterator[Any]:
    """Yield the names and values of every network's parameters and buffers."""
    for name, one in setup.networks.items():
        for tree in (one.params, one.buffers):
            for key, x in tree.items():
                yield from (f"{name} {key}", x)


def rebuilt(order: BenchOrder, whole: Checked) -> Setup:
    """Return the federation of an order, from this machine's data; ConfigError if it is another one than where the run began."""
    with read_as(order.reading):
        setup = set_up(whole)
    found = marks(setup, order.plan)
    for part, mark in order.marks.items():
        if found[part] != mark:
            shown = f" ({found[part]}, not {mark})" if part in (INSTRUCTIONS, PLAN) else ""
            raise ConfigError(f"its {part} {'differ' if part.endswith('s') else 'differs'}{shown}.")
    return setup

"""Works on the second device for the tests, in a process of its own: a process whose autograd has seen a device cannot be forked.

second_device.py starts it and asks. A question is a line of JSON, [function, arguments ...], and so is the answer: {"answer": ...} or
{"error": traceback}.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import torch

import elsewhere  # before anything else of torch
from fedatlas import run
from fedatlas.algorithm import Facts, Message, State
from fedatlas.algorithms import ALGORITHMS
from fedatlas.config import read
from fedatlas.course import rounds as running
from fedatlas.course.plan import resolve_plan
from fedatlas.engine.executors import Plan
from fedatlas.engine.fast import FastRunner
from fedatlas.engine.loop import SerialExecutor
from fedatlas.federation.in_process import InProcess
from fedatlas.setup.assembly import Setup
from fedatlas.tree import Tree
from federation import Federation, brief, fast, federation, play, same, stacked, states, tuned

ENGINES = {"loop": SerialExecutor, "fast": fast, "stacked": stacked, "tuned": tuned}


def law(name: str, engine: str) -> dict[str, Any]:
    """A federation here and there: what is not the same."""
    return differences(federation(brief(name)), engine)


def constant(engine: str) -> dict[str, Any]:
    """The same with a direction that makes a constant of its own without saying where."""

    def direction(g: Tree, w: Tree, message: Message, client: State, facts: Facts) -> Tree:
        return g.map(lambda x: x * torch.linspace(0.5, 1.5, x.shape[-1], dtype=x.dtype))

    made = ALGORITHMS["fedavg"]()
    task = made.tasks["train"]._replace(direction=direction)
    return differences(federation(made._replace(tasks={"train": task})), engine)


def differences(fed: Federation, engine: str) -> dict[str, Any]:
    """Whether server and states have the same bits, and what the steps turned out to be."""
    make = ENGINES[engine]
    here, host = play(fed, make=make)
    there, other = play(fed, make=lambda bench: make(bench.on(torch.device(elsewhere.NAME))))
    alike = {"server": same(here, there), "states": same(states(host), states(other))}
    return {**alike, "steps": [steps_of(host), steps_of(other)]}


def steps_of(host: InProcess) -> list[str]:
    runner = host.executor.run_job
    return runner.notes() if isinstance(runner, FastRunner) else []


def run_there(overrides: list[str], out: str) -> str:
    """A whole run with its local work and its evaluation on the second device; the device of its plan."""

    def planned(setup: Setup) -> Plan:
        return resolve_plan(setup)._replace(device=elsewhere.NAME)

    running.resolve_plan = planned
    device: str = run(read(None, overrides), out=out, baselines=False).summary["plan"]["device"]
    return device


def main() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        function, *arguments = json.loads(line)
        try:
            said = {"answer": globals()[function](*arguments)}
        except Exception:  # noqa: BLE001  # whatever it is, the test that asked fails with it
            said = {"error": traceback.format_exc()}
        answers.write(json.dumps(said) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()

"""Chooses the plan of a run from its configuration, its model and the machine."""

from __future__ import annotations

from fedatlas.engine.plan import Plan
from fedatlas.experiment import machine
from fedatlas.experiment.setup import Setup


def resolve_plan(setup: Setup) -> Plan:
    """The plan, before round 1."""
    engine = setup.config.engine
    device = machine.device(engine.device)
    if engine.name == "loop":
        return Plan("loop", "loop", 1, 1, 1, engine.precision, device, "the oracle: one client after another")
    return Plan("loop", "loop", 1, 1, 1, engine.precision, device, "the oracle: one client after another")

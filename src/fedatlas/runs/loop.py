"""One run: from a configuration to a run directory, resumable at every round without changing a bit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from fedatlas import machine
from fedatlas.config import ExperimentConfig, bytes_of
from fedatlas.course.plan import resolve_plan
from fedatlas.course.progress import Progress, Row, Run, Silent, stopped
from fedatlas.course.rounds import Simulation
from fedatlas.course.rounds_end import write_end
from fedatlas.engine.executors import Plan, restore
from fedatlas.errors import DivergedError
from fedatlas.federation.client_states import ClientStates, PartyState
from fedatlas.federation.host import Host
from fedatlas.federation.link import Observer
from fedatlas.record.checkpoint import Checkpoints
from fedatlas.record.initial_files import own_module, restore_derived, same_constants, same_plugins, write_beginning
from fedatlas.record.run_folder import RunFolder, Start
from fedatlas.setup.assembly import Setup, set_up, state_notices

ANEW = "was lost or altered; it follows from configuration and data, and is written anew."
NOTED = 0.5  # seconds of an evaluation from where on the one at the end is announced


class Parties(NamedTuple):
    """Those of a run that are elsewhere: how they train, and what speaks for them here."""

    plan: Plan
    host: Host


@machine.one_thread_an_operator()
def run_one(
    config: ExperimentConfig,
    path: Path,
    *,
    start: Start = "new",
    module: nn.Module | None = None,
    progress: Progress | None = None,
    options: Mapping[str, Any] | None = None,
    observers: Iterable[Observer] = (),
    intervals: bool = True,
) -> Run:
    """One seed of an experiment: new, again from its beginning after a stop before the first checkpoint, or from its last checkpoint."""
    progress, resume = progress or Silent(), start == "resume"
    own_module(path, module, resume)
    if resume:
        same_plugins(path)
        same_constants(path)
    setup = set_up(config, config.seed, module)
    folder = RunFolder.open(path) if resume else RunFolder.create(path, setup.config, options, again=start == "again")
    return Run(path, run_rounds(setup, folder, progress, start, observers, intervals))


def run_rounds(
    setup: Setup,
    folder: RunFolder,
    progress: Progress,
    start: Start,
    observers: Iterable[Observer] = (),
    intervals: bool = True,
    parties: Parties | None = None,
) -> dict[str, Any]:
    """All rounds that are left of a run, and its end, with ``intervals`` of its figures; returns the summary."""
    config, resume, early = setup.config, start == "resume", ""
    checkpoints = Checkpoints(folder.path / "checkpoint", config.hash(), config.checkpoint.keep)
    party = PartyState(ClientStates(bytes_of(config.engine.state_memory)))
    restored = checkpoints.load(party) if resume else None
    plan = restore(restored.extra["plan"]) if restored else parties.plan if parties else resolve_plan(setup)
    host = parties.host if parties else None
    simulation = Simulation(setup, plan, party, checkpoints, folder, observers, host)
    simulation.evaluator.with_intervals = intervals
    try:
        for notice in setup.notices:
            progress.said(notice)
        if restored:
            for refused in restored.refused:
                progress.said(f"{refused} The checkpoint of round {restored.run.round} is used.")
            simulation.resume(restored)
            for name in restore_derived(setup, folder):
                progress.said(f"{name} {ANEW}")
            if folder.config().rounds != config.rounds:
                folder.rewrite(config)
        else:
            write_beginning(setup, folder)
        progress.started(setup, folder.path, plan, simulation.number)
        if not resume:
            if setup.algorithm.prepare is not None:
                progress.said(f"Set-up of '{setup.algorithm.name}' with all clients, before round 1 ...")
            first = simulation.begin()
            for notice in state_notices(setup, simulation.server):
                progress.said(notice)
            progress.row(first)
        rows = folder.rows()
        if simulation.number < config.rounds and not stopped(config, rows):
            folder.reopen()
        try:
            go_on(simulation, config, rows, progress)
        except DivergedError as error:
            summary = write_end(simulation, folder, rows, str(error))
            if not setup.poisonings:
                raise
            progress.said(f"{error} That is what the attackers did: the outcome stands in the summary.")
            return summary
        simulation.save()
        if simulation.number < config.rounds:
            early = f"after round {simulation.number} of {config.rounds}: {stopped(config, rows)} ([stop])."
            progress.said(f"Stopped {early}")
        if rows[-1]["seconds_by_phase"].get("evaluate", 0.0) > NOTED:
            progress.said("The last models are judged, with intervals ...")
        summary = write_end(simulation, folder, rows, early=early)
    finally:
        simulation.close()
    return summary


def go_on(simulation: Simulation, config: ExperimentConfig, rows: list[Row], progress: Progress) -> None:
    """The rounds that are left, up to the last one or until ``[stop]`` says so."""
    while simulation.number < config.rounds and not stopped(config, rows):
        rows.append(simulation.step())
        tell(progress, simulation, rows[-1])


def tell(progress: Progress, simulation: Simulation, row: Row) -> None:
    """What a round came to, and what the recording of views has to say."""
    progress.row(row)
    if why := row.get("unchanged"):
        progress.said(f"Round {row['round']} changed nothing: {why}.")
    for notice in simulation.noticed():
        progress.said(notice)

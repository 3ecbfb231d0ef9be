"""One run: from a configuration to a run directory, resumable at every round without changing a bit."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn

from fedatlas.algorithm import SERVER, RoundGenerator, State, Work
from fedatlas.engine.client_state import ClientStates
from fedatlas.engine.device import find_device
from fedatlas.engine.executors import Plan, make_executor, restore, steps_of
from fedatlas.engine.host import Cost, Host
from fedatlas.errors import CheckpointError, DivergedError
from fedatlas.experiment import machine, plugins
from fedatlas.experiment.beginning import own_module, restore_derived, write_beginning
from fedatlas.experiment.checkpoint import Checkpoints, Restored
from fedatlas.experiment.cohort import Drawn, draw_round, learning_rate
from fedatlas.experiment.config import ExperimentConfig, bytes_of
from fedatlas.experiment.drift import Drift
from fedatlas.experiment.evaluate import Evaluator, Trained
from fedatlas.experiment.fingerprint import fingerprint
from fedatlas.experiment.personal import models_of, used_by
from fedatlas.experiment.record import JUDGED, SUMMARY, RunFolder, Start, file_of
from fedatlas.experiment.resolve import resolve_plan
from fedatlas.experiment.setup import Setup, all_clients, first_server, set_up, test_rows
from fedatlas.experiment.summary import planted_groups, summarise
from fedatlas.metrics.clusters import cluster_figures
from fedatlas.models import flops
from fedatlas.rounds import federated

Row = dict[str, Any]
NOTED = 0.5  # seconds of an evaluation from where on the one at the end is announced
LOST = (
    "The clients' own models of that round are gone (checkpoint.every = 1 keeps them): there are no figures of theirs."
)


class Progress(Protocol):
    """Is told what happens, for people to watch."""

    def started(self, setup: Setup, folder: Path, plan: Plan, first_round: int) -> None: ...
    def said(self, notice: str) -> None: ...
    def row(self, row: Row) -> None: ...
    def finished(self, folder: Path, summary: Mapping[str, Any]) -> None: ...
    def beside(self, name: str) -> AbstractContextManager[Progress]: ...


class Silent:
    """Tells nobody; knows which folder it is about."""

    folder: Path | None = None

    def started(self, setup: Setup, folder: Path, plan: Plan, first_round: int) -> None:  # noqa: ARG002
        """Remembers the folder."""
        self.folder = folder

    def said(self, notice: str) -> None:
        """Nothing."""

    def row(self, row: Row) -> None:
        """Nothing."""

    def finished(self, folder: Path, summary: Mapping[str, Any]) -> None:
        """Nothing."""

    def beside(self, name: str) -> AbstractContextManager[Progress]:  # noqa: ARG002
        """Of a baseline, too, nothing."""
        return contextlib.nullcontext(self)

    def close(self) -> None:
        """Nothing."""


class Run(NamedTuple):
    """A finished run."""

    path: Path
    summary: Mapping[str, Any]


class Simulation:
    """The state of a run between rounds, and what one round does to it."""

    def __init__(
        self, setup: Setup, plan: Plan, states: ClientStates, checkpoints: Checkpoints, folder: RunFolder
    ) -> None:
        self.setup, self.plan, self.states, self.folder, self.checkpoints = setup, plan, states, folder, checkpoints
        self.executor = make_executor(plan, setup.bench, setup.sizes.values())
        self.drift = Drift(setup) if setup.config.evaluation.drift else None
        watch = self.drift.see if self.drift else None
        self.host = Host(setup.bench, self.executor, states, setup.sizes, setup.seed, watch)
        self.evaluator = Evaluator(setup, plan.threads, find_device(plan.device))
        self.data = fingerprint(setup)
        self.server: State = {}
        self.began: State = {}  # the server as the round found it
        self.number = 0
        self.saved = -1  # round of the last checkpoint
        self.metrics_bytes = 0

    def begin(self) -> Row:
        """Round 0: the initial model, evaluated (ALGORITHMS.md C4)."""
        started = time.perf_counter()
        self.server = first_server(self.setup, self.host)
        algorithm, cost = self.setup.algorithm, self.setup.before
        if algorithm.prepare is not None:
            before = algorithm.prepare(algorithm, self.server, all_clients(self.setup))
            self.server = self._drive(before, 0, self.setup.config.local.lr)
            up, down = (cost.bytes_up + self.host.cost.bytes_up, cost.bytes_down + self.host.cost.bytes_down)
            cost = self.host.cost._replace(bytes_up=up, bytes_down=down)
        return self._close(0, None, cost, math.nan, started)

    def resume(self, restored: Restored) -> None:
        """Continues from a checkpoint: rows after it are dropped and made again. CheckpointError for other data or rows."""
        if restored.extra.get("data", self.data) != self.data:
            raise CheckpointError(
                f"the data are not those that '{self.folder.path}' began with (rows, labels or who holds them changed): "
                "put the original data back, or start a new run."
            )
        self.server, self.number, self.saved = restored.server, restored.round, restored.round
        self.folder.truncate(restored.metrics_bytes, restored.extra.get("rows_sha256"))
        self.metrics_bytes = restored.metrics_bytes

    def step(self) -> Row:
        """One round: draw, drive, evaluate, record, checkpoint."""
        started = time.perf_counter()
        setup, number = self.setup, self.number + 1
        local = setup.config.local
        lr = learning_rate(local.schedule, local.lr, number, setup.config.rounds)
        groups = setup.algorithm.groups(self.server) if setup.algorithm.groups is not None else None
        drawn = draw_round(setup.config, setup.sizes, setup.seed, number, groups)
        self.began = self.server
        try:
            if self.drift:
                self.drift.begin(self.server.get("model", {}))
            rounds = setup.algorithm.rounds or federated
            self.server = self._drive(rounds(setup.algorithm, self.server, drawn.round), number, lr)
            return self._close(number, drawn, self.host.cost, lr, started)
        except DivergedError:
            self.server = self.began  # the last one that was finite is what is kept
            raise

    def _drive(self, generator: RoundGenerator, number: int, lr: float) -> State:
        try:
            return self.host.drive(generator, number, lr)
        except DivergedError as error:
            raise self._diverged(number, f"{error}{self.setup.loss.domain}; lower local.lr (now {lr:g})") from None

    def _diverged(self, number: int, why: str) -> DivergedError:
        if number == 0:
            return DivergedError(f"the run diverged before round 1: {why}.")
        kept = f"Everything up to round {self.number} is kept in '{self.folder.path}'."
        return DivergedError(f"the run diverged in round {number}: {why}. {kept}")

    def _close(self, number: int, drawn: Drawn | None, cost: Cost, lr: float, started: float) -> Row:
        """Evaluates, appends the row, writes the checkpoint."""
        config = self.setup.config
        last = number == config.rounds
        evaluated = number == 0 or last or number % config.evaluation.every == 0
        before = time.perf_counter()
        quality = self.quality() if evaluated else self.evaluator.blank()
        figures = dict(self.setup.algorithm.figures(self.server)) if self.setup.algorithm.figures is not None else None
        self.check_finite(number, {**quality, "figures": figures})
        phases = {**cost.seconds, "evaluate": time.perf_counter() - before}
        row = {"round": number, **quality, **self._facts(drawn, cost, lr)}
        row |= {"seconds": time.perf_counter() - started, "seconds_by_phase": phases}
        row |= {"bytes_up": cost.bytes_up, "bytes_down": cost.bytes_down, "bytes_peer": cost.bytes_peer}
        row |= {"flops": self._flops(cost), "peak_memory_bytes": machine.peak_memory()}
        if figures is not None:
            row["figures"] = figures
        if self.drift:
            row["drift_correlation"] = self.drift.figure() if evaluated else None
        self.metrics_bytes = self.folder.append(row)
        self.number = number
        if last or number % config.checkpoint.every == 0:
            self.save()
        return row

    def _flops(self, cost: Cost) -> int:
        """Operations of a round, each party's passes times its network's; where shapes change, of the model it began with."""
        setup = self.setup
        if not any(task.reshapes for task in setup.algorithm.tasks.values()):
            return int(sum(passes * setup.built(name).flops for name, passes in cost.passes_of.items()))
        params = self.began.get("model", setup.params)
        x = setup.dataset.inputs(setup.dataset.x_train[:2], next(iter(params.values())).dtype)
        return int(cost.passes * flops(setup.network.module, x, params))

    def _facts(self, drawn: Drawn | None, cost: Cost, lr: float) -> Row:
        work = self.host.work if drawn else {}
        done = {k: w for k, w in work.items() if w.steps and k != SERVER}
        total = sum(w.examples for w in done.values())
        loss = sum(w.loss * w.examples for w in done.values()) / total if total else None
        clients, weights = took_part(drawn, work), cost.weights
        if weights and not (drawn and drawn.round.units):  # who worked and was then left out of the mean had none
            weights = {k: weights.get(k, 0.0) for k in clients}
        return {
            "train_loss": loss,
            "clients": clients,
            "selected": list(drawn.selected) if drawn else [],
            "weights": [weight for k, weight in weights.items() if k >= 0],
            "steps": [work[k].steps for k in sorted(work) if k != SERVER],
            "lr": None if math.isnan(lr) else lr,
        }

    def check_finite(self, number: int, quality: Row) -> None:
        """A server's step after which the model, or its loss, is not a number ends the run there."""
        trees = self.setup.algorithm.models(self.server).values()
        finite = all(bool(torch.isfinite(x).all()) for params in trees for x in params.values())
        if not finite or not all(map(math.isfinite, floats_in(quality))):
            after = " after the server's step" if number else ""
            advice = "lower local.lr or the server's rate" if number else "look at model.init and the data"
            raise self._diverged(
                number, f"the server's model or its loss is not finite{after}{self.setup.loss.domain}; {advice}"
            )

    def save(self) -> None:
        """A checkpoint of this round, unless there is one."""
        if self.saved != self.number:
            extra = {"plan": self.plan.plain(), "data": self.data, "rows_sha256": self.folder.rows_sha256()}
            self.checkpoints.save(self.number, self.server, self.states, self.metrics_bytes, extra)
            self.saved = self.number

    def models(self) -> dict[str, Trained]:
        """name -> what is evaluated and saved."""
        return models_of(self.setup.algorithm, self.server, self.setup.several)

    def client_model(self, client: int) -> Trained:
        """What client ``client`` would use: its personal model where the algorithm has such, else that of its architecture."""
        own, facts = self.setup.bench.architecture(client), self.host.facts(client, self.number, 0.0)
        state_of = lambda message: self.host.state_of(client, message, facts)  # noqa: E731
        return used_by(client, self.setup.algorithm, self.server, state_of, self.setup.several, own)

    def quality(self) -> Row:
        """The quality fields of a row."""
        every = list(self.models().items())
        personal = self.setup.personal
        row = self.evaluator.personal_row(self.client_model) if personal else self.evaluator.row(every[0][1])
        others = every if self.setup.several else every[1:]
        if others:
            row["models"] = {name: self.evaluator.plain_row(model) for name, model in others}
        return row

    def go_back(self) -> bool:
        """After a divergence: the clients' states of the last good round from its checkpoint; False where there is none."""
        if self.setup.algorithm.personal is None or self.setup.algorithm.client_init is None:
            return True  # nothing that is told of the run depends on them
        if self.saved != self.number:
            return False
        self.states.clear()
        self.checkpoints.load(self.states)
        return True

    def close(self) -> None:
        """Ends the workers and removes their scratch files."""
        self.executor.close()
        self.states.close()


def floats_in(value: Any) -> Iterator[float]:
    """All floats of nested dicts and lists: what JSON would hold."""
    if isinstance(value, float):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from floats_in(item)


@machine.one_thread_an_operator()
def run_one(
    config: ExperimentConfig,
    path: Path,
    *,
    start: Start = "new",
    module: nn.Module | None = None,
    progress: Progress | None = None,
    options: Mapping[str, Any] | None = None,
) -> Run:
    """One seed of an experiment: new, again from its beginning after a stop before the first checkpoint, or from its last checkpoint."""
    progress, resume = progress or Silent(), start == "resume"
    own_module(path, module, resume)
    if resume:
        plugins.check_unchanged(path)
    setup = set_up(config, config.seed, module)
    folder = RunFolder.open(path) if resume else RunFolder.create(path, setup.config, options, again=start == "again")
    return Run(path, run_rounds(setup, folder, progress, start))


def run_rounds(setup: Setup, folder: RunFolder, progress: Progress, start: Start) -> dict[str, Any]:
    """All rounds that are left of a run, and its end; returns the summary."""
    config, resume = setup.config, start == "resume"
    checkpoints = Checkpoints(folder.path / "checkpoint", config.hash(), config.checkpoint.keep)
    states = ClientStates(bytes_of(config.engine.state_memory))
    restored = checkpoints.load(states) if resume else None
    plan = restore(restored.extra["plan"]) if restored else resolve_plan(setup)
    simulation = Simulation(setup, plan, states, checkpoints, folder)
    try:
        for notice in setup.notices:
            progress.said(notice)
        if restored:
            for refused in restored.refused:
                progress.said(f"{refused} The checkpoint of round {restored.round} is used.")
            simulation.resume(restored)
            for name in restore_derived(setup, folder):
                progress.said(
                    f"{name} was lost or altered; it follows from configuration and data, and is written anew."
                )
            if folder.config().rounds != config.rounds:
                folder.rewrite(config)
        else:
            write_beginning(setup, folder)
        progress.started(setup, folder.path, plan, simulation.number)
        if not resume:
            if setup.algorithm.prepare is not None:
                progress.said(f"Set-up of '{setup.algorithm.name}' with all clients, before round 1 ...")
            first = simulation.begin()
            for notice in simulation.server.get("notices", ()):
                progress.said(notice)
            progress.row(first)
        rows = folder.rows()
        if simulation.number < config.rounds and not stopped(config, rows):
            folder.reopen()
        try:
            while simulation.number < config.rounds and not stopped(config, rows):
                rows.append(simulation.step())
                progress.row(rows[-1])
        except DivergedError as error:
            write_end(simulation, folder, rows, str(error))
            raise
        simulation.save()
        early = ""
        if simulation.number < config.rounds:
            early = f"after round {simulation.number} of {config.rounds}: {stopped(config, rows)} ([stop])."
            progress.said(f"Stopped {early}")
        if rows[-1]["seconds_by_phase"].get("evaluate", 0.0) > NOTED:
            progress.said("The last models are judged, with intervals ...")
        summary = write_end(simulation, folder, rows, early=early)
    finally:
        simulation.close()
    return summary


def took_part(drawn: Drawn | None, work: Mapping[int, Work]) -> list[Any]:
    """The clients that returned, ascending; for chains a list of lists, superclients ascending."""
    if drawn is not None and drawn.round.units:
        return [list(unit.members) for unit in sorted(drawn.round.units) if unit.members]
    return [k for k in sorted(work) if k >= 0]  # the union of all rows and the server are no clients


def stopped(config: ExperimentConfig, rows: list[Row]) -> str:
    """Why ``[stop]`` ends the run: a level reached, or no better figure for ``patience`` rounds; else nothing."""
    if config.stop is None or not rows:
        return ""
    key, sign = ("rmse", -1.0) if "rmse" in rows[0] else ("accuracy", 1.0)
    seen = [(r["round"], sign * r[key]) for r in rows if r.get(key) is not None]
    best_round, _ = max(seen, key=lambda pair: (pair[1], -pair[0]))
    if config.stop.accuracy is not None and key == "accuracy" and seen[-1][1] >= config.stop.accuracy:
        return f"accuracy {seen[-1][1]:.4f} has reached {config.stop.accuracy:g}"
    if config.stop.patience is not None and seen[-1][0] - best_round >= config.stop.patience:
        return f"no better {key} since round {best_round}"
    return ""


def write_end(
    simulation: Simulation, folder: RunFolder, rows: list[Row], diverged: str = "", early: str = ""
) -> dict[str, Any]:
    """The models and the summary; of a run that ``diverged``, those before it did, and why; why one ended ``early``."""
    models, files = simulation.models(), dict[str, str]()
    for name, model in models.items():
        only = not model.architecture and name == next(iter(models))
        network, file = simulation.setup.built(model.architecture).network, file_of("model", "" if only else name)
        files[file] = folder.save_model(file, network.state_dict(model.params, model.buffers))
    kept = not diverged or simulation.go_back()
    last = judged(simulation, rows[-1]) if kept else None
    summary = summarise(simulation.setup, simulation.plan, [*rows[:-1], last or rows[-1]])
    summary["plan"]["steps"] = steps_of(simulation.executor)
    summary["sha256"] = files  # so that no other run's model is taken for this one's
    if simulation.setup.algorithm.groups is not None:
        summary["groups"] = [list(group) for group in simulation.setup.algorithm.groups(simulation.server)]
    summary["per_client"] = (
        simulation.evaluator.per_client(simulation.client_model) if last else without_models(simulation)
    )
    folder.save_arrays(JUDGED, simulation.evaluator.judged if last else {})
    if simulation.setup.algorithm.clusters is not None:
        found = simulation.setup.algorithm.clusters(simulation.server)
        summary["clusters"] = cluster_figures(found, planted_groups(simulation.setup.partition))
    if not simulation.setup.personal:
        summary["final"] |= simulation.evaluator.detail(models["global"]) if last else {"interval": {}}
    if last and simulation.setup.config.evaluation.on == "validation":  # no choice was made by these rows
        one, rows_left = None if simulation.setup.personal else models["global"], test_rows(simulation.setup)
        summary["test"] = simulation.evaluator.tested(one, simulation.client_model, rows_left)
    if plugins.LOADED:
        summary["plugins"] = list(plugins.LOADED)
    if simulation.setup.own_module:
        summary["module"] = type(simulation.setup.network.module).__name__
    if diverged:
        summary["diverged"] = diverged + ("" if kept else f" {LOST}")
    if early:
        summary["stopped"] = early
    folder.write_json(SUMMARY, summary)
    return summary


def judged(simulation: Simulation, row: Row) -> Row | None:
    """The last row with its figures, which a divergence between two evaluations left out; None where they are no numbers."""
    if row["loss"] is not None:
        return row
    quality = simulation.quality()
    return {**row, **quality} if all(map(math.isfinite, floats_in(quality))) else None


def without_models(simulation: Simulation) -> list[dict[str, Any]]:
    """`per_client` where it is not known what the clients would use, or what they would use answers no numbers."""
    setup, common = simulation.setup, simulation.evaluator.rows.n
    sizes = setup.sizes
    held = {k: len(setup.held_out.get(k, ())) for k in sorted(sizes)}
    return [
        {"client": k, "train_rows": sizes[k], "test_rows": n or common, "own_rows": n > 0}
        | dict.fromkeys(("value", "low", "high"))
        for k, n in held.items()
    ]

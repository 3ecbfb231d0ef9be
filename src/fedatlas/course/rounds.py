"""The state of a run between rounds, and what one round does to it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from fedatlas import machine
from fedatlas.algorithm import SERVER, RoundGenerator, State, Task, Work
from fedatlas.course import attack_record
from fedatlas.course.client_models import models_of, used_by
from fedatlas.course.drift import Drift
from fedatlas.course.evaluation import Evaluator
from fedatlas.course.keeper import Keeper
from fedatlas.course.privacy_record import OWN_VIEW, SILENT, leaving, parted
from fedatlas.course.progress import Row
from fedatlas.course.recorder import recorder_of
from fedatlas.engine.device import find_device
from fedatlas.engine.executors import Plan, make_executor
from fedatlas.errors import DivergedError
from fedatlas.federation.client_states import PartyState
from fedatlas.federation.cost import KEYS, Cost
from fedatlas.federation.host import Host, View
from fedatlas.federation.in_process import InProcess
from fedatlas.federation.link import Observer
from fedatlas.federation.secrets import Keyring
from fedatlas.federation.start import RoundStart
from fedatlas.model import Model
from fedatlas.models import flops
from fedatlas.privacy.mechanism import Protection
from fedatlas.record.checkpoint import Checkpoints, Restored, RunState
from fedatlas.record.run_folder import RunFolder
from fedatlas.rounds import federated
from fedatlas.setup.assembly import Setup, all_clients, first_server
from fedatlas.setup.cohort import Drawn, draw_round, learning_rate


class Simulation:
    """The state of a run between rounds, and what one round does to it."""

    def __init__(
        self,
        setup: Setup,
        plan: Plan,
        party: PartyState,
        checkpoints: Checkpoints,
        folder: RunFolder,
        observers: Iterable[Observer] = (),
        host: Host | None = None,
    ) -> None:
        # Elsewhere parties wait for the checkpoint of each round.
        self.keeper = Keeper(setup, plan, folder, checkpoints, setup.config.checkpoint.every if host is None else 1)
        self.setup = setup
        self.drift = Drift(setup) if setup.config.evaluation.drift else None
        self.recorder = recorder_of(setup, folder.path)
        watching = [*observers, *(own for own in (self.drift, self.recorder) if own)]
        run = folder.path.name
        began, simulated = time.perf_counter(), self.protection if host is None else None
        self.keyring = None if simulated is None else Keyring(simulated, len(setup.sizes), run, folder.path)
        masks = self.protection is not None and self.protection.masks
        self.key_seconds = time.perf_counter() - began if masks else 0.0  # until a row has them
        self.federation = host or InProcess(
            setup.bench,
            make_executor(plan, setup.bench, setup.sizes.values()),
            party,
            setup.sizes,
            setup.seed,
            run=run,
            observers=watching,
            keyring=self.keyring,
            defence=setup.defence,
        )
        self.networks = setup.models(plan.threads, find_device(plan.device))
        self.evaluator = (host and host.judge) or Evaluator(setup)
        self.state = self.began = RunState(0, {}, 0)  # began: as the round found it

    @property
    def plan(self) -> Plan:
        """How clients train."""
        return self.keeper.plan

    @property
    def folder(self) -> RunFolder:
        """Where the run is recorded."""
        return self.keeper.folder

    @property
    def protection(self) -> Protection | None:
        """What ``[[privacy]]`` does."""
        return self.setup.bench.protection

    @property
    def number(self) -> int:
        """Rounds that have landed."""
        return self.state.round

    @property
    def server(self) -> State:
        """The server's state."""
        return self.state.server

    def begin(self) -> Row:
        """Round 0: the initial model, evaluated (C4)."""
        started = time.perf_counter()
        if self.recorder:
            self.recorder.begin_anew()
        self.state = self.state._replace(server=first_server(self.setup))
        algorithm, cost = self.setup.algorithm, self.setup.before
        if algorithm.prepare is not None:
            everybody, prepare = all_clients(self.setup), algorithm.prepare
            self._drive(lambda: prepare(algorithm, self.server, everybody), RoundStart(0, self.setup.config.local.lr))
            spent = self.federation.cost
            up, down = cost.bytes_up + spent.bytes_up, cost.bytes_down + spent.bytes_down
            cost = spent._replace(bytes_up=up, bytes_down=down, bytes_privacy=cost.bytes_privacy + spent.bytes_privacy)
        self.attackers()  # refuses a share of superclients that is nobody
        return self._close(0, None, cost, math.nan, started)

    def resume(self, restored: Restored) -> None:
        """Continues from a checkpoint: rows after it are dropped and made again. CheckpointError for other data or rows."""
        self.state = self.keeper.take_up(restored)
        self.federation.restore(restored.extra)
        if self.recorder:
            self.recorder.recording.resume(restored.run.round)

    def step(self) -> Row:
        """One round: draw, drive, evaluate, record, checkpoint."""
        started = time.perf_counter()
        setup, number = self.setup, self.number + 1
        local = setup.config.local
        lr = learning_rate(local.schedule, local.lr, number, setup.config.rounds)
        groups = setup.algorithm.groups(self.server) if setup.algorithm.groups is not None else None
        how = self.protection
        secret = how.noise if how is not None and how.secret_cohort else None
        drawn = draw_round(setup.config, setup.sizes, setup.seed, number, groups, secret)
        begun = self.server
        start = RoundStart(
            number,
            lr,
            leaving=leaving(how, drawn, setup.seed) if how is not None and how.masks else {},
            orders=setup.cast.orders(drawn, groups) if setup.poisonings else {},
            told=lambda: setup.algorithm.broadcast(begun, 0),
        )
        self.began = self.state
        try:
            if self.recorder:
                self.recorder.begin(number)
            if self.drift:
                self.drift.begin(self.server.get("model", {}))
            rounds = setup.algorithm.rounds or federated
            self._drive(lambda: rounds(setup.algorithm, begun, drawn.round), start)
            return self._close(number, drawn, self.federation.cost, lr, started)
        except DivergedError:  # the last state that was finite is what is kept, on both sides
            self.state = self.began
            if self.recorder:
                self.recorder.recording.drop()
            self.federation.server.commit(number, ())
            raise

    def _drive(self, make: Callable[[], RoundGenerator], start: RoundStart) -> None:
        try:
            server = self.federation.drive(make, start, commit=False)
            self.state = self.state if server is None else self.state._replace(server=server)
        except DivergedError as error:
            raise self._diverged(
                start.round, f"{error}{self.setup.loss.domain}; lower local.lr (now {start.lr:g})"
            ) from None

    def _diverged(self, number: int, why: str) -> DivergedError:
        if number == 0:
            return DivergedError(f"the run diverged before round 1: {why}.")
        kept = f"Everything up to round {self.number} is kept in '{self.folder.path}'."
        return DivergedError(f"the run diverged in round {number}: {why}. {kept}")

    def _close(self, number: int, drawn: Drawn | None, cost: Cost, lr: float, started: float) -> Row:
        """Evaluates, appends the row, writes the checkpoint."""
        config = self.setup.config
        last = number == config.rounds
        evaluated = number == 0 or last or config.evaluation.judges(number)
        before = time.perf_counter()
        quality = self.quality() if evaluated else self.evaluator.blank()
        quality |= attack_record.figures(self, evaluated)
        figures = (
            dict(self.setup.algorithm.card.figures(self.server))
            if self.setup.algorithm.card.figures is not None
            else None
        )
        self.check_finite(number, {**quality, "figures": figures})
        if self.recorder:
            self.recorder.end(number, self.models())
        made, self.key_seconds = self.key_seconds, 0.0
        keys = {KEYS: made + cost.seconds.get(KEYS, 0.0)} if made else {}
        phases = {**cost.seconds, **keys, "evaluate": time.perf_counter() - before}
        row = {"round": number, **quality, **self._facts(drawn, cost, lr), **attack_record.outcome(self, drawn)}
        row |= {"seconds": made + time.perf_counter() - started, "seconds_by_phase": phases}
        row |= {"bytes_up": cost.bytes_up, "bytes_down": cost.bytes_down, "bytes_peer": cost.bytes_peer}
        row |= self._private(row, cost)
        row |= {"flops": self._flops(self.federation.view), "peak_memory_bytes": machine.peak_memory()}
        if figures is not None:
            row["figures"] = figures
        if self.drift:
            row["drift_correlation"] = self.drift.figure() if evaluated else None
        if self.protection is not None:
            row, own = parted(self.protection, row)
            self.folder.append_line(OWN_VIEW, own)
        self.federation.server.commit(number)
        self.state = RunState(number, self.server, self.folder.append(row))
        if last or number % self.keeper.every == 0:
            self.save()
        return row

    def _private(self, row: Row, cost: Cost) -> Row:
        """Fields of a row under ``[[privacy]]``."""
        if self.protection is None:
            return {}
        why = self.federation.given_up or (SILENT if row["selected"] and not row["clients"] else None)
        return {"bytes_privacy": cost.bytes_privacy, **({"given_up": why} if self.protection.masks else {})}

    def _flops(self, view: View) -> int:
        """Operations of a round, each party's passes times its network's; where shapes change, of the model it began with."""
        setup = self.setup
        if not any(isinstance(task, Task) and task.reshapes for task in setup.algorithm.tasks.values()):
            return int(sum(passes * setup.built(name).flops for name, passes in view.passes_of.items()))
        params = self.began.server.get("model", setup.first.params)
        x = setup.dataset.inputs(setup.dataset.train.x[:2], next(iter(params.values())).dtype)
        return int(view.passes * flops(setup.first.network.module, x, params))

    def _facts(self, drawn: Drawn | None, cost: Cost, lr: float) -> Row:
        work = self.federation.view.work if drawn else {}
        if self.protection is not None:  # who left in the middle of a sum did some work, and does not count
            work = {k: w for k, w in work.items() if k in self.federation.server.counted}
        done = {k: w for k, w in work.items() if w.steps and k != SERVER}
        if self.setup.bench.spares:  # whose work came to no numbers was left out
            done = {k: w for k, w in done.items() if math.isfinite(w.loss)}
        total = sum(w.examples for w in done.values())
        loss = sum(w.loss * w.examples for w in done.values()) / total if total else math.nan
        clients, weights = took_part(drawn, work), cost.weights
        if weights and not (drawn and drawn.round.units):  # who worked and was then left out of the mean had none
            weights = {k: weights.get(k, 0.0) for k in clients}
        return {
            "train_loss": None
            if math.isnan(loss)
            else loss,  # which parties that are elsewhere may keep for themselves
            "clients": clients,
            "selected": list(drawn.selected) if drawn else [],
            "weights": [weight for k, weight in weights.items() if k >= 0],
            "steps": [work[k].steps for k in sorted(work) if k != SERVER],
            "lr": None if math.isnan(lr) else lr,
        }

    def check_finite(self, number: int, quality: Row) -> None:
        """A server's step after which the model, or its loss, is not a number ends the run there."""
        finite = all(model.finite() for model in self.models().values())
        if not finite or not all(map(math.isfinite, floats_in(quality))):
            after = " after the server's step" if number else ""
            advice = "lower local.lr or the server's rate" if number else "look at model.init and the data"
            raise self._diverged(
                number, f"the server's model or its loss is not finite{after}{self.setup.loss.domain}; {advice}"
            )

    def save(self) -> None:
        """A checkpoint of this round, unless there is one."""
        if self.keeper.saved == self.number:
            return
        if self.recorder:
            self.recorder.keep()
        self.keeper.save(self.state, self.federation.states, self.federation.record())
        self.federation.landed(self.number)
        if self.keyring is not None:
            self.keyring.forget(self.keeper.checkpoints.oldest())

    def models(self) -> dict[str, Model]:
        """name -> what is evaluated and saved."""
        return models_of(self.setup.algorithm, self.server, self.networks)

    def client_model(self, client: int) -> Model:
        """What client ``client`` would use: its personal model where the algorithm has such, else that of its architecture."""
        own, facts = self.setup.bench.architecture(client), self.federation.facts(client, self.number, 0.0)
        state_of = lambda message: self.federation.state_of(client, message, facts)  # noqa: E731
        return used_by(client, self.setup.algorithm, self.server, state_of, self.networks, own)

    def attackers(self) -> dict[int, int]:
        """Malicious client -> the number of its table in ``[[attack]]``."""
        groups = self.setup.algorithm.groups
        return self.setup.cast.attackers(groups(self.server) if groups is not None else None)

    def quality(self) -> Row:
        """The quality fields of a row."""
        every = list(self.models().items())
        personal = self.setup.personal
        row = self.evaluator.personal_row(self.client_model) if personal else self.evaluator.row(every[0][1])
        others = every if self.setup.mixed else every[1:]
        if others:
            row["models"] = {name: self.evaluator.plain_row(model) for name, model in others}
        return row

    def noticed(self) -> list[str]:
        """What the recording of views has to say since the last call."""
        return self.recorder.noticed() if self.recorder else []

    def close(self) -> None:
        """Ends the workers and removes their scratch files."""
        self.federation.close()


def floats_in(value: Any) -> Iterator[float]:
    """All floats of nested dicts and lists: what JSON would hold."""
    if isinstance(value, float):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from floats_in(item)


def took_part(drawn: Drawn | None, work: Mapping[int, Work]) -> list[Any]:
    """The clients that returned, ascending; for chains a list of lists, superclients ascending."""
    if drawn is not None and drawn.round.units:
        return [list(unit.members) for unit in sorted(drawn.round.units) if unit.members]
    return [k for k in sorted(work) if k >= 0]  # the union of all rows and the server are no clients

"""The course of a run whose clients hold rows: a round is drawn, driven, judged and landed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

from fedatlas import machine
from fedatlas.algorithm import SERVER, RoundGenerator, State, Task, Work
from fedatlas.config import ExperimentConfig, bytes_of
from fedatlas.course import attack_record, rounds_end
from fedatlas.course.client_models import files_of
from fedatlas.course.drift import Drift
from fedatlas.course.evaluation import Evaluator, NotJudged, floats_in
from fedatlas.course.guard import guard_of, ruined
from fedatlas.course.keeper import Keeper
from fedatlas.course.plan import resolve_plan
from fedatlas.course.privacy_record import OWN_VIEW, SILENT, leaving, parted
from fedatlas.course.recorder import recorder_of
from fedatlas.course.snapshot import Snapshot
from fedatlas.engine.device import find_device
from fedatlas.engine.executors import Plan, make_executor, restore
from fedatlas.engine.job import Bench, Job, Result
from fedatlas.errors import DivergedError
from fedatlas.federation.client_states import ClientStates, PartyState
from fedatlas.federation.cost import DECRYPT, KEYS, Cost
from fedatlas.federation.host import Host, View
from fedatlas.federation.in_process import InProcess
from fedatlas.federation.link import Observer
from fedatlas.federation.secrets import LEDGER, Keyring
from fedatlas.federation.start import RoundStart
from fedatlas.models import flops
from fedatlas.privacy.ask_protocol import MEMORY
from fedatlas.record.checkpoint import GUARD, Restored, RunState
from fedatlas.record.fields import RoundRow, RunSummary
from fedatlas.record.fingerprint import fingerprint, of_rows
from fedatlas.record.initial_files import restore_derived, write_beginning
from fedatlas.record.run_folder import JUDGED, RunFolder
from fedatlas.rounds import federated
from fedatlas.setup.assembly import Setup, all_clients, first_server, rules_of, state_notices
from fedatlas.setup.cohort import Drawn, draw_round, learning_rate
from fedatlas.wording import count, facts_text

STAYS = (
    "The clients of this small dense model train in one stack on this machine, and the cluster is not used: "
    "engine.plan = 'program' would use it."
)
LOST = "was lost or altered; it has been rebuilt from the configuration and the data."


class Parties(NamedTuple):
    """The remote parties of a run: the plan by which they train, and the host that communicates with them."""

    plan: Plan
    host: Host


class RemoteExecutor(Protocol):
    """An `Executor` on other machines, of whose coming and going the user is told."""

    @property
    def run_job(self) -> Callable[[Bench, Job], Result]: ...  # does one job here
    def run(self, jobs: Iterable[Job]) -> Iterator[Result]: ...
    def close(self) -> None: ...
    def noticed(self) -> list[str]:
        """Return the notices since the last call."""


Elsewhere = Callable[[Plan, Setup, Path], RemoteExecutor | None]
"""Makes the executor of a plan on other machines; None where they bring nothing to this plan."""


class Simulation:
    """The course of a run whose clients hold rows."""

    word = "round"

    def __init__(
        self,
        setup: Setup,
        folder: RunFolder,
        *,
        resume: bool = False,
        observers: Iterable[Observer] = (),
        intervals: bool = True,
        parties: Parties | None = None,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        """``resume``: continue from the last checkpoint; ``intervals``: whether the final figures get intervals.

        ``elsewhere``: makes the executor, where clients do not train on this machine.
        """
        self.setup, self.protection = setup, setup.bench.protection
        config, how = setup.config, self.protection
        self.guard = guard_of(setup)
        # Remote parties wait for the checkpoint of each round, and each version is kept.
        spent, every = folder.path / LEDGER if setup.checked.enters else None, 1 if parties or self.guard else 0
        self.keeper = Keeper(folder, config, fingerprint(of_rows(setup)), every, spent)
        states = PartyState(ClientStates(bytes_of(config.engine.state_memory)))
        self.restored = self.keeper.checkpoints.load(states) if resume else None
        if self.restored:
            self.plan = restore(self.restored.extra["plan"])
        else:
            self.plan = parties.plan if parties else resolve_plan(setup)
        self.drift = Drift(setup) if config.evaluation.drift else None
        self.recorder = recorder_of(setup, folder.path)
        watching = [*observers, *(own for own in (self.drift, self.recorder) if own)]
        began, run = time.perf_counter(), folder.path.name
        self.keyring = (
            None if how is None or parties else Keyring(how, len(setup.sizes), run, folder.path, resume=resume)
        )
        self.key_seconds = time.perf_counter() - began if how is not None and how.masks else 0.0  # until a row has them
        self.opening = 0.0  # seconds for models that only clients open, until a row has them
        self.elsewhere = elsewhere(self.plan, setup, folder.path) if elsewhere else None
        self.federation: Host = (
            parties.host
            if parties
            else InProcess(
                setup.bench,
                self.elsewhere or make_executor(self.plan, setup.bench, setup.sizes.values()),
                states,
                setup.sizes,
                setup.seed,
                run=run,
                observers=watching,
                keyring=self.keyring,
                defence=setup.defence,
                rules=rules_of(setup),
            )
        )
        self.networks = setup.models(self.plan.threads, find_device(self.plan.device))
        self.evaluator = self.federation.judge or Evaluator(setup)
        self.evaluator.with_intervals = intervals
        self.state = self.began = RunState(0, {}, 0)  # began: as at the start of the round
        self.decided: dict[str, Any] = {}  # the guard's fields of the round's row
        self.news: list[str] = [STAYS] if elsewhere and not self.elsewhere else []

    @property
    def config(self) -> ExperimentConfig:
        """The configuration with every key written out."""
        return self.setup.config

    @property
    def number(self) -> int:
        """Number of rounds that have landed."""
        return self.state.round

    @property
    def server(self) -> State:
        """The server's state."""
        return self.state.server

    @property
    def snapshot(self) -> Snapshot:
        """The run as it stands now, ready to be judged."""
        return Snapshot(self.setup, self.federation, self.evaluator, self.networks, self.number, self._opened())

    def _opened(self) -> State:
        """Return the server's state as a client knows it: with its model opened, if only clients can."""
        began = time.perf_counter()
        server = self.federation.opened(self.server, self.number + 1)  # the last round may not have landed
        self.opening += time.perf_counter() - began
        return server

    @property
    def notices(self) -> Sequence[str]:
        """Notices of the set-up, including one if the algorithm begins with a set-up among all clients."""
        first = f"Set-up of '{self.setup.algorithm.name}' with all clients, before round 1 ..."
        return [*self.setup.notices, *([first] if self.setup.algorithm.prepare and not self.restored else [])]

    @property
    def lines(self) -> Sequence[str]:
        """Lines about the clients' rows, the training and the plan."""
        c, d, plan, held = self.config, self.setup.dataset, self.plan, self.setup.partition.sizes
        rows = f"{min(held):,} to {max(held):,}" if min(held) != max(held) else f"{held[0]:,}"
        model = ", ".join(self.setup.networks) or c.model.name
        facts, name = self.setup.held.algorithm_facts, self.setup.algorithm.name
        who = f"{len(held)} clients with {rows} rows of {d.facts.get('called', d.name)} each ({c.partition.name})"
        return [
            f"{who}, {name} over {count(c.rounds, 'round')}, model {model}, seed {c.seed}",
            f"Engine: {plan.engine}, step {plan.step}, {count(plan.workers, 'worker')}, {plan.precision} on {plan.device}.",
            *([f"Read: {read}."] if (read := d.facts.get("read")) else []),
            *([f"{name}: {facts_text(facts)}."] if facts else []),
        ]

    def noticed(self) -> list[str]:
        """Return the notices since the last call."""
        said, self.news = self.news, []
        return [*said, *(text for one in (self.elsewhere, self.recorder) if one is not None for text in one.noticed())]

    def resume(self, restored: Restored) -> None:
        """Resume from a checkpoint, and rewrite the files derived from the data that were lost or altered."""
        self.state = self.keeper.take_up(restored)
        self.federation.states.landed = self.state.round
        self._opened()  # refused now, if its clients cannot open it in this run
        self.federation.restore(restored.extra)
        if self.guard:
            self.guard.restore(restored.extra[GUARD])
        if self.recorder:
            self.recorder.resume(restored.run.round)
        folder = self.keeper.folder
        self.news += [f"{name} {LOST}" for name in restore_derived(self.setup, folder)]
        kept = folder.config()
        if (kept.rounds, kept.engine.cluster) != (self.config.rounds, self.config.engine.cluster):
            folder.rewrite(self.config)

    def begin(self) -> RoundRow:
        """Run round 0: the algorithm's set-up, if it has one, and the first evaluation (C4)."""
        write_beginning(self.setup, self.keeper.folder)
        started = time.perf_counter()
        if self.recorder:
            self.recorder.begin_set_up()
        self.state = self.state._replace(server=first_server(self.setup))
        algorithm, cost = self.setup.algorithm, self.setup.before
        if algorithm.prepare is not None:
            everybody, prepare = all_clients(self.setup), algorithm.prepare
            self._drive(lambda: prepare(algorithm, self.server, everybody), RoundStart(0, self.config.local.lr))
            spent = self.federation.cost
            up, down = cost.bytes_up + spent.bytes_up, cost.bytes_down + spent.bytes_down
            cost = spent._replace(bytes_up=up, bytes_down=down, bytes_privacy=cost.bytes_privacy + spent.bytes_privacy)
        self.snapshot.attackers()  # raises ConfigError for a share of superclients that rounds to zero
        self.news += state_notices(self.setup, self.server)
        self._decide(0)
        return self._judged(0, None, cost, math.nan, started)

    def step(self) -> RoundRow:
        """Run one round: draw, drive, evaluate."""
        setup, number, how, started = self.setup, self.number + 1, self.protection, time.perf_counter()
        lr = learning_rate(self.config.local.schedule, self.config.local.lr, number, self.config.rounds)
        groups = setup.algorithm.groups(self.server) if setup.algorithm.groups is not None else None
        secret = how.noise if how is not None and how.secret_cohort else None
        sizes = setup.sizes_in(number)
        drawn = draw_round(self.config, sizes, setup.seed, number, groups, secret)
        orders = setup.cast.orders(drawn, groups)
        drawn = setup.cast.claiming(drawn, orders)
        # An algorithm may hand on all that it is given, so it is not given the mechanisms' memories.
        begun = {key: x for key, x in self.server.items() if key != MEMORY}
        start = RoundStart(
            number,
            lr,
            leaving=leaving(how, drawn, setup.seed) if how is not None and how.masks else {},
            orders=orders,
            told=lambda: setup.algorithm.broadcast(begun, 0),
            memories=self.server.get(MEMORY, {}),
            sizes=None if setup.bench.drift is None else sizes,
        )
        self.began = self.state
        self._opened()  # once for all clients of the round, if only they can
        try:
            if self.recorder:
                self.recorder.begin(number)
            if self.drift:
                self.drift.begin(self.server.get("model", {}))
            rounds = setup.algorithm.rounds or federated
            self._drive(lambda: rounds(setup.algorithm, begun, drawn.round), start)
            self._decide(number)
            return self._judged(number, drawn, self.federation.cost, lr, started)
        except DivergedError:  # both sides keep the last finite state
            self.state = self.began
            if self.guard:
                self.guard.undo()
            if self.recorder:
                self.recorder.recording.drop()
            self.federation.server.commit(number, ())
            raise

    def land(self, row: RoundRow) -> None:
        """Make a round final."""
        self.federation.server.commit(row["round"], () if row.get("committed") is False else None)
        self.state = self.keeper.land(row, self.state)
        if self.keeper.due(self.number):
            self.save()

    def save(self) -> None:
        """Write a checkpoint of this round, unless there is one."""
        if self.keeper.saved == self.number:
            return
        if self.recorder:
            self.recorder.keep()
        beside = {"plan": self.plan.plain(), **self.federation.record()}
        beside |= {GUARD: self.guard.plain()} if self.guard else {}
        self.keeper.save(self.state, self.federation.states, beside, self.guard.taken() if self.guard else None)
        self.federation.landed(self.number)
        if self.keyring is not None:
            self.keyring.forget(self.keeper.checkpoints.oldest())

    def _drive(self, make: Callable[[], RoundGenerator], start: RoundStart) -> None:
        try:
            server = self.federation.drive(make, start, commit=False)
            self.state = self.state if server is None else self.state._replace(server=server)
        except DivergedError as error:
            why = f"{error}{self.setup.loss.domain}; lower local.lr (now {start.lr:g})"
            raise self._diverged(start.round, why) from None

    def _decide(self, number: int) -> None:
        """Let the guard judge the model of a round. If it is rejected, the server keeps its state from before the round."""
        if self.guard is None:
            return
        if number and self.federation.given_up:
            self.decided = self.guard.passed_over()
            return
        spoilt = number > 0 and ruined(self.began.server, self.server)
        self.decided = self.guard.decide(number, next(iter(self.snapshot.models().values())), ruined=spoilt)
        if self.decided["committed"] is False:
            self.state = self.began
            self.news.append(self.guard.rejection(number))

    def _diverged(self, number: int, why: str) -> DivergedError:
        if number == 0:
            return DivergedError(f"the run diverged before round 1: {why}.")
        kept = f"Everything up to round {self.number} is kept in '{self.keeper.folder.path}'."
        return DivergedError(f"the run diverged in round {number}: {why}. {kept}")

    def _judged(self, number: int, drawn: Drawn | None, cost: Cost, lr: float, started: float) -> RoundRow:
        """Return the row of a driven round; fields that ``[[privacy]]`` hides go to a separate file."""
        config = self.config
        evaluated = number in (0, config.rounds) or config.evaluation.judges(number)
        now = self.snapshot
        before = time.perf_counter()
        self.evaluator.at(number)
        quality = self._quality(now) if evaluated else self.evaluator.blank()
        quality |= attack_record.figures(now, evaluated)
        figures = self._own_figures()
        self.check_finite(number, {**quality, **figures})
        if self.recorder:
            self.recorder.end(number, now.models())
        made, self.key_seconds = self.key_seconds, 0.0
        keys = {KEYS: made + cost.seconds.get(KEYS, 0.0)} if made else {}
        closed = self.protection is not None and self.protection.closed is not None
        opening, self.opening = {DECRYPT: self.opening} if closed else {}, 0.0
        row = {
            "round": number,
            **quality,
            **self._facts(drawn, cost, lr),
            **attack_record.outcome(self.setup, self.federation, drawn),
            **self.decided,
            "seconds": made + time.perf_counter() - started,
            "seconds_by_phase": {**cost.seconds, **keys, **opening, "evaluate": time.perf_counter() - before},
            **{key: getattr(cost, key) for key in ("bytes_up", "bytes_down", "bytes_peer")},
        }
        row |= {"simulation_only": sorted(quality)} if closed else {}
        row |= self._private(row, cost)
        row |= {
            "flops": self._flops(self.federation.view),
            "peak_memory_bytes": machine.peak_memory(),
            **figures,
        }
        if self.drift:
            row["drift_correlation"] = self.drift.figure() if evaluated else None
        if self.protection is not None:
            row, own = parted(self.protection, row)
            failed = {str(k): why for k, why in self.federation.view.failed.items()}
            self.keeper.folder.append_line(OWN_VIEW, {**own, **({"failed": failed} if failed else {})})
        return cast(RoundRow, row)

    def _own_figures(self) -> dict[str, Any]:
        """Return the algorithm's figures about the server's state, if it has any."""
        of = self.setup.algorithm.card.figures
        return {} if of is None else {"figures": dict(of(self.server))}

    def _quality(self, now: Snapshot) -> dict[str, Any]:
        """Return the quality fields of a row; blank if the parties that judge could not."""
        try:
            return now.quality()
        except NotJudged as error:
            self.news.append(f"Not judged: {error}")
            return self.evaluator.blank()

    def _private(self, row: Mapping[str, Any], cost: Cost) -> dict[str, Any]:
        """Return the fields of a row under ``[[privacy]]``."""
        if self.protection is None:
            return {}
        why = self.federation.given_up or (SILENT if row["selected"] and not row["clients"] else None)
        return {"bytes_privacy": cost.bytes_privacy, **({"given_up": why} if self.protection.masks else {})}

    def _flops(self, view: View) -> int:
        """Return the floating-point operations of a round: per architecture, passes times the cost of one pass.

        If an algorithm changes the model's shapes, the cost is that of the model with which the round began.
        """
        setup = self.setup
        if not any(isinstance(task, Task) and task.reshapes for task in setup.algorithm.tasks.values()):
            return int(sum(passes * setup.built(name).flops for name, passes in view.passes_of.items()))
        params = self.began.server.get("model", setup.first.params)
        x = setup.dataset.inputs(setup.dataset.train.x[:2], next(iter(params.values())).dtype)
        return int(view.passes * flops(setup.first.network.module, x, params))

    def _facts(self, drawn: Drawn | None, cost: Cost, lr: float) -> dict[str, Any]:
        work = self.federation.view.work if drawn else {}
        if self.protection is not None:  # clients that left during a sum did work that does not count
            work = {k: w for k, w in work.items() if k in self.federation.server.counted}
        done = {k: w for k, w in work.items() if w.steps and k != SERVER}
        if self.setup.bench.spares:  # clients whose work gave NaN or infinity were left out
            done = {k: w for k, w in done.items() if math.isfinite(w.loss)}
        total = sum(w.examples for w in done.values())
        loss = sum(w.loss * w.examples for w in done.values()) / total if total else math.nan
        clients, weights = took_part(drawn, work), cost.weights
        if weights and not (drawn and drawn.round.units):  # clients left out of the mean had none
            weights = {k: weights.get(k, 0.0) for k in clients}
        return {
            "train_loss": None if math.isnan(loss) else loss,  # remote parties may keep it private
            "clients": clients,
            "selected": list(drawn.selected) if drawn else [],
            "weights": [weight for k, weight in weights.items() if k >= 0],
            "steps": [work[k].steps for k in sorted(work) if k != SERVER],
            "lr": None if math.isnan(lr) else lr,
        }

    def check_finite(self, number: int, quality: Mapping[str, Any]) -> None:
        """Raise DivergedError if a model or a figure is NaN or infinity after the server's step."""
        finite = all(model.finite() for model in self.snapshot.models().values())
        if not finite or not all(map(math.isfinite, floats_in(quality))):
            after = " after the server's step" if number else ""
            advice = "lower local.lr or the server's rate" if number else "look at model.init and the data"
            raise self._diverged(
                number, f"the server's model or its loss is not finite{after}{self.setup.loss.domain}; {advice}"
            )

    def figures(self, rows: Sequence[RoundRow], diverged: str) -> RunSummary:
        """Return the run's part of summary.json."""
        found = rounds_end.figures(self.snapshot, self.plan, self.keeper.folder, self._of_version(rows), diverged)
        return {**found, "guard": self.guard.summary(rows)} if self.guard else found

    def _of_version(self, rows: Sequence[RoundRow]) -> Sequence[RoundRow]:
        """Return the rows; after a rollback, the last one without figures, which are another version's."""
        version = None if self.guard is None else self.guard.standing.version
        if version is None or rows[-1]["version"] == version:
            return rows
        of_model = {**self.evaluator.blank(), **attack_record.figures(self.snapshot, True)}
        last = {**rows[-1], **of_model, **self._own_figures(), "version": version}
        return [*rows[:-1], cast(RoundRow, last)]

    def models(self) -> Mapping[str, Any]:
        """Return the model files and the scores of the rows on which the models were judged."""
        left = files_of(self.snapshot.models(), self.setup.mixed)
        return {**{file: model.save() for file, model in left.items()}, JUDGED: self.evaluator.judged}

    def close(self) -> None:
        """Stop the workers and remove their scratch files."""
        self.federation.close()


def took_part(drawn: Drawn | None, work: Mapping[int, Work]) -> list[Any]:
    """Return the clients that returned, ascending; for chains one list per superclient, ordered by its number."""
    if drawn is not None and drawn.round.units:
        return [list(unit.members) for unit in sorted(drawn.round.units) if unit.members]
    return [k for k in sorted(work) if k >= 0]  # the union of all rows and the server are not clients

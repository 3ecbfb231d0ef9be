"""Measure rounds, set-up and evaluation on work that is discarded, for ``--dry-run`` and ``plan = "calibrate"``."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import NamedTuple

from fedatlas.algorithm import SERVER, Ask, Replies, State, Unit
from fedatlas.course.evaluation import Evaluator
from fedatlas.engine.device import find_device
from fedatlas.engine.executors import Plan, make_executor
from fedatlas.federation.client_states import PartyState
from fedatlas.federation.cost import Cost
from fedatlas.federation.in_process import InProcess
from fedatlas.federation.link import Link, Observer
from fedatlas.federation.server import ServerHalf
from fedatlas.federation.start import RoundStart
from fedatlas.metrics.intervals import bootstrap, usual_draws
from fedatlas.rounds import federated
from fedatlas.setup.assembly import Setup, all_clients, first_server
from fedatlas.setup.cohort import draw_round
from fedatlas.tree import Tree

FEW_DRAWS = 20  # bootstrap draws that are timed


class Sampled(ServerHalf):
    """Server half that asks one party once per task, uses its answer for all, and multiplies the cost."""

    def __init__(self, setup: Setup, link: Link, observers: Iterable[Observer] = ()) -> None:
        bench = setup.bench
        half = (bench.algorithm, link, setup.sizes, setup.seed)
        super().__init__(*half, transform=bench.transform, raw_bytes=bench.raw_bytes, observers=observers)
        self.known: dict[tuple[str, str], tuple[Replies, Cost]] = {}  # by task, and by who asks and answers

    def answer(self, ask: Ask) -> Replies:
        if not ask.to:
            return super().answer(ask)
        one, before = ask.to[:1], self.cost
        key = (ask.what, "itself" if one == (SERVER,) else ask.route.via)
        if key not in self.known:
            for _ in range(2):  # the first ask also derives the step; the second is counted
                self.now.cost = Cost()
                found = super().answer(ask._replace(to=one))
            self.known[key] = found, self.cost
        found, cost = self.known[key]
        many = len(ask.to)
        seconds = {ask.what: before.seconds.get(ask.what, 0.0) + many * sum(cost.seconds.values())}
        self.now.cost = before._replace(
            bytes_up=before.bytes_up + many * cost.bytes_up,
            bytes_down=before.bytes_down + many * cost.bytes_down,
            bytes_peer=before.bytes_peer + many * cost.bytes_peer,
            messages=before.messages + many * cost.messages,
            seconds={**before.seconds, **seconds},
        )
        each = {k: update for update in found.each.values() for k in ask.to}
        return found._replace(clients=tuple(sorted(ask.to)), each=each)


def trial_of_setup(setup: Setup, plan: Plan) -> tuple[Cost, State]:
    """Return the approximate cost of the algorithm's set-up before round 1, and the server's state after it.

    Seconds are those of one worker.
    """
    algorithm, executor = setup.algorithm, make_executor(plan._replace(workers=1), setup.bench, setup.sizes.values())
    both = InProcess(setup.bench, executor, PartyState(), setup.sizes, setup.seed, compares=False)
    asking, server = Sampled(setup, both), first_server(setup)
    try:
        if algorithm.prepare is not None:
            before = algorithm.prepare(algorithm, server, all_clients(setup))
            server = dict(asking.drive(before, RoundStart(0, setup.config.local.lr)))
    finally:
        both.close()
    return asking.cost, server


def trial(setup: Setup, plan: Plan, cohort: tuple[int, ...]) -> tuple[list[Cost], float]:
    """Return the costs of a first and a second round with these clients, and the seconds of the second.

    The second round's step is already derived.
    """
    executor = make_executor(plan, setup.bench, setup.sizes.values())
    both = InProcess(setup.bench, executor, PartyState(), setup.sizes, setup.seed, compares=False)
    algorithm, lr = setup.algorithm, setup.config.local.lr
    server: State = first_server(setup)
    drawn = draw_round(setup.config, setup.sizes, setup.seed, 1).round
    sizes = setup.sizes
    some = drawn._replace(cohort=cohort, sizes={k: sizes[k] for k in cohort})
    if algorithm.groups is not None:  # no set-up forms groups here, so these clients are one group
        some = some._replace(units=(Unit(0, cohort),), groups=1)
    costs, seconds = [], 0.0
    try:
        for number in (1, 2):
            started, asked = time.perf_counter(), some._replace(number=number)
            after = both.drive((algorithm.rounds or federated)(algorithm, server, asked), RoundStart(number, lr))
            server = server if after is None else after
            seconds = time.perf_counter() - started
            costs.append(both.cost)
    finally:
        both.close()
    return costs, seconds


class Judging(NamedTuple):
    """Approximate seconds that judging takes."""

    one: float  # one model's figures
    ends: float  # the intervals of one model's figures, after the last round
    rounds: float  # the figures of all evaluated rounds


def trial_of_evaluation(setup: Setup, plan: Plan) -> Judging:
    """Estimate how long judging takes, from one initial model and a few bootstrap draws of its rows."""
    models = setup.models(plan.threads, find_device(plan.device))
    evaluator, one, (name, model) = Evaluator(setup), 0.0, next(iter(models.initial().items()))
    for _ in range(2):  # the first call pays for what later ones reuse
        started = time.perf_counter()
        evaluator.row(models(Tree(model.params).clone(), model.buffers, name))
        one = time.perf_counter() - started
    own = setup.personal and setup.algorithm.clusters is None
    rounds, judges = setup.config.rounds, setup.config.evaluation.judges
    times = 1 + sum(judges(t) or t == rounds for t in range(1, rounds + 1))
    started = time.perf_counter()
    draws = usual_draws(evaluator.rows.y.numel())
    few = min(FEW_DRAWS, draws)
    bootstrap(evaluator.resampled(model, evaluator.rows), evaluator.rows.n, setup.seed, "test", draws=few)
    ends = (time.perf_counter() - started - one) * draws / few
    return Judging(one, max(ends, 0.0), one * times * (len(setup.sizes) if own else len(setup.networks)))

"""A round that is thrown away: what it costs under a plan, for ``--dry-run`` and ``plan = "calibrate"``."""

from __future__ import annotations

import time

from fedatlas.algorithm import Unit
from fedatlas.engine.client_state import ClientStates
from fedatlas.engine.executors import Plan, make_executor
from fedatlas.engine.host import Cost, Host
from fedatlas.experiment.cohort import draw_round
from fedatlas.experiment.setup import Setup, first_server
from fedatlas.rounds import federated


def trial(setup: Setup, plan: Plan, cohort: tuple[int, ...]) -> tuple[Cost, float]:
    """Cost of a first round with these clients, and its seconds once the step is derived: the second time it is run."""
    executor = make_executor(plan, setup.bench, setup.sizes.values())
    host = Host(setup.bench, executor, ClientStates(), setup.sizes, setup.seed)
    algorithm, lr = setup.algorithm, setup.config.local.lr
    server = first_server(setup, host)
    drawn = draw_round(setup.config, setup.sizes, setup.seed, 1).round
    some = drawn._replace(cohort=cohort, sizes={k: setup.sizes[k] for k in cohort})
    if algorithm.groups is not None:  # without the set-up that would form them, these clients are one group
        some = some._replace(units=(Unit(0, cohort),), groups=1)
    seconds = 0.0
    try:
        for _ in range(2):
            started = time.perf_counter()
            host.drive((algorithm.rounds or federated)(algorithm, server, some), 1, lr)
            seconds = time.perf_counter() - started
    finally:
        executor.close()
        host.states.close()
    return host.cost, seconds

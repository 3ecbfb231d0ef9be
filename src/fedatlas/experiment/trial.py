"""A round that is thrown away: what it costs under a plan, for ``--dry-run`` and ``plan = "calibrate"``."""

from __future__ import annotations

import time

from fedatlas.engine.client_state import ClientStates
from fedatlas.engine.executors import Plan, make_executor
from fedatlas.engine.host import Cost, Host
from fedatlas.experiment.cohort import draw_round
from fedatlas.experiment.setup import Setup
from fedatlas.rounds import federated


def trial(setup: Setup, plan: Plan, cohort: tuple[int, ...]) -> tuple[Cost, float]:
    """Cost of a first round with these clients, and its seconds once the step is derived: the second time it is run."""
    executor = make_executor(plan, setup.bench, setup.sizes.values())
    host = Host(setup.bench, executor, ClientStates(), setup.sizes, setup.seed)
    facts = {"K": float(host.K), "n": float(host.n), "classes": float(setup.dataset.classes)}
    server = dict(setup.algorithm.server_init({"global": setup.params}, facts))
    if setup.buffers:
        server["buffers"] = setup.buffers
    drawn = draw_round(setup.config, setup.sizes, setup.seed, 1).round
    some = drawn._replace(cohort=cohort, sizes={k: drawn.sizes[k] for k in cohort})
    seconds = 0.0
    try:
        for _ in range(2):
            started = time.perf_counter()
            host.drive((setup.algorithm.rounds or federated)(setup.algorithm, server, some), 1, setup.config.local.lr)
            seconds = time.perf_counter() - started
    finally:
        executor.close()
        host.states.close()
    return host.cost, seconds

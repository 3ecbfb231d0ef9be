"""Choose how a run is executed (its plan) from its configuration, its model and the machine."""

from __future__ import annotations

from fedatlas import machine
from fedatlas.config import bytes_of
from fedatlas.course.timing import trial
from fedatlas.engine.compiler import find_compiler
from fedatlas.engine.device import free_memory
from fedatlas.engine.executors import Plan
from fedatlas.engine.loop import SerialExecutor
from fedatlas.engine.pool import can_fork
from fedatlas.engine.stacked import worth_stacking
from fedatlas.federation.client_states import PartyState
from fedatlas.federation.party import PartyHalf
from fedatlas.models.inspection import is_recurrent
from fedatlas.rounds import messages
from fedatlas.setup.assembly import Setup, first_server
from fedatlas.setup.cohort import draw_round
from fedatlas.wire import codec

ALONE = 2e8  # operations of a round below which sharing with workers costs more time than it saves


def resolve_plan(setup: Setup, wanted: str | None = None) -> Plan:
    """Return the plan before round 1. ``wanted`` replaces ``engine.plan``."""
    engine = setup.config.engine
    wanted = wanted or engine.plan
    device, threads = "cpu" if engine.device == "auto" else engine.device, machine.cores()
    if engine.name == "loop":
        return Plan("loop", "loop", 1, 1, threads, engine.precision, device, "the oracle: one client after another")
    if wanted == "calibrate":
        return calibrated(setup)
    workers, reason = workers_for(setup) if device == "cpu" else (1, "one process feeds the GPU")
    step = wanted if wanted != "auto" else step_for(setup, workers)
    if step == "stacked":
        small = "small " if device == "cpu" else ""
        reason = "as asked" if wanted == step else f"clients of a {small}dense model train in one stack"
        return Plan("fast", step, 1, chunk_for(setup), threads, engine.precision, device, reason)
    return Plan("fast", step, workers, chunk_for(setup), threads, engine.precision, device, reason)


def calibrated(setup: Setup) -> Plan:
    """Return the fastest plan, timed here on a round with the first clients of the first cohort."""
    cohort = draw_round(setup.config, setup.sizes, setup.seed, 1).round.cohort[: 2 * machine.cores()]
    seconds = {}
    native = find_compiler() is not None and setup.config.engine.device != "cuda"
    for step in ("program", "stacked", "tuned", *(("native",) if native else ())):
        plan = resolve_plan(setup, step)
        seconds[plan] = trial(setup, plan, cohort)[1]
    best = min(seconds, key=seconds.__getitem__)
    figures = ", ".join(f"{plan.step} {value:.3f} s" for plan, value in seconds.items())
    return best._replace(reason=f"calibrated on {len(cohort)} clients: {figures}")


def step_for(setup: Setup, workers: int) -> str:
    """Return the step chosen by rule: in one process, clients of a small dense model train in a stack.

    `worth_stacking` decides which models are small. On a GPU, dense models of any size are stacked. Two workers gain more
    than a stack (docs/performance.md), so several workers use one step per client, as does every other case.
    Gradients that a mechanism clips row by row have the tuned step only.
    """
    how = setup.bench.protection
    if how is not None and any(work.gradient is not None for work in how.works):
        return "tuned"
    if workers > 1:
        return "program"
    local = setup.config.local
    rows = local.batch_size or max(setup.partition.sizes)
    every = [one.params for one in setup.networks.values()]
    dense = all(x.dim() <= 2 for params in every for x in params.values()) and not has_buffers(setup)
    dense = dense and not any(is_recurrent(one.network.module) for one in setup.networks.values())
    small = setup.config.engine.device == "cuda" or all(worth_stacking(params, rows) for params in every)
    return "stacked" if dense and local.optimizer == "sgd" and small else "program"


def has_buffers(setup: Setup) -> bool:
    """Return whether any network has buffers."""
    return any(one.buffers for one in setup.networks.values())


def workers_for(setup: Setup) -> tuple[int, str]:
    """Return the number of workers and the reason: as asked, else one per core if a round is long enough to share."""
    engine = setup.config.engine
    if not can_fork():
        return 1, "this system cannot fork workers, or a GPU is visible (CUDA_VISIBLE_DEVICES= hides it)"
    drawn = draw_round(setup.config, setup.sizes, setup.seed, 1).round
    if engine.workers:
        most = max(len(setup.sizes), 1)
        return min(engine.workers, most), "as asked" if engine.workers <= most else "no more than there are clients"
    cost = 3.0 * max(one.flops for one in setup.networks.values()) * drawn.examples
    if cost < ALONE:
        return 1, f"a round of {cost:.1e} operations is too short to share"
    many = min(machine.cores(), max(drawn.m, 1))
    return many, "one worker per core" if many > 1 else "a single client or core"


def chunk_for(setup: Setup) -> int:
    """Return how many clients' work is held at once: as asked, else as many as fit into memory, at most 256.

    They may take half of ``engine.memory``, or a quarter of the free memory if it is known and less.
    """
    engine = setup.config.engine
    if engine.chunk:
        return engine.chunk
    room, free = bytes_of(engine.memory) // 2, free_memory(engine.device)
    room = room if free is None else min(room, free // 4)  # a stack also holds gradients and activations
    return max(1, min(256, room // max(held(setup), 1)))


def held(setup: Setup) -> int:
    """Return the bytes that one client's work holds until its update is added.

    This is the larger of two models, and the message with four copies of what the client keeps. If architectures differ,
    the largest value counts.
    """
    algorithm, bench = setup.algorithm, setup.bench
    parties = PartyHalf(bench, SerialExecutor(bench), PartyState(), setup.sizes, setup.seed)
    server, found = first_server(setup), 0
    for client in {bench.architecture(k): k for k in sorted(setup.sizes, reverse=True)}.values():
        one = setup.built(bench.architecture(client))
        model = sum(x.numel() * x.element_size() for x in (*one.params.values(), *one.buffers.values()))
        message = messages(algorithm, server, (client,))[client]
        facts = parties.facts(client, 1, setup.config.local.lr, len(setup.sizes), sum(setup.sizes.values()))
        state = parties.state_of(client, message, facts)
        memory = model if bench.transform is not None and bench.transform.memory_init is not None else 0
        kept = codec.size(dict(state)) + memory
        # four copies of what a client keeps: before the work, sent, answered and stored
        found = max(found, 2 * model, codec.size(dict(message)) + 4 * kept)
    return found

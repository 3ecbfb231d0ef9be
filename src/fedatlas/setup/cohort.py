"""Draw the clients of a round, its failures and its stragglers, and its learning rate, from only seed and round."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from fedatlas.algorithm import Budget, Groups, Round, Unit
from fedatlas.config import CohortConfig, ExperimentConfig, ScheduleConfig
from fedatlas.data.batches import examples_of
from fedatlas.privacy.mechanism import Noise
from fedatlas.privacy.sampling import secret_cohort
from fedatlas.rng import numpy_stream


class Drawn(NamedTuple):
    """A round as drawn: the selected clients, and the round of those that will return."""

    selected: tuple[int, ...]  # clients, ascending
    round: Round


def select(config: CohortConfig, clients: list[int], seed: int, number: int) -> tuple[int, ...]:
    """Return the ids selected for a round, in the order drawn (C2).

    Uniform without replacement, m = max(1, floor(C K)) or ``cohort.size``; with Poisson sampling each client is drawn
    independently with probability C. In passes, the clients of a pass of ceil(K / m) rounds are those of one shuffled
    order, m per round, so each takes part once; the last round of a pass has the rest.
    """
    stream = numpy_stream(seed, "sampling", number)
    if config.sampling == "poisson":
        return tuple(k for k, u in zip(clients, stream.random(len(clients)), strict=True) if u < config.fraction)
    m = min(config.size or max(1, math.floor(config.fraction * len(clients) + 1e-9)), len(clients))
    if config.sampling == "passes":
        done, at = divmod(number - 1, -(-len(clients) // m))
        order = numpy_stream(seed, "sampling", "pass", done).permutation(clients)
        return tuple(int(k) for k in order[at * m : (at + 1) * m])
    return tuple(int(k) for k in stream.choice(clients, size=m, replace=False))


def usual_size(config: ExperimentConfig, clients: int) -> float:
    """Return how many clients a round has; with Poisson sampling the mean."""
    cohort = config.cohort
    if cohort.sampling == "poisson":
        return cohort.fraction * clients
    return min(cohort.size or max(1, math.floor(cohort.fraction * clients + 1e-9)), clients)


def local_budget(config: ExperimentConfig) -> Budget:
    """Return the amount of work that ``[local]`` asks for, in steps or epochs."""
    return Budget(steps=config.local.steps) if config.local.steps is not None else Budget(epochs=config.local.epochs)


def draw_round(
    config: ExperimentConfig,
    sizes: Mapping[int, int],
    seed: int,
    number: int,
    groups: Groups | None = None,
    secret: Noise | None = None,
) -> Drawn:
    """Draw the selection, then drop-outs, then stragglers (C11); a straggler runs 1 to E epochs, E included (H9).

    With ``groups``, whole groups are drawn and `[cohort]` counts groups, but single clients fail. With ``secret``, the
    cohort is drawn from that noise source, and whether a client fails does not depend on who else was drawn.
    """
    clients = [k for k in sorted(sizes) if sizes[k] > 0]
    units = [Unit(i, members) for i, members in enumerate(groups or ())]
    if secret is not None:
        selected = secret_cohort(clients, config.cohort.fraction, secret, number)
    elif groups is None:
        selected = tuple(sorted(select(config.cohort, clients, seed, number)))
    else:
        units = [units[i] for i in select(config.cohort, list(range(len(units))), seed, number)]
        selected = tuple(sorted(k for unit in units for k in unit.members))
    failures, epochs = config.failures, config.local.epochs or 0
    slow: dict[int, int] = {}  # clients that run fewer epochs, and how many
    if secret is None:
        stream = numpy_stream(seed, "failures", number)
        chances = stream.random(len(selected))
        back = [k for k, u in zip(selected, chances, strict=True) if u >= failures.dropout]
        struck = stream.permutation(len(back))[: math.floor(failures.stragglers * len(back) + 1e-9)]
        if len(struck) and epochs:
            shorter = stream.integers(1, epochs + 1, size=len(struck))
            slow = {back[i]: int(e) for i, e in zip(struck, shorter, strict=True)}
    else:  # client by client: failures and budgets do not depend on who else was drawn
        own = {k: numpy_stream(seed, "failures", number, k) for k in selected}
        back = [k for k in selected if own[k].random() >= failures.dropout]
        late = [k for k in back if own[k].random() < failures.stragglers] if epochs else []
        slow = {k: int(own[k].integers(1, epochs + 1)) for k in late}
    budgets = {k: Budget(epochs=e) for k, e in slow.items()}
    if failures.straggler_policy == "drop":
        back, budgets = [k for k in back if slow.get(k, epochs) == epochs], {}
    usual = local_budget(config)
    local = config.local
    examples = sum(examples_of(budgets.get(k, usual), sizes[k], local.batch_size, merge=local.merges) for k in back)
    there = [Unit(unit.number, tuple(k for k in unit.members if k in set(back))) for unit in units]
    held = {k: sizes[k] for k in selected}  # also of clients that leave: a masked sum gets their weights before
    total = sum(sizes.values())
    drawn = Round(number, tuple(back), len(sizes), total, held, examples, budgets, seed=seed)
    return Drawn(selected, drawn._replace(units=tuple(there), groups=len(groups or ())))


def learning_rate(schedule: ScheduleConfig, lr: float, number: int, rounds: int) -> float:
    """Return the local learning rate of round ``number`` (from 1); it depends only on the global round (C6).

    With t = number - 1: exponential: lr gamma^t; step: lr gamma^floor(t / every); cosine: lr (1 + cos(pi t / R)) / 2,
    and 0 from t = R on. R is the schedule's ``rounds``, by default the experiment's.
    """
    t = number - 1
    if schedule.name == "exponential":
        return lr * (schedule.gamma or 1.0) ** t
    if schedule.name == "step":
        return lr * (schedule.gamma or 1.0) ** (t // (schedule.every or 1))
    if schedule.name == "cosine":
        return lr * (1 + math.cos(math.pi * min(t / (schedule.rounds or rounds), 1.0))) / 2
    return lr

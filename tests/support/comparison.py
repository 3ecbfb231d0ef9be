"""An algorithm of the registry beside its oracle on one problem: what test_oracles.py and test_mutations.py both ask."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from fedatlas.algorithm import SERVER, Algorithm, Budget, State
from fedatlas.algorithms import ALGORITHMS
from fedatlas.data.batches import Draw, Rows, balanced_rows, batches, parted_rows, public_rows
from fedatlas.errors import DivergedError
from fedatlas.federation.in_process import InProcess
from fedatlas.rng import numpy_stream
from federation import (
    SIZES,
    TWO,
    Convolved,
    Deep,
    Federation,
    Normed,
    Recurrent,
    Smooth,
    another,
    cohorts,
    federation,
    play,
    rows,
    sgd,
)
from oracles.problem import Problem

FOLDER = Path(__file__).parent / "oracles"
DEFAULTS: Mapping[str, Any] = {
    "rounds": 20,
    "m": 3,  # of 5 clients
    "epochs": 2,
    "batch_size": 4,
    "lr": 0.1,
    "weight_decay": 1e-2,
    "momentum": 0.0,
    "decay": 1.0,  # of the rate, from round to round
}
SEED = 1
NETWORKS = {"normed": Normed, "deep": Deep, "convolved": Convolved, "recurrent": Recurrent}


def oracles() -> dict[str, ModuleType]:
    """The oracles by algorithm: every module of tests/support/oracles that has CASES."""
    found = {path.stem: import_module(f"oracles.{path.stem}") for path in sorted(FOLDER.glob("[!_]*.py"))}
    return {name: module for name, module in found.items() if hasattr(module, "CASES")}


def settings(made: Algorithm, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The problem's numbers: the defaults, then what the algorithm fixes, then what the case asks for."""
    fixed = {key.removeprefix("local."): value for key, value in made.fixes.items() if key.startswith("local.")}
    return {**DEFAULTS, **{key: value for key, value in fixed.items() if key in DEFAULTS}, **asked}


def problem_of(fed: Federation, plan: list[tuple[int, ...]], keys: Mapping[str, Any]) -> Problem:
    """What an oracle is told of a federation; the order of rows is fedatlas's own (data/batches.py has its own tests)."""

    def order(n: int, number: int, client: int, epoch: int) -> list[torch.Tensor]:
        index = torch.arange(n)
        draw = Draw(SEED, number, max(client, 0), keys["batch_size"], first_epoch=epoch)
        return [batch.x for batch in batches(Rows(index, index), Budget(epochs=1), draw)]

    def rarest(number: int, client: int) -> torch.Tensor:
        return balanced_rows(fed.held[client].y, SEED, number, client)

    clients = {k: (rows.x, rows.y) for k, rows in fed.held.items()}
    numbers = {key: keys[key] for key in ("epochs", "lr", "weight_decay", "momentum", "decay")}
    further = tuple(another(fed.params, i).flatten() for i in range(1, fed.bench.algorithm.demands.inits))
    stream = partial(numpy_stream, SEED)
    there = [(number, k) for number, cohort in enumerate(plan, start=1) for k in cohort]
    work = {(number, k): 1 + (number + k) % keys["epochs"] for number, k in there if keys.get("stragglers")}
    problem = Problem(
        dict(fed.params), clients, plan, order, **numbers, further=further, stream=stream, work=work, rarest=rarest
    )
    problem = with_public(problem, fed)
    if fed.bench.algorithm.groups is None:
        return problem

    def chain(number: int, group: int, members: tuple[int, ...], turn: int) -> list[int]:
        return [int(k) for k in numpy_stream(SEED, "chain", number, group, turn).permutation(members)]

    return problem._replace(groups=fed.bench.algorithm.groups(fed.begin(lr=keys["lr"])), chain=chain)


def with_public(problem: Problem, fed: Federation) -> Problem:
    """Adds the public rows with fedatlas's own draws of them, and whose network is which."""
    held = fed.bench.rows(SERVER)

    def shuffled(n: int, size: int, number: int, party: int, epoch: int) -> list[torch.Tensor]:
        index = torch.arange(n)
        draw = Draw(SEED, number, max(party, 0), size, first_epoch=epoch)
        return [batch.x for batch in batches(Rows(index, index), Budget(epochs=1), draw)]

    def aside(number: int, share: float) -> torch.Tensor:
        judged = parted_rows(Rows(torch.arange(held.n), held.y), share, SEED, number, 0)[1]
        assert judged is not None
        return judged.x

    return problem._replace(
        public=(held.x, held.y),
        shuffled=shuffled,
        drawn=lambda number, many: public_rows(held.n, many, SEED, number),
        aside=aside,
        kinds={name: dict(one.network.initial()[0]) for name, one in fed.bench.networks.items() if fed.bench.owners},
        owner=dict(enumerate(fed.bench.owners)),
    )


def distance(expected: Any, found: Any) -> float:
    """Largest difference; infinite where either is not a number. A vector stands for a whole tree, in the order of its names."""
    if isinstance(expected, Mapping):
        return max((distance(value, found[key]) for key, value in expected.items()), default=0.0)
    if isinstance(expected, torch.Tensor):
        if isinstance(found, Mapping):
            found = torch.cat([x.reshape(-1) for x in found.values()])
        assert expected.numel() == found.numel()
        gap = float((expected.double().reshape(-1) - found.double().reshape(-1)).abs().max())
        return math.inf if math.isnan(gap) else gap
    return abs(expected - found)


def outcome(server: State, host: InProcess) -> dict[str, Any]:
    """What a run holds at its end, as an oracle states it."""
    return {**server, "clients": {k: host.states.get(k) for k in host.states.after.clients()}}


def disagreement(name: str, case: Mapping[str, Any], build: Callable[..., Algorithm] | None = None) -> float:
    """Largest difference between the oracle ``name`` and the algorithm (or ``build`` in its place) after the last round."""
    parameters = dict(case)
    asked = parameters.pop("problem", {})
    made = (build or ALGORITHMS[name])(**parameters)
    keys = settings(ALGORITHMS[name](**parameters), asked)
    clients = keys.get("clients", len(SIZES))
    fed = federation(
        made,
        rows((*SIZES, 11)[:clients]),
        optimizer=sgd(momentum=keys["momentum"]),
        batch_size=keys["batch_size"],
        budget=Budget(epochs=keys["epochs"]),
        weight_decay=keys["weight_decay"],
        several=TWO if keys.get("several") else None,
        make=next((NETWORKS[name] for name in NETWORKS if keys.get(name)), Smooth),
    )
    problem = problem_of(fed, cohorts(keys["rounds"], clients, keys["m"]), keys)
    expected = oracles()[name].run(problem, **parameters)
    try:
        found = played(fed, problem)
    except DivergedError:  # a fault may do that
        return math.inf
    return distance(expected, found)


def played(fed: Federation, problem: Problem) -> dict[str, Any]:
    """The problem's rounds, each with its rate and its stragglers."""
    host, server = fed.host(seed=SEED), None
    for number, cohort in problem.rounds():
        shorter = {k: Budget(epochs=problem.work[number, k]) for k in cohort if (number, k) in problem.work}
        rate = problem.rate(number)
        server, _ = play(fed, [cohort], lr=rate, server=server, host=host, first=number, budgets=shorter)
    assert server is not None
    return outcome(server, host)

"""A small federation for tests: unequal clients, ragged batches, a smooth network, everything from seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from fedatlas.algorithm import SERVER, UNION, Algorithm, Budget, Round, State, Unit
from fedatlas.algorithms import ALGORITHMS
from fedatlas.data.batches import Rows, examples_of
from fedatlas.engine.attackers import Order
from fedatlas.engine.fast import FastRunner
from fedatlas.engine.job import Bench, Built, Executor, LocalOptions
from fedatlas.engine.loop import SerialExecutor
from fedatlas.engine.model import Network
from fedatlas.engine.optim import Optimizer
from fedatlas.engine.stacked_executor import StackedExecutor
from fedatlas.federation.client_states import PartyState
from fedatlas.federation.in_process import InProcess, server_facts
from fedatlas.federation.start import RoundStart
from fedatlas.models.chain import elastic, find_chain
from fedatlas.privacy.ask_protocol import MEMORY
from fedatlas.rng import numpy_stream
from fedatlas.rounds import federated
from fedatlas.tree import Tree
from fedatlas.wire import codec

SIZES = (5, 12, 9, 21, 7)  # batches of 4 are ragged everywhere but at client 1


class Smooth(nn.Module):
    """4 - 6 - 3 with tanh: no kink at which float32 engines could part."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(4, 6)
        self.head = nn.Linear(6, 3)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.hidden(x))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x))


class Wider(nn.Module):
    """4 - 9 - 3: another architecture."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(4, 9)
        self.head = nn.Linear(9, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.hidden(x)))


class Deep(nn.Module):
    """4 - 6 - 5 - 3: two hidden layers."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(4, 6)
        self.second = nn.Linear(6, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.second(torch.tanh(self.hidden(x)))))


class Convolved(nn.Module):
    """Four numbers as a picture of 2 x 2, two convolutions, 3 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Conv2d(1, 5, 2, padding=1)
        self.second = nn.Conv2d(5, 4, 2)
        self.head = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.hidden(x.reshape(-1, 1, 2, 2)))
        return self.head(torch.tanh(self.second(x)).flatten(1))


class Recurrent(nn.Module):
    """Four numbers as two steps of two, an LSTM, 3 classes from its last step."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(2, 5, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x.reshape(-1, 2, 2))[0][:, -1])


class Normed(nn.Module):
    """4 - 6 - 3 with batch norm: its running statistics are buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(4, 6)
        self.norm = nn.BatchNorm1d(6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.norm(self.hidden(x))))


TWO: Mapping[str, Callable[[], nn.Module]] = {"six": Smooth, "nine": Wider}


def cross_entropy(outputs: torch.Tensor, y: torch.Tensor, weight: torch.Tensor | None = None) -> torch.Tensor:
    losses = nn.functional.cross_entropy(outputs, y, reduction="none")
    return losses.mean() if weight is None else (losses * weight).sum() / weight.sum()


def rows(sizes: tuple[int, ...] = SIZES, dtype: torch.dtype = torch.float64) -> dict[int, Rows]:
    """Labelled rows of each client: three classes, unevenly spread."""
    return {k: rows_of(k, n, dtype) for k, n in enumerate(sizes)}


def rows_of(k: int, n: int, dtype: torch.dtype = torch.float64) -> Rows:
    """The rows of one client, by its number alone."""
    stream = numpy_stream(0, "test", k)
    y = stream.choice(3, size=n, p=np.roll([0.7, 0.2, 0.1], k))
    x = stream.normal(size=(n, 4)) + y[:, None]
    return Rows(torch.tensor(x, dtype=dtype), torch.tensor(y))


def module(make: Callable[[], nn.Module], dtype: torch.dtype = torch.float64) -> nn.Module:
    """A network with the weights of seed 7."""
    with torch.random.fork_rng():
        torch.manual_seed(7)
        return make().to(dtype)


def another(params: Tree, number: int) -> Tree:
    """A further initial model."""
    stream = numpy_stream(7, "init", number)
    return params.map(lambda x: x + torch.tensor(stream.normal(scale=0.5, size=tuple(x.shape)), dtype=x.dtype))


# Work that is long by default and no different for it.
SHORTER = {"fedmd": {"start_epochs": 2, "private_epochs": 3}, "feddf": {"steps": 40, "patience": 10}}


def brief(name: str) -> Algorithm:
    """An algorithm with its defaults, where it works long on public rows with less of that."""
    made: Algorithm = ALGORITHMS[name](**SHORTER.get(name, {}))
    return made


class Federation(NamedTuple):
    """Everything a run needs, without an experiment file."""

    bench: Bench
    held: Mapping[int, Rows]
    params: Tree
    buffers: Tree

    def host(self, make: Callable[[Bench], Executor] = SerialExecutor, seed: int = 1) -> InProcess:
        sizes = {k: r.n for k, r in self.held.items()}
        return InProcess(self.bench, make(self.bench), PartyState(), sizes, seed)

    def begin(self, host: InProcess | None = None, lr: float = 0.1) -> State:
        """The server before round 1, after the algorithm's set-up."""
        algorithm, host = self.bench.algorithm, host or self.host()
        kinds = self.bench.networks if self.bench.owners else {}
        more = {str(i): another(self.params, i) for i in range(1, algorithm.demands.inits)}
        models = {name: one.network.initial()[0] for name, one in kinds.items()} or {"global": self.params, **more}
        server = dict(algorithm.server_init(models, server_facts(self.bench, {k: r.n for k, r in self.held.items()})))
        server = {**server, "buffers": self.buffers} if self.buffers and not kinds else server
        if algorithm.prepare is None:
            return server
        everybody = self.round(0, tuple(sorted(self.held)))
        return host.drive(partial(algorithm.prepare, algorithm, server, everybody), RoundStart(0, lr)) or server

    def round(
        self,
        number: int,
        cohort: tuple[int, ...],
        budgets: Mapping[int, Budget] | None = None,
        server: State | None = None,
    ) -> Round:
        """A round of ``cohort``; where clients are drawn in groups, of the groups that have somebody in it."""
        budgets = budgets or {}
        groups = self.bench.algorithm.groups
        units = [] if groups is None or server is None else [Unit(i, g) for i, g in enumerate(groups(server))]
        there = [Unit(i, tuple(k for k in members if k in cohort)) for i, members in units]
        sizes = {k: r.n for k, r in self.held.items()}
        local = self.bench.local
        examples = sum(
            examples_of(budgets.get(k, local.budget), sizes[k], local.batch_size, merge=local.merge) for k in cohort
        )
        n = sum(sizes.values())
        present = tuple(unit for unit in there if unit.members)
        drawn = Round(number, cohort, len(self.held), n, sizes, examples, budgets, seed=1)
        return drawn._replace(units=present, groups=len(units))


def federation(
    algorithm: Algorithm,
    held: Mapping[int, Rows] | None = None,
    make: Callable[[], nn.Module] = Smooth,
    loss: Any = cross_entropy,
    dtype: torch.dtype = torch.float64,
    several: Mapping[str, Callable[[], nn.Module]] | None = None,
    **local: Any,
) -> Federation:
    """A federation of the clients ``held`` under ``algorithm``; ``local`` are fields of LocalOptions.

    With ``several`` networks the clients have them in turn.
    """
    held = dict(rows(dtype=dtype) if held is None else held)

    def find(party: int) -> Rows:
        if party == SERVER:
            return public
        if party != UNION:
            return held[party]
        return Rows(torch.cat([held[k].x for k in sorted(held)]), torch.cat([held[k].y for k in sorted(held)]))

    public = rows((12,), dtype)[0]
    chain = algorithm.demands.layered
    modules = {name: module(each, dtype) for name, each in (several or {"": make}).items()}
    modules = {name: elastic(each) if chain else each for name, each in modules.items()}
    kinds = {name: Built.of(Network(each, loss)) for name, each in modules.items()}
    network, params, buffers, *_ = next(iter(kinds.values()))
    options = LocalOptions(**{"batch_size": 4, "budget": Budget(epochs=2), **local})
    raw = sum(codec.size({"x": r.x, "y": r.y}) for r in held.values()) if algorithm.card.sends == "rows" else 0
    bench = Bench(algorithm, kinds, find, options, 3, raw_bytes=raw, public=public.n)
    owners = tuple(list(kinds)[k % len(kinds)] for k in range(len(held))) if several else ()
    bench = bench._replace(owners=owners, chain=find_chain(network.module, held[0].x) if chain else ())
    return Federation(bench, held, params, buffers)


def cohorts(rounds: int, K: int = len(SIZES), m: int = 3, seed: int = 1) -> list[tuple[int, ...]]:
    """Partial participation: m of K clients a round."""
    streams = (numpy_stream(seed, "sampling", t) for t in range(1, rounds + 1))
    return [tuple(sorted(int(k) for k in s.choice(K, m, replace=False))) for s in streams]


def play(
    fed: Federation,
    rounds: int | list[tuple[int, ...]] = 3,
    make: Callable[[Bench], Executor] = SerialExecutor,
    seed: int = 1,
    lr: float = 0.1,
    server: State | None = None,
    host: InProcess | None = None,
    first: int = 1,
    budgets: Mapping[int, Budget] | None = None,
    orders: Mapping[int, Order] | None = None,
) -> tuple[State, InProcess]:
    """Runs so many rounds (or the given cohorts) and returns the server's state and the host."""
    plan = cohorts(rounds, len(fed.held), min(3, len(fed.held))) if isinstance(rounds, int) else rounds
    host = host or fed.host(make, seed)
    server = fed.begin(host, lr) if server is None else server
    generate = fed.bench.algorithm.rounds or federated
    for number, cohort in enumerate(plan, start=first):
        limited = {k: b for k, b in (budgets or {}).items() if k in cohort}
        drawn = fed.round(number, cohort, limited, server)
        start = RoundStart(number, lr, orders=orders or {}, told=partial(fed.bench.algorithm.broadcast, server, 0))
        start = start._replace(memories=server.get(MEMORY, {}))
        after = host.drive(partial(generate, fed.bench.algorithm, server, drawn), start)
        server = server if after is None else after  # None: the round was closed without a change
    return server, host


def states(host: InProcess) -> dict[str, object]:
    """What the clients keep, by name."""
    return {str(k): host.states.get(k) for k in host.states.after.clients()}


def fast(bench: Bench) -> SerialExecutor:
    """Step programs in this process."""
    return SerialExecutor(bench, FastRunner(bench, SIZES, "program", "float64"))


def tuned(bench: Bench) -> SerialExecutor:
    """Tuned steps in this process."""
    return SerialExecutor(bench, FastRunner(bench, SIZES, "tuned", "float64"))


def stacked(bench: Bench) -> StackedExecutor:
    """All clients of a round in one stack."""
    return StackedExecutor(bench, FastRunner(bench, SIZES, "stacked", "float64"), 8)


def everyone(fed: Federation, rounds: int) -> list[tuple[int, ...]]:
    """Full participation."""
    return [tuple(sorted(fed.held))] * rounds


def sgd(**keys: Any) -> Optimizer:
    return partial(Optimizer, "sgd")(**keys)


def same(a: Any, b: Any) -> bool:
    """Equal bit for bit, whatever is nested how."""
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    return bool(a == b)


def gap(a: Any, b: Any) -> float:
    """Largest absolute difference of two nested values."""
    if isinstance(a, Mapping):
        assert a.keys() == b.keys()
        return max((gap(a[key], b[key]) for key in a), default=0.0)
    if isinstance(a, torch.Tensor):
        return float((a.double() - b.double()).abs().max()) if a.numel() else 0.0
    return 0.0 if a == b else abs(a - b)

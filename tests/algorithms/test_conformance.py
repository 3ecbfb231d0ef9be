"""The laws every algorithm of the registry is under, without a line of test code of its own (docs/architecture.md).

All run under partial participation, unequal sizes and ragged batches. An algorithm that its mathematics excludes from a law says so
in its record; the number of exclusions is pinned below. The tests of a law are those whose name begins with it; the first line of
the first one's docstring is what docs/conformance.md says of it (``python tests/support/conformance_page.py`` writes that page).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch

import second_device
from fedatlas.algorithm import SERVER, UNION, Algorithm, Budget, State
from fedatlas.algorithms import ALGORITHMS
from fedatlas.engine.fast import FastRunner
from fedatlas.engine.loop import SerialExecutor
from fedatlas.engine.optim import Optimizer
from fedatlas.engine.pool import PoolExecutor, can_fork
from fedatlas.federation.client_states import ClientStates, PartyState
from fedatlas.federation.in_process import InProcess
from fedatlas.federation.link import Reply, Request
from fedatlas.wire import codec
from federation import (
    SIZES,
    Federation,
    brief,
    cohorts,
    cross_entropy,
    fast,
    federation,
    gap,
    play,
    same,
    sgd,
    stacked,
    states,
    tuned,
)
from wire import Wire, spied

NAMES = sorted(ALGORITHMS)
LAWS = (
    "deterministic",
    "pure",
    "order",
    "codec",
    "engines",
    "workers",
    "devices",
    "resume",
    "fixed_point",
    "nobody",
    "leaving",
    "weights",
    "stragglers",
)


def algorithm(name: str, law: str) -> Algorithm:
    """The algorithm with its defaults, or a skip with the reason its record gives."""
    made = brief(name)
    if law in made.card.excluded_laws:
        pytest.skip(f"{name}: {made.card.excluded_laws[law]}")
    return made


@pytest.mark.parametrize("name", NAMES)
def test_deterministic(name: str) -> None:
    """The same seed gives the same bits, and another seed gives others (C16)."""
    fed = federation(algorithm(name, "deterministic"))
    first, host = play(fed)
    again, _ = play(fed)
    other, other_host = play(fed, seed=2)
    assert same(first, again)
    assert not same({"server": first, "clients": states(host)}, {"server": other, "clients": states(other_host)})


@pytest.mark.parametrize("name", NAMES)
def test_pure(name: str) -> None:
    """No function changes its arguments: a state that was passed in is the same afterwards, and a round can be run again from it."""
    fed = federation(algorithm(name, "pure"))
    server, host = play(fed)
    kept, held = codec.encode(dict(server)), {k: codec.encode(dict(host.states.get(k) or {})) for k in range(5)}
    once, _ = play(fed, cohorts(1), server=server, host=host, first=4)
    assert codec.encode(dict(server)) == kept
    fresh = fed.host()
    for k, data in held.items():
        state = codec.decode(data)
        if state:
            fresh.states.after.restore(k, state)
    again, _ = play(fed, cohorts(1), server=server, host=fresh, first=4)
    assert same(once, again)


@pytest.mark.parametrize("name", NAMES)
def test_order(name: str) -> None:
    """The order in which clients are named changes nothing (C8)."""
    fed = federation(algorithm(name, "order"))
    forward, _ = play(fed, [(0, 2, 4), (1, 2, 3)])
    backward, _ = play(fed, [(4, 0, 2), (3, 2, 1)])
    assert same(forward, backward)


@pytest.mark.parametrize("name", NAMES)
def test_codec(name: str) -> None:
    """Sending every message, update and client state as bytes changes no bit, and exactly these bytes are counted."""
    fed = federation(algorithm(name, "codec"))
    plain, host = play(fed)
    sent, sent_host = play(fed, make=Wire)
    assert same(plain, sent)
    assert same(states(host), states(sent_host))
    server, host, wire = spied(fed)
    server, host = play(fed, cohorts(1), server=server, host=host)
    # An update goes to some of the two others; a message is its own node's.
    if fed.bench.algorithm.serverless:
        assert host.cost.bytes_up == wire.up
        assert host.cost.bytes_down == 0 < host.cost.bytes_peer <= 2 * wire.received
        return
    raw = sum(len(codec.encode({"x": rows.x, "y": rows.y})) for rows in fed.held.values())
    crossed = {"messages": (wire.up, wire.down), "rows": (raw, 0), "nothing": (0, 0)}[fed.bench.algorithm.card.sends]
    assert (host.cost.bytes_up, host.cost.bytes_down + host.cost.bytes_peer) == crossed
    if fed.bench.algorithm.card.sends != "messages":
        _, host = play(fed, cohorts(1), server=server, host=host, first=2)
        assert (host.cost.bytes_up, host.cost.bytes_down) == (0, 0)  # rows travel once


KINDS = {"fedavg", "fedadam", "scaffold", "moon", "hwfedavg", "ifca", "ditto", "gossip", "fedseq", "feddf", "fedma"}
"""One of each kind: a mean, states of the server and of clients, features, sums before round 1, several models, own models, no server,
chains, a distilled model and one that grows.
"""

NESTEROV = sgd(momentum=0.9, nesterov=True)
ENGINES = {sgd(): (fast, stacked, tuned), NESTEROV: (fast, stacked, tuned), Optimizer("adam"): (fast, stacked)}


def engine_cases() -> list[Any]:
    """(algorithm, optimiser): those whose optimiser is fixed with it, all others with momentum, and one of each kind with all."""
    found = []
    for name, optimizer in product(NAMES, ENGINES):
        fixed = any(key in brief(name).fixes for key in ("local.momentum", "local.optimizer"))
        if not fixed or optimizer == sgd():
            quick = fixed or optimizer == NESTEROV or name in KINDS
            found.append(pytest.param(name, optimizer, marks=() if quick else pytest.mark.slow))
    return found


@pytest.mark.parametrize(("name", "optimizer"), engine_cases())
def test_engines(name: str, optimizer: Optimizer) -> None:
    """The fast engine agrees with the oracle, in float64 on a smooth network, over rounds, states and ragged batches."""
    fed = federation(algorithm(name, "engines"), optimizer=optimizer, weight_decay=1e-2, clip=1.0)
    oracle, host = play(fed, lr=0.05)
    for make in ENGINES[optimizer]:
        quick, quick_host = play(fed, make=make, lr=0.05)
        assert gap(oracle, quick) < 1e-11
        assert gap(states(host), states(quick_host)) < 1e-10
        for k, work in host.view.work.items():
            assert quick_host.view.work[k].loss == pytest.approx(work.loss, abs=1e-11)


@pytest.mark.parametrize("name", NAMES)
def test_engines_in_float32(name: str) -> None:
    """1e-4 after three rounds in float32."""
    fed = federation(algorithm(name, "engines"), dtype=torch.float32)
    oracle, host = play(fed)
    runner = lambda bench: SerialExecutor(bench, FastRunner(bench, SIZES, "program", "float32"))  # noqa: E731
    quick, quick_host = play(fed, make=runner)
    if "model" not in oracle:  # every client's is its own
        oracle, quick = states(host), states(quick_host)
    else:
        oracle, quick = oracle["model"], quick["model"]
    assert gap(oracle, quick) < 1e-4


@pytest.mark.skipif(not can_fork(), reason="this system cannot fork workers")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in KINDS else pytest.mark.slow) for name in NAMES]
)
def test_workers(name: str) -> None:
    """Any number of workers and any chunk size give the bits of one process under the same plan."""
    fed = federation(algorithm(name, "workers"))

    # One runner for all: its programs are derived once, and hold nothing of a run.
    work = FastRunner(fed.bench, SIZES, "program", "float64")
    alone, host = play(fed, make=lambda bench: SerialExecutor(bench, work))
    for workers, chunk in ((2, 2), (3, 5)):
        made = partial(PoolExecutor, workers=workers, chunk=chunk)
        together, pool_host = play(fed, make=lambda bench, made=made: made(bench, work))
        pool_host.executor.close()
        assert same(alone, together), (workers, chunk)
        assert same(states(host), states(pool_host)), (workers, chunk)


@pytest.mark.parametrize("engine", ["loop", "fast", "stacked"])
@pytest.mark.parametrize("name", NAMES)
def test_devices(name: str, engine: str) -> None:
    """Work on another device, which refuses tensors of two devices, gives the same bits."""
    algorithm(name, "devices")
    found = second_device.ask("law", name, engine)
    assert found["server"]
    assert found["states"]
    here, there = found["steps"]
    assert there == here


@pytest.mark.parametrize("name", NAMES)
def test_resume(name: str) -> None:
    """A run continued from its saved state ends with the bits of an uninterrupted run."""
    fed = federation(algorithm(name, "resume"))
    plan = cohorts(4)
    whole, host = play(fed, plan)
    server, first = play(fed, plan[:2])
    second = fed.host()
    for k in first.states.after.clients():
        second.states.after.restore(k, codec.decode(codec.encode(dict(first.states.get(k) or {}))))
    resumed, _ = play(fed, plan[2:], server=codec.decode(codec.encode(dict(server))), host=second, first=3)
    assert same(whole, resumed)
    assert same(states(host), states(second))


def flat(outputs: torch.Tensor, y: torch.Tensor, weight: torch.Tensor | None = None) -> torch.Tensor:
    """A loss without a gradient."""
    return 0 * outputs.sum()


def models_of(fed: Federation, server: State, host: InProcess) -> dict[str, Any]:
    """Every model that the server names and every one that a client would use."""
    made = fed.bench.algorithm
    found: dict[str, Any] = {"model": server.get("model", {}), **made.models(server)}
    if made.personal is None:
        return found
    for k in fed.held:
        message = made.broadcast(server, k)
        state = host.state_of(k, message, host.facts(k, 1, 0.1)) if made.client_init is not None else {}
        found[f"client {k}"] = made.personal(message, state)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_fixed_point(name: str) -> None:
    """If no client has a gradient nothing moves, neither the server's models nor the clients' own."""
    fed = federation(algorithm(name, "fixed_point"), loss=flat)
    host = fed.host()
    begun = fed.begin(host)
    before = models_of(fed, begun, host)
    server, host = play(fed, server=begun, host=host)
    assert gap(models_of(fed, server, host), before) < 1e-15


@pytest.mark.parametrize("name", NAMES)
def test_nobody(name: str) -> None:
    """A round that nobody returns from changes nothing (C11)."""
    fed = federation(algorithm(name, "nobody"))
    server, host = play(fed, 2)
    after, _ = play(fed, [()], server=server, host=host, first=3)
    assert same(server, after)


class Losing(InProcess):
    """Loses a client's reply in every ask of the set-up and in every one of a round after the first; or all of one ask of round 2."""

    silent = 0  # which ask of round 2 nobody's reply arrives of
    asks = 0  # of round 2

    def __call__(self, requests: Sequence[Request], deadline: float | None) -> Iterator[Reply]:
        self.asks = max([self.asks, *(request.number + 1 for request in requests if request.round == 2)])
        last = max(request.client for request in requests)
        for request, reply in zip(requests, super().__call__(requests, deadline), strict=True):
            if request.client == SERVER:  # hears itself
                yield reply
            elif self.silent:
                if (request.round, request.number + 1) != (2, self.silent):
                    yield reply
            elif (request.number == 0 and request.round > 0) or len(requests) == 1 or request.client != last:
                yield reply


@pytest.mark.parametrize("name", NAMES)
def test_leaving(name: str) -> None:
    """A client that leaves between two asks of a round does no harm: the others end it, and without gradients nothing moves.

    Neither do replies that are lost after the work was done: the next round goes on from what the server has.
    """
    asked = {cross_entropy: 0, flat: 0}
    for loss, silent in product((cross_entropy, flat), (0, 1, 2, 3)):
        if silent > asked[loss]:  # where all replies arrive the laws above look
            continue
        fed = federation(algorithm(name, "leaving"), loss=loss)
        host = Losing(fed.bench, SerialExecutor(fed.bench), PartyState(), {k: r.n for k, r in fed.held.items()}, 1)
        host.silent = silent
        begun = fed.begin(host)
        before = models_of(fed, begun, host)
        server, _ = play(fed, [(0, 1, 2), (1, 2, 3), (2, 3, 4)], server=begun, host=host)
        asked[loss] = max(asked[loss], host.asks)
        assert all(x.isfinite().all() for model in models_of(fed, server, host).values() for x in model.values())
        if loss is flat and "fixed_point" not in fed.bench.algorithm.card.excluded_laws:
            assert gap(models_of(fed, server, host), before) < 1e-15


@pytest.mark.parametrize("name", NAMES)
def test_weights_sum_to_one_over_those_who_returned(name: str) -> None:
    """No model shrinks because a client stayed away (C3): checked on the weights if there is one set, and on the models."""
    made = algorithm(name, "weights")
    _, host = play(federation(made), [(1, 3)])
    if host.cost.weights:
        assert sum(host.cost.weights.values()) == pytest.approx(1, abs=1e-12)
    if "fixed_point" in made.card.excluded_laws:
        return
    fed = federation(made, loss=flat)
    host = fed.host()
    begun = fed.begin(host)
    before = models_of(fed, begun, host)
    for number, cohort in enumerate([(1, 3), (0,), (2, 3, 4)], start=1):
        begun, host = play(fed, [cohort], server=begun, host=host, first=number)
        assert gap(models_of(fed, begun, host), before) < 1e-12


@pytest.mark.parametrize("name", NAMES)
def test_stragglers_shorter_work_is_counted(name: str) -> None:
    """Stragglers' shorter work reaches the algorithm: one step more or less gives another result."""
    fed = federation(algorithm(name, "stragglers"), optimizer=sgd())
    usual, host = play(fed, [(0, 1, 2)])
    short, short_host = play(fed, [(0, 1, 2)], budgets={1: Budget(epochs=1)})
    if (
        fed.bench.algorithm.card.sends == "rows"
    ):  # one party, which goes through as many examples as the cohort would have
        assert host.view.work[UNION].examples - short_host.view.work[UNION].examples == 12
    else:  # an epoch of three steps less in each of its trainings
        less = host.view.work[1].steps - short_host.view.work[1].steps
        assert less > 0
        assert less % 3 == 0
    assert not same({"s": usual, "c": states(host)}, {"s": short, "c": states(short_host)})


def test_only_baselines_send_no_messages() -> None:
    """What crosses is the messages, but for the two ends that no federation is: pinned, so that no method counts itself cheap."""
    sends = {name: ALGORITHMS[name]().card.sends for name in NAMES}
    assert {name: what for name, what in sends.items() if what != "messages"} == {
        "centralised": "rows",
        "local_only": "nothing",
    }


def test_exclusions_are_pinned() -> None:
    """An algorithm may only leave a law that its mathematics excludes."""
    made: Callable[[str], Algorithm] = lambda name: ALGORITHMS[name]()  # noqa: E731
    assert {name: set(made(name).card.excluded_laws) for name in NAMES if made(name).card.excluded_laws} == {
        "fedmd": {"fixed_point"}
    }


def test_states_survive_a_small_memory() -> None:
    """Client states that spill to disk come back bit for bit."""
    fed = federation(ALGORITHMS["scaffold"]())
    plain, host = play(fed, 4)
    tight = InProcess(
        fed.bench,
        SerialExecutor(fed.bench),
        PartyState(ClientStates(budget=1)),
        {k: r.n for k, r in fed.held.items()},
        1,
    )
    spilled, _ = play(fed, 4, host=tight)
    assert same(plain, spilled)
    assert same(states(host), states(tight))
    tight.states.close()

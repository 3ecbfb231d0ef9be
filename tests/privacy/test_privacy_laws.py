"""The laws of tests/algorithms/test_conformance.py under the mechanisms: codec, order, workers, resume, leaving, stragglers.

A mechanism that its mathematics excludes from a law says so in EXCLUDED, as an algorithm does in its record.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from fedatlas.algorithm import Ask, Budget, Replies
from fedatlas.algorithms import ALGORITHMS
from fedatlas.engine.job import Bench
from fedatlas.engine.loop import run_job
from fedatlas.engine.pool import PoolExecutor, can_fork
from fedatlas.federation.link import Reply, Request
from fedatlas.privacy.mechanisms import local_dp
from fedatlas.wire import codec
from federation import Federation, brief, cohorts, cross_entropy, federation, gap, play, same, sgd, states
from protected import ADMITTED, MASKS, MECHANISMS, Host, protected, without_noise
from test_conformance import Losing, flat
from wire import Wire

pytestmark = pytest.mark.timing

EXCLUDED = {
    ("central_dp", "fixed_point"): "its noise moves a model that no client moves",
    ("adaptive", "fixed_point"): "its noise moves a model that no client moves",
    ("dp_ftrl", "fixed_point"): "its noise moves a model that no client moves",
    ("central_dp", "codec"): "its bytes would tell how many came: rows hold none",
    ("distributed_dp", "fixed_point"): "the noise of its clients moves a model that no client moves",
    ("ckks", "fixed_point"): "the noise of who opens a sum moves a model that no client moves",
    ("ckks", "bits"): "the noise of who opens a sum comes from the operating system",
}
"""(mechanism, law): why it cannot hold."""

NOISY = ("central_dp", "adaptive", "dp_ftrl", "distributed_dp")
NOISED = ("fedavg", "scaffold", "fedadam", "moon")
PLAN = cohorts(3, m=4)
WITHIN = (
    2e-4  # of states after three rounds by CKKS: the noise of a sum, 1e-5 at most, through three rounds of training
)


QUICK = {
    *(("secagg", name) for name in ("fedavg", "scaffold", "hwfedavg")),
    *((kind, "fedavg") for kind in ("threshold_paillier", "ckks", "adaptive", "distributed_dp")),
    *((kind, "scaffold") for kind in ("bfv", "two_server", "central_dp", "dp_ftrl")),
    ("paillier", "hwfedavg"),
}
"""Each mechanism with one algorithm, and one mechanism with one algorithm of each kind: a mean, states, sums before round 1."""


def cases(quick: Collection[tuple[str, str]] = frozenset(QUICK)) -> list[Any]:
    """(mechanism, algorithm): those of ``quick``, and all others marked slow."""
    masked = [(kind, name) for kind in MASKS for name in ADMITTED]
    whole = [*masked, *((kind, name) for kind in NOISY for name in NOISED)]
    assert {*quick} <= {*whole}
    return [pytest.param(*one, marks=() if one in quick else pytest.mark.slow) for one in whole]


def made(kind: str, name: str, **more: Any) -> tuple[Federation, Host]:
    return protected(algorithm_of(kind, name), MECHANISMS[kind](), **more)


def algorithm_of(kind: str, name: str) -> Any:
    """With equal weights where noise needs them."""
    if kind in NOISY and name != "scaffold":
        return ALGORITHMS[name](weights="uniform")
    return brief(name)


def agree(kind: str, one: Any, other: Any) -> bool:
    """Whether two states have the same bits, or agree within what three opened sums may be off where noise excludes it."""
    return gap(one, other) < WITHIN if (kind, "bits") in EXCLUDED else same(one, other)


@pytest.mark.parametrize(("kind", "name"), cases())
def test_order(kind: str, name: str) -> None:
    """The order in which clients are named changes nothing."""
    fed, host = made(kind, name)
    forward, _ = play(fed, [(0, 2, 4), (1, 2, 3)], host=host)
    backward, _ = play(fed, [(4, 0, 2), (3, 2, 1)], host=made(kind, name)[1])
    assert agree(kind, forward, backward)


class Secretive(Wire):
    """A wire that what a party is told of its sealing crosses as well, and what its questions left in its memory."""

    def run(self, jobs: Any) -> Any:
        turned = lambda x: None if x is None else codec.decode(codec.encode(x))  # noqa: E731
        return super().run(job._replace(word=turned(job.word), session=turned(job.session)) for job in jobs)


@pytest.mark.parametrize(("kind", "name"), cases())
def test_codec(kind: str, name: str) -> None:
    """Words, sessions, masked inputs and ciphertexts sent as bytes change no bit; the bytes counted are those that crossed."""
    fed, host = made(kind, name)
    plain, _ = play(fed, PLAN, host=host)
    wires: list[Secretive] = []

    def wired(bench: Bench) -> Secretive:
        wires.append(Secretive(bench))
        return wires[-1]

    _, other = made(kind, name, executor=wired)
    sent, _ = play(fed, PLAN[:2], host=other)
    before, silent = wires[-1].received, 0
    answer = other.server.answer

    def watched(ask: Ask) -> Replies:
        nonlocal silent
        received = wires[-1].received
        replies = answer(ask)
        silent += wires[-1].received - received if ask.to == (-1,) else 0  # the server, which talks to itself
        return replies

    other.server.answer = watched
    sent, _ = play(fed, PLAN[2:], host=other, server=sent, first=3)
    assert agree(kind, plain, sent)
    assert agree(kind, states(host), states(other))
    if (kind, "codec") not in EXCLUDED:
        assert other.cost.bytes_up == wires[-1].received - before - silent


@pytest.mark.skipif(not can_fork(), reason="this system cannot fork workers")
@pytest.mark.parametrize(
    ("kind", "name"), cases({("secagg", "scaffold"), ("paillier", "fedavg"), ("bfv", "fedavg"), ("ckks", "fedavg")})
)
def test_workers(kind: str, name: str) -> None:
    """Keys, sessions and noise in two processes: the bits of one."""
    fed, host = made(kind, name)
    alone, _ = play(fed, PLAN, host=host)
    pool = partial(PoolExecutor, run_job=run_job, workers=2, chunk=2)
    _, other = made(kind, name, executor=pool)
    together, _ = play(fed, PLAN, host=other)
    other.executor.close()
    assert agree(kind, alone, together)
    assert agree(kind, states(host), states(other))


@pytest.mark.parametrize(("kind", "name"), cases())
def test_resume(kind: str, name: str, tmp_path: Path) -> None:
    """Continued from its saved state with other keys, a run ends with the bits of one never stopped."""
    fed, host = made(kind, name)
    whole, _ = play(fed, PLAN, host=host)
    _, first = made(kind, name, folder=tmp_path)
    server, _ = play(fed, PLAN[:1], host=first)
    _, second = made(kind, name, folder=tmp_path)
    for k in first.states.after.clients():
        second.states.after.restore(k, codec.decode(codec.encode(dict(first.states.get(k) or {}))))
    resumed, _ = play(fed, PLAN[1:], server=codec.decode(codec.encode(dict(server))), host=second, first=2)
    assert agree(kind, whole, resumed)
    assert agree(kind, states(host), states(second))


class Leaky(Host, Losing):
    """Loses replies as the law of leaving has it."""

    def __call__(self, requests: Sequence[Request], deadline: float | None) -> Iterator[Reply]:
        return Losing.__call__(self, requests, deadline)


@pytest.mark.parametrize(("kind", "name"), cases())
def test_leaving(kind: str, name: str) -> None:
    """Who leaves between two asks, phases among them, spoils nothing; where nobody has a gradient nothing moves."""
    for loss, lost in [(cross_entropy, 0), (cross_entropy, 3), *((flat, ask) for ask in range(5))]:
        fed, host = made(kind, name, loss=loss)
        host.__class__ = Leaky
        host.silent = lost
        begun = fed.begin(host)
        server, _ = play(fed, [(0, 1, 2, 3), (0, 1, 2, 3, 4)], server=begun, host=host)
        model = server.get("model", {})
        assert all(bool(x.isfinite().all()) for x in model.values())
        if loss is flat and (kind, "fixed_point") not in EXCLUDED and name != "fedmd":
            assert gap(dict(model), dict(begun.get("model", {}))) < 1e-15


@pytest.mark.parametrize(("kind", "name"), cases())
def test_stragglers(kind: str, name: str) -> None:
    """Shorter work reaches the algorithm through the sum."""
    fed, host = made(kind, name, optimizer=sgd())
    _, other = made(kind, name, optimizer=sgd())
    usual, _ = play(fed, [(0, 1, 2)], host=host)
    short, _ = play(fed, [(0, 1, 2)], host=other, budgets={1: Budget(epochs=1)})
    less = host.view.work[1].steps - other.view.work[1].steps
    assert less > 0
    assert not same({"s": usual, "c": states(host)}, {"s": short, "c": states(other)})


def test_each_mechanism_has_a_quick_case() -> None:
    assert {kind for kind, _ in QUICK} == {*MASKS, *NOISY} == {*MECHANISMS}


def test_exclusions_say_why() -> None:
    """Only what the mathematics of noise excludes, pinned."""
    noise = {("central_dp", "codec"), *((kind, "fixed_point") for kind in NOISY)}
    assert set(EXCLUDED) == noise | {("ckks", "fixed_point"), ("ckks", "bits")}
    assert all(len(why) > 20 for why in EXCLUDED.values())


# ---------------------------------------------------------------------- noise


@pytest.mark.skipif(not can_fork(), reason="this system cannot fork workers")
def test_two_workers_never_share_a_stream_of_noise() -> None:
    """Clients without a gradient send pure noise: over workers, clients and rounds no two pieces of it are alike, or related."""
    noise = local_dp(epsilon=1.0, clip=1.0, noise="os")
    pool = partial(PoolExecutor, run_job=run_job, workers=2, chunk=1)
    fed, host = protected(ALGORITHMS["fedavg"](weights="uniform"), noise, executor=pool, loss=flat)
    drawn: list[torch.Tensor] = []
    host.alter = lambda request, update: drawn.append(update["model"].flatten().clone()) or update
    play(fed, [tuple(range(5))] * 3, host=host)
    host.executor.close()
    rows = torch.stack(drawn)
    assert rows.shape == (15, 51)
    related = torch.corrcoef(rows) - torch.eye(15)
    assert float(related.abs().max()) < 0.75  # 105 pairs of 51 numbers: 0.4 is usual, one stream taken twice is 1
    (event,) = fed.bench.protection.released(1, (0,))
    scale = event.multiplier * event.sensitivity
    assert float(rows.std()) == pytest.approx(scale, rel=0.15)


@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_without_noise_bound_or_sampling_it_is_the_plain_mean(name: str) -> None:
    """z = 0, a bound that nothing reaches, everybody, equal weights: uniform FedAvg, over rounds and states."""
    uniform = algorithm_of("central_dp", name)
    fed, host = protected(uniform, without_noise())
    everybody = [tuple(range(5))] * 3
    found, _ = play(fed, everybody, host=host)
    plain, plain_host = play(federation(uniform), everybody)
    assert gap(found, plain) < 1e-12
    assert gap(states(host), states(plain_host)) < 1e-12


@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_an_empty_cohort_gets_its_noise(name: str) -> None:
    """Nobody came, and the model moves as much as if somebody had: by z S / (q K) a number."""
    clip, multiplier, fraction = 0.5, 2.0, 0.3
    mechanism = without_noise(clip=clip, noise_multiplier=multiplier)
    fed, host = protected(algorithm_of("central_dp", name), mechanism, fraction=fraction)
    server, moved = fed.begin(host), []
    for number in range(1, 61):
        after, _ = play(fed, [()], server=server, host=host, first=number)
        moved.append((after["model"] - server["model"]).flatten())
        server = after
    assert not host.requests
    noise = torch.stack(moved)
    std = multiplier * clip / (fraction * 5)
    assert noise.numel() == 60 * 51
    assert float(noise.std()) == pytest.approx(std, rel=0.06)  # 3060 draws: 1.3 % is one standard deviation
    assert abs(float(noise.mean())) < 5 * std / noise.numel() ** 0.5


@pytest.mark.parametrize("gone", range(5))
def test_one_client_moves_the_sum_by_the_bound_at_most(gone: int) -> None:
    """Before noise, S / (q K) with S short enough to clip everybody; the bound is reached up to rounding."""
    clip, fraction = 0.01, 0.5
    found = []
    for cohort in (tuple(range(5)), tuple(k for k in range(5) if k != gone)):
        fed, host = protected(algorithm_of("central_dp", "fedavg"), without_noise(clip=clip), fraction=fraction)
        server, _ = play(fed, [cohort], host=host)
        found.append(server["model"])
    moved = float((found[0] - found[1]).flatten().norm())
    bound = clip / (fraction * 5)
    assert 0.99 * bound < moved <= bound * (1 + 1e-12)

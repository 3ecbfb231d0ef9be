"""Central differential privacy over masked sums: sensitivity of what is rounded, a fixed denominator, noise for rounds that fail."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedatlas import config
from fedatlas.algorithms import ALGORITHMS
from fedatlas.errors import ConfigError, PrivacyError
from fedatlas.federation.secrets import LEDGER
from fedatlas.privacy import accountant, ledger
from fedatlas.privacy.ask_protocol import WORK
from fedatlas.privacy.central_dp.masked import rounding, shortened
from fedatlas.privacy.clipping import vector
from fedatlas.privacy.mechanism import Mechanism
from fedatlas.privacy.mechanisms import (
    beside,
    central_dp,
    distributed_dp,
    local_dp,
    of_tables,
    paillier,
    secagg,
    server_sees,
)
from fedatlas.privacy.protocol import Doing
from fedatlas.privacy.secagg import fixed
from fedatlas.privacy.secagg.secure_sum import KEYS, UNMASK
from fedatlas.setup.mechanism_choice import check_pairs
from fedatlas.setup.refusals import check
from fedatlas.setup.resolution import resolve
from fedatlas.tree import Tree
from fedatlas.wire import codec
from federation import play, same, states
from protected import ALL, protected, silent

pytestmark = pytest.mark.timing

CLIP = 0.25
DOING = Doing(0, 1, "train", 0, 5)


def pair(z: float = 0.0, clip: float = CLIP, **keys: Any) -> tuple[Mechanism, ...]:
    return beside([secagg(**keys), central_dp(clip=clip, noise_multiplier=z, noise="seed")])


def equal_weights(name: str) -> Any:
    return ALGORITHMS[name]() if name == "scaffold" else ALGORITHMS[name](weights="uniform")


# ---------------------------------------------------------------------- what one client moves


@pytest.mark.parametrize(("bits", "d"), [(8, 10), (12, 2000), (24, 50_000)])
def test_the_rounded_change_is_within_the_clip(bits: int, d: int) -> None:
    """As it is in the masked sum, at every length: halves of a step, which rounding lengthens most, among them."""
    clients, masks = 20, pair(clip=1.0, bits=bits, range=2.0)[1]
    form = fixed.fixed(clients, bits, 2.0)
    half = rounding(masks, clients)
    drawn, one = torch.randn(d, generator=torch.Generator().manual_seed(1)), torch.eye(1, d)[0]
    for x in (torch.full((d,), 0.5001 * form.step * clients), drawn, 9 * one):
        short = shortened({"model": Tree(w=x.double())}, 1.0, clients, half, DOING)
        words = fixed.values(vector(short), form, 0, "model", 1 / clients)
        moved = float(np.linalg.norm(words.view(np.int32) * form.step))
        assert moved <= 1.0 / clients


def test_rounding_that_leaves_too_little_of_the_clip_is_refused() -> None:
    _, masks = pair(clip=0.01, bits=8)
    with pytest.raises(PrivacyError, match="take more bits, or a smaller range"):
        shortened({"model": Tree(w=torch.ones(1000))}, 0.01, 20, rounding(masks, 20), DOING)


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedadam"])
def test_one_clients_change_moves_the_value_by_the_clip_over_all_clients(name: str) -> None:
    """With and without the change of client 2, nothing else differing, and whoever leaves: the denominator stays 5."""
    values = []
    for told in (1.0, 0.0):
        fed, host = protected(equal_weights(name), *pair())
        around = type(host.server.guard).around

        def watched(guard: Any, server: Any, ask: Any, place: Any, around: Any = around) -> Any:
            replies = yield from around(guard, server, ask, place)
            values.append(vector(replies.value))
            return replies

        host.server.guard = type("Watching", (type(host.server.guard),), {"around": watched})(*host.server.guard)
        how = host.server.guard.protection.mechanisms[0]
        work = how.work()

        def scaled(changes: Any, how: Any, doing: Doing, work: Any = work, told: float = told) -> Any:
            found = work.update(changes, how, doing)
            return {part: x.map(lambda t: t * (told if doing.client == 2 else 1.0)) for part, x in found.items()}

        one = how._replace(work=lambda work=work, scaled=scaled: work._replace(update=scaled))
        protection = host.server.guard.protection._replace(mechanisms=(one, host.server.guard.protection.mechanisms[1]))
        host.server.guard = host.server.guard._replace(protection=protection)
        host.executor.bench = host.executor.bench._replace(protection=protection)
        host.leavers = {1: {4: WORK}}
        play(fed, [(0, 1, 2, 3)], host=host)
    moved = float((values[0] - values[1]).norm())
    assert 0.9 * CLIP / 5 < moved <= CLIP / 5


# ---------------------------------------------------------------------- rounds


def test_the_noise_is_of_the_stated_size(tmp_path: Path) -> None:
    def outcome(z: float) -> Any:
        fed, host = protected(equal_weights("fedavg"), *pair(z), folder=tmp_path / str(z))
        server, _ = play(fed, [ALL], host=host)
        return vector({"model": server["models"]["global"]} if "models" in server else {"model": server["model"]})

    moved = (outcome(40.0) - outcome(0.0)).numpy()
    assert abs(moved.std() / (40 * CLIP / 5) - 1) < 4 / math.sqrt(2 * len(moved))
    (event,) = ledger.read(tmp_path / "40.0" / LEDGER).events
    assert (event.noise, event.multiplier, event.sensitivity) == ("gaussian", 40.0, CLIP)
    assert (event.neighbours, event.rate) == ("zero out", 1.0)
    assert accountant.spent([event], 1e-5).epsilon < 0.2


@pytest.mark.parametrize("what", [KEYS, "train", UNMASK])
def test_a_round_that_fails_releases_noise_only(tmp_path: Path, what: str) -> None:
    fed, host = protected(equal_weights("scaffold"), *pair(1.0), folder=tmp_path)
    server, _ = play(fed, [ALL], host=host)
    before = codec.encode(states(host))
    host.lose = silent(what, {0, 1, 2}, {2})
    after, _ = play(fed, [ALL], server=server, host=host, first=2)
    assert not same(server, after)
    assert codec.encode(states(host)) == before  # nobody counts
    assert [event.round for event in ledger.read(tmp_path / LEDGER).events] == [1, 2]
    quiet, other = protected(equal_weights("scaffold"), *pair(0.0))
    begun, _ = play(quiet, [ALL], host=other)
    other.lose = silent(what, {0, 1, 2}, {2})
    assert same(begun, play(quiet, [ALL], server=begun, host=other, first=2)[0])  # the sum is of nothing


def test_a_round_that_all_leave_releases_noise_only(tmp_path: Path) -> None:
    fed, host = protected(equal_weights("fedavg"), *pair(1.0), folder=tmp_path)
    server, _ = play(fed, [ALL], host=host)
    after, _ = play(fed, [()], server=server, host=host, first=2)
    assert not same(server, after)
    assert len(ledger.read(tmp_path / LEDGER).events) == 2


def test_a_repeated_round_takes_the_noisy_sum_from_the_journal(tmp_path: Path) -> None:
    fed, host = protected(equal_weights("scaffold"), *pair(1.0), folder=tmp_path)
    begun = codec.encode(dict(fed.begin(host)))
    once, _ = play(fed, [ALL], server=codec.decode(begun), host=host)
    lines = (tmp_path / LEDGER).read_bytes()
    again, other = protected(equal_weights("scaffold"), *pair(1.0), folder=tmp_path)
    repeated, _ = play(again, [ALL], server=codec.decode(begun), host=other)
    assert same(once, repeated)
    assert same(states(host), states(other))
    assert (tmp_path / LEDGER).read_bytes() == lines


# ---------------------------------------------------------------------- what goes together


BOTH = ["privacy.central_dp.clip=0.5", "privacy.secagg={}", "algorithm.weights=uniform"]


def refusal(*given: str) -> str:
    with pytest.raises(ConfigError) as error:
        check(resolve(config.read(None, [*BOTH, *given])))
    assert "\n" not in str(error.value)
    return str(error.value)


def test_everybody_is_asked_or_it_is_refused() -> None:
    check(resolve(config.read(None, [*BOTH, "cohort.fraction=1.0"])))
    for given in (
        ["cohort.fraction=0.5"],
        ["cohort.fraction=0.5", "cohort.sampling=poisson"],
        ["cohort.size=4"],
    ):
        assert "drawing clients hides nobody; write cohort.fraction = 1, or take 'distributed_dp'" in refusal(*given)
    assert "privacy.secagg.range = 0.5: a change may be as long" in refusal("privacy.secagg.range=0.5")


def test_every_other_pair_stays_refused() -> None:
    central, masks, local = central_dp(clip=1.0), secagg(), local_dp(epsilon=1.0, clip=1.0)
    check_pairs(beside([central, masks]))
    for made in ([central, paillier()], [central, local], [central, local, masks], [distributed_dp(clip=1.0), masks],
                 [distributed_dp(clip=1.0), central]):  # fmt: skip
        with pytest.raises(ConfigError, match=r"cannot be combined|both hide"):
            check_pairs(beside(made))


def test_words_say_whom_to_trust_and_the_server_sees_sums_without_noise() -> None:
    tables = [{"name": "central_dp", "clip": 1.0}, {"name": "secagg"}]
    central, masks = of_tables(tables)
    assert masks == secagg() or masks.name == "secagg"
    assert "epsilon does not hold against the server" in central.learns.server
    assert server_sees([central, masks]) == "sums"
    assert server_sees([distributed_dp(clip=1.0)]) == "noisy_sums"
    assert "every update in the clear" in of_tables(tables[:1])[0].learns.server

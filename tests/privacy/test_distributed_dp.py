"""Distributed differential privacy: the noise of a sum whoever leaves, the sensitivity of rounded vectors, words that do not wrap."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedatlas.algorithm import Update
from fedatlas.algorithms import ALGORITHMS
from fedatlas.engine.loop import SerialExecutor
from fedatlas.errors import PrivacyError
from fedatlas.federation.secrets import LEDGER
from fedatlas.privacy import ledger
from fedatlas.privacy.ask_protocol import WORK
from fedatlas.privacy.distributed_dp import noisy_sum
from fedatlas.privacy.distributed_dp.noisy_sum import within
from fedatlas.privacy.distributed_dp.shares import NoisySum, check_fits, honest, tail, variance
from fedatlas.privacy.mechanism import Mechanism, Protection
from fedatlas.privacy.mechanisms import distributed_dp
from fedatlas.privacy.secagg import masks
from fedatlas.privacy.secagg.keys import MOST, threshold_of, tolerated
from fedatlas.privacy.secagg.secure_sum import AGREE, KEYS, SHARES, UNMASK
from fedatlas.tree import Tree
from fedatlas.wire import codec
from federation import Federation, fast, gap, play, same, stacked, states
from protected import ALL, Host, protected, silent

pytestmark = pytest.mark.timing

CLIP = 0.25
ADMITTED = ("fedsgd", "fedavg", "fedavgm", "fedadagrad", "fedadam", "fedyogi", "fedprox", "moon", "ditto", "scaffold")


def made(**keys: Any) -> Mechanism:
    return distributed_dp(**{"clip": CLIP, "noise_multiplier": 0.5, "noise": "seed", **keys})


def equal_weights(name: str) -> Any:
    return ALGORITHMS[name]() if name == "scaffold" else ALGORITHMS[name](weights="uniform")


def played(name: str, how: Mechanism, **more: Any) -> tuple[Federation, Host]:
    return protected(equal_weights(name), how, **more)


def keys_of(**more: Any) -> NoisySum:
    return NoisySum(**{**distributed_dp(clip=CLIP).keys, **more})


class Watched:
    """What each client had before it was protected, its noise in steps by (round, client), and the value of every opened sum."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.changes: dict[int, Update] = {}
        self.noise: dict[tuple[int, int], Any] = {}
        self.opened: list[Update] = []
        sealed, around, skellam = noisy_sum.sealed, noisy_sum.around, noisy_sum.skellam

        def noted(how: Any, update: Update, doing: Any, *rest: Any) -> Any:
            self.changes[doing.client] = update
            return sealed(how, update, doing, *rest)

        def drawn(n: int, spread: int, noise: Any, *key: Any) -> Any:
            found = self.noise[key[1], key[2]] = skellam(n, spread, noise, *key)
            return found

        def watched(*given: Any) -> Any:
            replies = yield from around(*given)
            self.opened.append(replies.value)
            return replies

        monkeypatch.setattr(noisy_sum, "sealed", noted)
        monkeypatch.setattr(noisy_sum, "skellam", drawn)
        monkeypatch.setattr(noisy_sum, "around", watched)


# ---------------------------------------------------------------------- the share of each client


@pytest.mark.parametrize("threshold", [0.51, 2 / 3, 0.8, 1.0])
def test_noise_of_every_sum_that_can_be_opened_suffices(threshold: float) -> None:
    """For each cohort and number of colluding clients: t - c shares are z S at least; or nobody takes part."""
    for asked in range(3, MOST + 1):
        needed = max(threshold_of(asked, threshold), 3)
        for colluding in range(1, asked + 1):
            how = keys_of(threshold=threshold, colluding=colluding, noise_multiplier=0.7)
            if colluding > tolerated(asked, needed):
                with pytest.raises(PrivacyError, match="may collude"):
                    variance(how, asked, needed)
                continue
            share = variance(how, asked, needed)
            assert (needed - colluding) * share >= (0.7 * how.steps) ** 2
            assert (needed - colluding) * (share - 1) < (0.7 * how.steps) ** 2  # and no more than that


def test_the_honest_of_a_sum_are_those_who_signed_for_it() -> None:
    """Of all sets of t signers of which c collude, the fewest honest: counted one by one."""
    for asked, colluding in ((5, 1), (7, 2), (9, 2)):
        needed = threshold_of(asked)
        fewest = min(
            len({*signers} - {*range(colluding)})
            for size in range(needed, asked + 1)
            for signers in itertools.combinations(range(asked), size)
        )
        assert honest(keys_of(colluding=colluding), asked, needed) == fewest


@pytest.mark.parametrize("leaving", [(), (1,), (4,)])
def test_the_opened_sum_holds_the_noise_whoever_leaves(
    monkeypatch: pytest.MonkeyPatch, leaving: tuple[int, ...]
) -> None:
    """Less the noise of the worst colluding client its deviation is z S or more, in each of 8 rounds' sums taken together."""
    watched = Watched(monkeypatch)
    fed, host = played("fedavg", made())
    rounds = range(1, 9)
    host.leavers = {number: dict.fromkeys(leaving, WORK) for number in rounds}
    there = tuple(k for k in ALL if k not in leaving)
    play(fed, [there] * len(rounds), host=host)
    assert len(watched.opened) == len(rounds)
    shares = watched.noise
    step = CLIP / 2**14
    for colluding in there:
        left = np.concatenate([sum(shares[t, k] for k in there if k != colluding) * step for t in rounds])
        n, least = len(left), 0.5 * CLIP
        assert left.std() > least * (1 - 4 / math.sqrt(2 * n)), (colluding, left.std())
    all_in = np.concatenate([sum(shares[t, k] for k in there) * step for t in rounds])
    expected = math.sqrt(len(there) / 3) * 0.5 * CLIP  # of 5 asked 4 have to stay, 1 of whom may collude
    assert abs(all_in.std() / expected - 1) < 4 / math.sqrt(2 * len(all_in))


def test_the_opened_value_is_the_sum_of_rounded_changes_and_noise_over_the_number_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The denominator stays 5 though one leaves: what one client adds does not depend on the others."""
    fed, host = played("scaffold", made())
    watched = Watched(monkeypatch)
    host.leavers = {1: {2: WORK}}
    play(fed, [(0, 1, 3, 4)], host=host)
    step = CLIP / 2**14
    there = ((1, 0), (1, 1), (1, 3), (1, 4))
    assert watched.noise.keys() == {*there}
    short = {k: noisy_sum.vector(noisy_sum.clipped(watched.changes[k], CLIP)).numpy() for _, k in there}
    expected = sum(within(short[k] / step, 2**14) + watched.noise[t, k] for t, k in there) * step / 5
    (opened,) = watched.opened
    assert np.allclose(noisy_sum.vector(opened).numpy(), expected, rtol=1e-12, atol=0)


# ---------------------------------------------------------------------- the sensitivity of what is rounded


@given(
    st.lists(st.floats(-40, 40), min_size=1, max_size=60),
    st.integers(1, 40),
)
@settings(deadline=None, max_examples=300)
def test_rounded_vectors_stay_within_their_length(numbers: list[float], steps: int) -> None:
    found = within(np.array(numbers), steps)
    assert int(found @ found) <= steps * steps
    if sum(round(x) ** 2 for x in numbers) <= steps * steps:
        assert found.tolist() == [round(x) for x in numbers]


def test_every_corner_of_a_small_ball_is_rounded_into_it() -> None:
    """All vectors of quarters within a length of 3 steps, and halves in many dimensions, which plain rounding would lengthen."""
    longer = 0
    for corner in itertools.product(np.arange(-3, 3.25, 0.25), repeat=3):
        x = np.array(corner)
        if x @ x <= 9:
            found = within(x, 3)
            longer += int(np.rint(x) @ np.rint(x)) > 9
            assert found @ found <= 9
            assert abs(found - x).max() <= 1.0
    assert longer > 100  # so the test tries what plain rounding breaks
    for d in (10, 1000, 100_000):
        x = np.full(d, 0.51)
        assert int(within(x, 5) @ within(x, 5)) <= 25


def test_clipping_and_rounding_bound_what_one_client_moves() -> None:
    """Of float32 and huge numbers, through the mechanism's own clip: the integer squares decide."""
    for size in (1e-3, 1.0, 1e30):
        change = {"model": Tree(w=torch.randn(5000, generator=torch.Generator().manual_seed(3)) * size)}
        x = noisy_sum.vector(noisy_sum.clipped(change, CLIP)).numpy() / (CLIP / 2**14)
        found = within(x, 2**14)
        assert int(found @ found) <= 4**14
        assert size < 1 or int(found @ found) > 0.999 * 4**14  # hardly any length is lost


# ---------------------------------------------------------------------- words do not wrap


def test_sums_that_could_wrap_around_are_refused() -> None:
    check_fits(keys_of(bits=24, noise_multiplier=0.02), 100)
    for bits, z, asked in ((26, 0.001, 100), (25, 0.01, 64)):
        with pytest.raises(PrivacyError, match="could wrap around a word of 32 bits: take fewer bits"):
            check_fits(keys_of(bits=bits, noise_multiplier=z), asked)
    with pytest.raises(PrivacyError, match="take fewer bits"):
        check_fits(keys_of(bits=20, noise_multiplier=5.0), 10)  # no table is that wide


def test_the_tail_is_an_upper_bound() -> None:
    for spread in (4, 100, 2500):
        law = stats.skellam(spread / 2, spread / 2)
        for size in (1, 10, 50, 200):
            assert math.exp(tail(size, spread)) >= 2 * law.sf(size - 1) * (1 - 1e-9)


# ---------------------------------------------------------------------- runs


@pytest.mark.parametrize("name", ADMITTED)
def test_every_admitted_algorithm_runs_and_moves(name: str) -> None:
    fed, host = played(name, made(noise="os"))
    host.leavers = {2: {4: SHARES}, 3: {1: WORK}}
    begun = fed.begin(host)
    server, _ = play(fed, [ALL, (0, 1, 2, 3), (0, 2, 3, 4)], server=begun, host=host)
    assert not same(server, begun)
    assert not host.given_up


@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_with_masks_off_the_outcome_is_the_same(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def outcome() -> tuple[Any, Any]:
        fed, host = played(name, made())
        host.leavers = {2: {1: WORK}}
        return play(fed, [ALL, (0, 2, 3, 4), ALL], host=host)[0], states(host)

    masked = outcome()
    monkeypatch.setattr(masks, "added", lambda words, plus, minus=(): words.copy())
    bare = outcome()
    assert codec.encode(dict(masked[0])) == codec.encode(dict(bare[0]))
    assert codec.encode(masked[1]) == codec.encode(bare[1])


@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_engines_agree_up_to_the_steps_of_rounding(name: str) -> None:
    """The same noise from the seed; changes that differ in their last bits may round to neighbouring steps."""
    found = []
    for executor in (SerialExecutor, fast, stacked):
        fed, host = played(name, made(), executor=executor)
        found.append(play(fed, [ALL, ALL], host=host)[0])
    for other in found[1:]:
        assert gap(dict(found[0]["model"]), dict(other["model"])) <= 2 * len(ALL) * CLIP / 2**14


def test_what_a_client_keeps_is_its_rounded_change_without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a round read from the journal leaves the states that it left before."""
    fed, host = played("scaffold", made(noise="os"))
    again, other = played("scaffold", made(noise="os"))
    play(fed, [ALL], host=host)
    play(again, [ALL], host=other)
    assert codec.encode(states(host)) == codec.encode(states(other))


@pytest.mark.parametrize("what", [KEYS, SHARES, "train", AGREE, UNMASK])
def test_a_round_that_cannot_be_opened_releases_nothing(tmp_path: Path, what: str) -> None:
    fed, host = played("scaffold", made(), folder=tmp_path)
    server, _ = play(fed, [ALL], host=host)
    lines = (tmp_path / LEDGER).read_bytes()
    before = codec.encode(states(host))
    host.lose = silent(what, {0, 1, 2}, {2})
    after, _ = play(fed, [ALL], server=server, host=host, first=2)
    assert same(server, after)
    assert codec.encode(states(host)) == before
    assert (tmp_path / LEDGER).read_bytes() == lines


def test_the_ledger_names_those_in_the_sum_before_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fed, host = played("fedavg", made(), folder=tmp_path, fraction=0.5)
    host.leavers = {1: {2: WORK}}
    play(fed, [(0, 1, 3, 4)], host=host)
    (event,) = ledger.read(tmp_path / LEDGER).events
    assert (event.noise, event.neighbours, event.unit) == ("skellam", "zero out", "client")
    assert (event.clients, event.rate, event.steps) == ((0, 1, 3, 4), 1.0, 2.0**14)  # no rate below 1 is ever claimed
    full = OSError(28, "No space left on device")

    def fails(*given: Any) -> None:
        raise full

    monkeypatch.setattr(ledger, "add", fails)
    with pytest.raises(OSError, match="No space"):
        play(fed, [ALL], host=host, first=2)


def test_no_rate_is_claimed_for_any_cohort() -> None:
    how = Protection((made(),), 50, 10, 0.1, 1)
    (event,) = how.released(3, (1, 2))
    assert event.rate == 1.0
    assert how.released(3, ()) == []


# ---------------------------------------------------------------------- words


def test_the_report_says_what_is_hidden_where_who_takes_part_is_known() -> None:
    from fedatlas.reporting.privacy import _helped, promise_text

    found = {"epsilon": 2.0, "unit": "client", "neighbours": "zero out", "delta": 1e-5, "noise": "os", "torn": 0,
             "releases": 3, "how": "H.", "withstood": {"asked": 5, "needed": 4, "colluding": 2}}  # fmt: skip
    assert "about what a given client holds" in promise_text(found)
    assert "that a given client took part" in promise_text({**found, "neighbours": "add or remove"})
    assert "that takes noise" not in _helped(found)
    assert "that takes noise" in _helped({"withstood": found["withstood"]})

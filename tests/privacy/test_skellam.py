"""Skellam noise: its law and its price, against sums, integrals and divergences computed another way."""

from __future__ import annotations

import itertools
import math
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fedatlas.errors import PrivacyError
from fedatlas.privacy import accountant, skellam, skellam_noise
from fedatlas.privacy.gaussian import epsilon_of
from fedatlas.privacy.ledger import Event
from fedatlas.privacy.mechanism import Noise
from fedatlas.privacy.skellam_noise import LIMB, WIDTH

pytestmark = pytest.mark.timing

OS, SEED = Noise(), Noise("seed", 5)
LEAST = 1e-7  # a test of secret noise fails by chance less often than once in ten million runs


def release(z: float, steps: float = 2.0**14, round: int = 1, **more: Any) -> Event:
    event = Event("distributed_dp", round, "skellam", z, 0.5, "client", "zero out", 1e-5, steps=steps)
    return event._replace(**more)


# ---------------------------------------------------------------------- the law


def entries(variance: int) -> list[int]:
    table = skellam_noise.table(variance)
    return [(int(high) << LIMB) + int(low) for high, low in zip(table.high, table.low, strict=True)]


@pytest.mark.parametrize("variance", [1, 4, 37])
def test_the_table_is_the_law_of_a_difference_of_poisson_numbers(variance: int) -> None:
    """Each entry to 2^-125, from Poisson's series with 80 digits."""
    with localcontext() as context:
        context.prec = 80
        rate, many = Decimal(variance) / 2, 40 * variance + 200
        poisson = [(-rate).exp()]
        for k in range(1, many):
            poisson.append(poisson[-1] * rate / k)
        so_far = Decimal(0)
        for j, entry in enumerate(entries(variance)[:60]):
            mass = sum((poisson[i] * poisson[i + j] for i in range(many - j)), Decimal(0))
            so_far += mass if j == 0 else 2 * mass
            assert abs(so_far - Decimal(entry) / 2**WIDTH) < Decimal(2) ** -125, j


def test_a_wide_table_agrees_with_scipy_and_keeps_no_mass_back() -> None:
    variance = 5800**2
    found = entries(variance)
    assert found == sorted(found)
    assert found[-1] == 2**WIDTH
    law = stats.norm(scale=5800)  # Skellam's skewness is 0, its excess kurtosis 3e-8
    for size in (0, 100, 5800, 20000):
        assert found[size] / 2**WIDTH == pytest.approx(1 - 2 * law.sf(size + 0.5), rel=1e-6)


@pytest.mark.parametrize("noise", [OS, SEED])
def test_draws_have_their_law(noise: Noise) -> None:
    """A chi-square test over 200,000 draws, tails included; and signs that are even."""
    n, variance = 200_000, 30
    drawn = skellam_noise.skellam(n, variance, noise, "law")
    law = stats.skellam(variance / 2, variance / 2)
    values = np.arange(-22, 23)
    seen = np.array([(drawn <= -23).sum(), *((drawn == v).sum() for v in values), (drawn >= 23).sum()])
    expected = n * np.array([law.cdf(-23), *law.pmf(values), law.sf(22)])
    assert stats.chisquare(seen, expected).pvalue > LEAST
    wide = skellam_noise.skellam(n, 5000**2, noise, "wide")
    assert stats.kstest((wide + 0.0) / 5000, "norm").pvalue > LEAST
    assert np.abs(wide).max() < 8 * 5000


def test_equal_first_bits_are_told_apart_by_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers right below, at and right above every entry, drawn on purpose: the size is how many entries are at most the number."""
    variance = 9
    found = entries(variance)
    numbers = [x + more for x in found[:-1] for more in (-1, 0, 1) if 0 <= x + more < 2**WIDTH]
    high = np.array([(x >> LIMB) << 1 for x in numbers], np.uint64)
    low = [x & (1 << LIMB) - 1 for x in numbers]
    asked: list[int] = []

    def words(noise: Noise, n: int, *key: Any) -> Any:
        if key[-1] != "rest":
            return high
        asked.append(n)
        unsure = [i for i, x in enumerate(numbers) if x >> LIMB in {y >> LIMB for y in found}]
        assert n == len(unsure)
        return np.array([low[i] for i in unsure], np.uint64)

    monkeypatch.setattr(skellam_noise, "words", words)
    sizes = np.abs(skellam_noise.skellam(len(numbers), variance, OS, "k"))
    assert asked
    assert sizes.tolist() == [sum(entry <= x for entry in found) for x in numbers]


def test_noise_of_no_variance_is_none_and_of_too_much_is_refused() -> None:
    assert not skellam_noise.skellam(5, 0, OS).any()
    with pytest.raises(PrivacyError, match="take fewer bits"):
        skellam_noise.skellam(5, 2**33, OS)


def test_seeded_draws_repeat_and_secret_ones_do_not() -> None:
    once = skellam_noise.skellam(50, 10**6, SEED, "round", 1)
    assert (once == skellam_noise.skellam(50, 10**6, SEED, "round", 1)).all()
    assert (once != skellam_noise.skellam(50, 10**6, SEED, "round", 2)).any()
    assert (skellam_noise.skellam(50, 10**6, OS, "k") != skellam_noise.skellam(50, 10**6, OS, "k")).any()


# ---------------------------------------------------------------------- the price


def log_law(variance: float, width: int) -> np.ndarray[Any, Any]:
    values = np.arange(-width, width + 1)
    return stats.skellam(variance / 2, variance / 2).logpmf(values)


def exact_divergence(order: int, variance: float, moved: tuple[int, ...]) -> float:
    """Rényi's divergence of noise moved by a vector: numbers are independent, so it is a sum over them."""
    width = 60 + int(12 * math.sqrt(variance)) + 4 * order
    law, total = log_law(variance, width), 0.0
    for by in map(abs, moved):
        if by:
            p, q = law[:-by], law[by:]
            total += float(np.logaddexp.reduce(order * p + (1 - order) * q)) / (order - 1)
    return total


@pytest.mark.parametrize("variance", [2.0, 9.0, 40.0])
def test_no_vector_of_a_length_costs_more_than_the_bound(variance: float) -> None:
    """Brute force: all whole vectors of three numbers within a length, both norms at once."""
    for steps in (1, 2, 3):
        for moved in itertools.product(range(-steps, steps + 1), repeat=3):
            if 0 < sum(x * x for x in moved) <= steps**2:
                for order in (2, 3, 6):
                    bound = skellam.divergence(order, math.sqrt(variance) / steps, steps)
                    assert exact_divergence(order, variance, moved) <= bound * (1 + 1e-6)


def test_epsilon_holds_for_the_exact_delta_of_one_number() -> None:
    """One number moved by the whole clip, 5 releases: the delta at the stated epsilon, summed up, is below the stated one."""
    steps, z, times, delta = 4, 1.5, 5, 1e-4
    epsilon = accountant.spent([release(z, float(steps), times=times)], delta).epsilon
    width = 300
    law = np.exp(log_law((z * steps) ** 2, width))
    moved = np.roll(law, steps)
    moved[:steps] = 0
    loss: dict[float, float] = {0.0: 1.0}
    inside = (law > 1e-18) & (moved > 1e-18)
    single = [(math.log(q / p), q) for p, q in zip(law[inside], moved[inside], strict=True)]
    missed = times * (1 - sum(q for _, q in single))
    for _ in range(times):  # privacy losses on a grid, rounded upwards
        spread: dict[float, float] = {}
        for a, p in loss.items():
            for b, q in single:
                at = math.ceil((a + b) * 200) / 200
                spread[at] = spread.get(at, 0.0) + p * q
        loss = {a: p for a, p in spread.items() if p > 1e-16}
    exact = sum(p * (1 - math.exp(epsilon - a)) for a, p in loss.items() if a > epsilon) + missed
    assert 0 < exact < delta


def test_fine_steps_cost_what_gaussian_noise_does_by_the_same_account() -> None:
    def gaussian(z: float, rounds: int) -> float:
        return skellam.epsilon_of(lambda order: rounds * skellam.divergence(order, z, 0), 1e-5)

    for z, rounds in ((0.5, 3), (1.0, 10), (4.0, 100)):
        best, coarse = gaussian(z, rounds), math.inf
        for bits in (1, 4, 8, 14):
            found = accountant.spent([release(z, 2.0**bits, times=rounds)], 1e-5).epsilon
            assert best < found < coarse or bits == 14
            coarse = found
        assert coarse == pytest.approx(best, rel=1e-6)
        closed = epsilon_of(math.sqrt(rounds) / z, 1e-5)
        assert closed < best < 1.16 * closed  # divergences are a little dearer than the closed form


def test_releases_add_up_and_mix_with_plain_gaussian_ones() -> None:
    once = accountant.spent([release(1.0, times=7)], 1e-5)
    assert once == accountant.spent([release(1.0, round=t) for t in range(7)], 1e-5)
    assert once.how == "Sum of the Rényi divergences of 7 Skellam releases."
    gauss = Event("more", 1, "gaussian", 1.0, 0.5, "client", "zero out", 1e-5)
    mixed = accountant.spent([release(1.0, times=6), gauss], 1e-5)
    assert mixed.epsilon == pytest.approx(once.epsilon, rel=1e-6)
    assert "6 Skellam releases and 1 plain Gaussian one" in mixed.how
    assert accountant.spent([release(0.0)], 1e-5).epsilon == math.inf


def test_what_has_no_account_together_is_refused() -> None:
    laplace = Event("more", 1, "laplace", 1.0, 0.5, "client", "zero out", 1e-5)
    sampled = Event("more", 1, "gaussian", 1.0, 0.5, "client", "zero out", 1e-5, rate=0.1)
    for other in (laplace, sampled):
        with pytest.raises(PrivacyError, match="no account together"):
            accountant.spent([release(1.0), other], 1e-5)
    with pytest.raises(PrivacyError, match="use rate 1"):
        accountant.spent([release(1.0, rate=0.5)], 1e-5)


def test_a_client_pays_for_the_sums_that_it_is_in() -> None:
    events = [release(1.0, round=t, clients=(0, t)) for t in range(1, 6)]
    assert accountant.spent(events, 1e-5) == accountant.spent([release(1.0, times=5)], 1e-5)
    assert accountant.spent([e for e in events if 3 in e.clients], 1e-5) == accountant.spent([release(1.0)], 1e-5)

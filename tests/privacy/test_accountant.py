"""What releases cost together, against worked numbers and an independent account."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr

from fedatlas.errors import ConfigError, PrivacyError
from fedatlas.privacy import accountant, gaussian
from fedatlas.privacy.accountant import curve, spent
from fedatlas.privacy.ledger import Event

DELTA = 1e-5


def rounds(n, multiplier, rate=1.0, first=1, **changes):
    made = Event("central_dp", first, "gaussian", multiplier, 1.0, "client", "add or remove", DELTA, rate=rate)
    return [made._replace(round=first + i, **changes) for i in range(n)]


def direct_epsilon(sigma: float, rate: float, times: int, delta: float, cells: int = 1 << 19) -> float:
    """epsilon by summing privacy losses on a grid, from the definition alone.

    P = (1-q) N(0, sigma^2) + q N(1, sigma^2) and Q = N(0, sigma^2); the loss ln P/Q grows with x, so its distribution function is
    known exactly, under P (a client removed) and, negated, under Q (added). T losses by a Fourier transform to the power T.
    """
    one = 1 / (2 * sigma**2) + 10 / sigma
    spread = min(1 / sigma, rate * math.sqrt(math.expm1(1 / sigma**2)))
    step = min(2 * times * one, 2 * one + 30 * math.sqrt(times) * spread + 6 * times * spread**2) / cells
    index = np.arange(-cells // 2, cells // 2)
    edges = (np.append(index, cells // 2) - 0.5) * step
    worst = 0.0
    for sign in (1, -1):
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            x = sigma**2 * np.log((np.exp(sign * edges) - (1 - rate)) / rate) + 0.5
        x[np.isnan(x)] = -np.inf  # losses below ln(1-q) do not occur
        q = ndtr(x / sigma)
        mass = np.diff((1 - rate) * q + rate * ndtr((x - 1) / sigma)) if sign == 1 else -np.diff(q)
        together = np.fft.fftshift(np.fft.irfft(np.fft.rfft(np.fft.ifftshift(mass)) ** times, cells))
        low, high = 0.0, float(index[-1] * step)
        for _ in range(60):
            middle = (low + high) / 2
            above = index * step > middle
            over = float((together[above] * -np.expm1(middle - index[above] * step)).sum()) > delta
            low, high = (middle, high) if over else (low, middle)
        worst = max(worst, high)
    return worst


@pytest.mark.parametrize(
    ("epsilon", "delta", "exact", "classic"),
    [
        (1, 1e-5, 3.730632, 4.844805),
        (0.5, 1e-5, 7.031827, 9.689611),
        (8, 1e-5, 0.600229, 0.605601),
        (50, 0.01, 0.124601, 0.062150),
    ],
)
def test_noise_of_one_gaussian_release(epsilon, delta, exact, classic):
    assert gaussian.multiplier_of(epsilon, delta) == pytest.approx(exact, abs=5e-7)
    assert gaussian.classic_factor(delta) / epsilon == pytest.approx(classic, abs=5e-7)
    assert gaussian.epsilon_of(1 / gaussian.multiplier_of(epsilon, delta), delta) == pytest.approx(epsilon, rel=1e-9)


def test_the_classic_rule_falls_short_at_large_epsilon():
    assert gaussian.epsilon_of(50 / gaussian.classic_factor(0.01), 0.01) > 100


@given(epsilon=st.floats(0.01, 500), delta=st.floats(1e-12, 0.4), releases=st.integers(1, 10_000))
def test_calibration_and_account_undo_each_other(epsilon, delta, releases):
    multiplier = gaussian.multiplier_of(epsilon, delta, releases)
    found = spent(rounds(1, multiplier / math.sqrt(releases)), delta)  # so many are one with sigma / sqrt(T)
    assert found.epsilon == pytest.approx(epsilon, rel=1e-6, abs=1e-9)
    assert not found.upper_bound


def test_plain_gaussian_releases_compose_in_closed_form():
    four = spent([*rounds(3, 2.0), *rounds(1, 5.0, first=4)], DELTA)
    assert four.epsilon == pytest.approx(gaussian.epsilon_of(math.sqrt(3 / 4 + 1 / 25), DELTA), rel=1e-12)
    assert four.how == "Closed form: 4 Gaussian releases are one with noise multiplier 1.125."


@pytest.mark.parametrize(
    ("multiplier", "rate", "number"),
    [(1, 0.01, 1000), (2, 0.1, 500), (0.5, 0.1, 100), (8, 0.02, 50), (1.1, 0.2, 25), (0.8, 0.05, 200), (3, 0.9, 40)],
)
def test_poisson_rounds_cost_what_an_independent_account_says(multiplier, rate, number):
    found = spent(rounds(number, multiplier, rate), DELTA)
    assert found.epsilon == pytest.approx(direct_epsilon(multiplier, rate, number, DELTA), rel=1e-3)
    assert found.how.startswith(f"Privacy loss distributions of {number:,} Poisson rounds")


def test_the_usual_example():
    assert spent(rounds(1000, 1.0, 0.01), DELTA).epsilon == pytest.approx(1.828, abs=1e-3)
    # Abadi et al. 2016 state 1.26 by moments; loss distributions are tighter.
    assert 0.9 < spent(rounds(10_000, 4.0, 0.01), DELTA).epsilon < 1.26


def test_mixed_rounds_lie_between_their_bounds():
    sampled, plain = rounds(100, 1.0, 0.05), rounds(5, 6.0, first=101)
    mixed = spent([*sampled, *plain], DELTA).epsilon
    alone = [spent(part, DELTA / 2).epsilon for part in (sampled, plain)]
    assert max(spent(sampled, DELTA).epsilon, spent(plain, DELTA).epsilon) < mixed < sum(alone)
    whole = spent(
        [*rounds(5, 6.0), *rounds(1, 6.0, 0.999999, first=6)], DELTA
    ).epsilon  # a rate of almost 1 is a plain release
    assert whole == pytest.approx(spent(rounds(6, 6.0), DELTA).epsilon, rel=1e-3)


def test_laplace_is_basic_composition():
    found = spent(rounds(5, 4.0, noise="laplace"), DELTA)
    assert (found.epsilon, found.delta) == (5 / 4, 0.0)
    beside = spent([*rounds(5, 4.0, noise="laplace"), *rounds(3, 2.0, first=6)], DELTA)
    both = spent(rounds(3, 2.0), DELTA).epsilon
    assert max(both, 5 / 4) < beside.epsilon <= both + 5 / 4
    assert beside.delta == DELTA


def test_without_noise_nothing_is_promised():
    assert spent([*rounds(3, 1.0), *rounds(1, 0.0, first=4)], DELTA).epsilon == math.inf
    assert spent([], DELTA).epsilon == 0


@pytest.mark.parametrize("multiplier", [1e-300, 1e-9, 0.01, 0.049])
def test_too_little_noise_is_a_stated_bound(multiplier):
    found = spent(rounds(100, multiplier, 0.1), DELTA)
    assert found.upper_bound
    assert found.epsilon == gaussian.epsilon_of(10 / multiplier, DELTA) >= 1e4
    assert "upper bound" in found.how


def test_a_delta_too_small_for_the_grid_is_a_stated_bound():
    found = spent(rounds(100, 1.0, 0.1), 1e-16)
    assert found.upper_bound
    assert spent(rounds(100, 1.0, 0.1), 1e-9).epsilon < found.epsilon < math.inf


def test_clients_pay_for_their_own_releases():
    twice = [*rounds(1, 5.0, clients=(1, 2)), *rounds(1, 5.0, first=2, clients=(2, 3))]
    assert spent(twice, DELTA).epsilon == spent(rounds(2, 5.0), DELTA).epsilon
    apart = [*rounds(1, 5.0, clients=(1,)), *rounds(1, 4.0, first=2, clients=(2,))]
    assert spent(apart, DELTA).epsilon == spent(rounds(1, 4.0), DELTA).epsilon
    assert spent([*apart, *rounds(1, 7.0, first=3)], DELTA).epsilon == pytest.approx(
        gaussian.epsilon_of(math.hypot(1 / 4, 1 / 7), DELTA)
    )


def test_more_rounds_cost_more_and_more_noise_costs_less():
    prices = [spent(rounds(n, 1.0, 0.05), DELTA).epsilon for n in (1, 10, 100)]
    assert prices == sorted(prices)
    assert spent(rounds(10, 2.0, 0.05), DELTA).epsilon < prices[1] < spent(rounds(10, 1.0, 0.1), DELTA).epsilon


def test_a_curve_of_500_rounds_composes_once_a_point_on_few_grids(monkeypatch: pytest.MonkeyPatch):
    """What takes time: the loss of a release on a grid, and the composition of equal rounds."""
    composed: list[int] = []
    repeated = accountant._repeated
    monkeypatch.setattr(accountant, "_repeated", lambda loss, n: (composed.append(n), repeated(loss, n))[1])
    accountant._loss.cache_clear()
    events = rounds(500, 1.0, 0.01)
    found = curve(events, DELTA)
    assert len(found) == len(composed) == 32
    assert accountant._loss.cache_info().misses <= 4
    assert found[-1] == (500, spent(events, DELTA).epsilon)
    assert [e for _, e in found] == sorted(e for _, e in found)
    few = curve(events[:5], DELTA)
    assert [t for t, _ in few] == [1, 2, 3, 4, 5]


def test_a_curve_counts_a_repeated_round_where_it_stands():
    events = [*rounds(3, 5.0), *rounds(1, 5.0, first=2)]
    assert curve(events, DELTA)[1] == (2, spent(rounds(3, 5.0), DELTA).epsilon)


def test_what_has_no_sound_account_is_refused():
    with pytest.raises(PrivacyError, match="different units"):
        spent([*rounds(1, 1.0), *rounds(1, 1.0, unit="record")], DELTA)
    with pytest.raises(PrivacyError, match="use rate 1"):
        spent(rounds(1, 1.0, 0.5, neighbours="replace"), DELTA)
    with pytest.raises(PrivacyError, match="use rate 1"):
        spent(rounds(1, 1.0, 0.5, noise="laplace"), DELTA)
    for delta in (0.0, 1.0, -1.0, math.nan):
        with pytest.raises(PrivacyError, match="delta"):
            spent(rounds(1, 1.0), delta)
    for epsilon in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(PrivacyError, match="epsilon"):
            gaussian.multiplier_of(epsilon, DELTA)


def test_without_the_extra_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting.pld", None)
    with pytest.raises(ConfigError, match=r'pip install "fedatlas\[dp\]"'):
        spent(rounds(3, 1.2345, 0.5), DELTA)
    assert spent(rounds(3, 1.0), DELTA).epsilon > 0  # the closed form needs nothing


def test_a_line_of_many_releases_costs_as_many_lines() -> None:
    """Also where a unit counts as zero instead of being removed: in a sum both are its share or nothing."""
    one = Event("a", 1, "gaussian", 1.0, 1.0, "record", "zero out", 1e-5, 0.02, (0,))
    assert spent([one._replace(times=40)], 1e-5) == spent([one] * 40, 1e-5)
    removed = [event._replace(neighbours="add or remove") for event in [one] * 40]
    assert spent([one] * 40, 1e-5) == spent(removed, 1e-5)

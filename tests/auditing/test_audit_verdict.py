"""The verdict of an audit: its four kinds, its error where nothing leaks, its power, and the lower bound on epsilon."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import binom, norm

from fedatlas.auditing.audit_run import FINER
from fedatlas.auditing.one_run import chance, lower_bound
from fedatlas.auditing.verdict import (
    CONFIDENCE,
    LEAK_SEEN,
    NONE_SEEN,
    NOT_TRIED,
    VIOLATED,
    Account,
    Found,
    RowCount,
    TriedAttack,
    UntriedAttack,
    judge,
)
from fedatlas.privacy.gaussian import epsilon_of


def tried(leak: float, half: float, targets: int = 200, beyond: float = 0.0) -> TriedAttack:
    return TriedAttack(
        "membership", "outsider", "AUC", targets, 0.5 + leak, 0.5, leak, leak - half, leak + half, beyond
    )


SEEN, CLEAN = tried(0.1, 0.02), tried(0.01, 0.02)
BROKEN = Account("central_dp", "client", 1.0, 1e-5, 2.0, 1000, 4.0, 1.5, 1e-9)
KEPT = BROKEN._replace(empirical_epsilon=1.4)
FEW = KEPT._replace(most=1.2, empirical_epsilon=0.4)
UNTRIED = UntriedAttack("dlg", "no role's view was recorded")


@pytest.mark.parametrize(
    ("found", "name"),
    [
        (Found([SEEN], [UNTRIED], [BROKEN], []), VIOLATED),
        (Found([SEEN], [UNTRIED], [KEPT], [RowCount("rows of a", 9)]), VIOLATED),
        (Found([CLEAN, SEEN], [UNTRIED], [KEPT], []), LEAK_SEEN),
        (Found([CLEAN], [UNTRIED], [], []), NONE_SEEN),
        (Found([], [UNTRIED], [KEPT], []), NONE_SEEN),
        (Found([], [UNTRIED], [KEPT._replace(empirical_epsilon=None)], []), NOT_TRIED),
        (Found([], [UNTRIED], [FEW], []), NOT_TRIED),
        (Found([tried(0.0, 0.0, 1)], [], [], []), NOT_TRIED),
        (Found([tried(0.1, 0.4, 5)], [], [], []), NOT_TRIED),
    ],
)
def test_the_verdict_is_the_worst_of_four(found: Found, name: str) -> None:
    verdict = judge(found)
    assert verdict.name == name
    assert verdict.reasons


def test_a_violation_hides_no_leak() -> None:
    told = judge(Found([SEEN], [UNTRIED], [BROKEN], [RowCount("rows of a", 9)])).reasons
    assert [
        word for word in ("lower bound", "rows of a", "found more than its placebo") if any(word in one for one in told)
    ] == [
        "lower bound",
        "rows of a",
        "found more than its placebo",
    ]


@pytest.mark.parametrize(("leak", "name"), [(0.0, NOT_TRIED), (1e-16, NOT_TRIED), (0.5, LEAK_SEEN)])
def test_targets_that_all_show_the_same_have_no_power_to_state(leak: float, name: str) -> None:
    """Rounding is no leak, and a spread of nothing does not mean that any leak would have been seen."""
    one = tried(leak, 1e-17)
    assert judge(Found([one], [], [], [])).name == name
    assert one.smallest(1) is None


def test_a_bound_is_compared_with_epsilon_at_its_own_delta() -> None:
    """Epsilon at a smaller delta is larger: a bound between the two contradicts nothing."""
    assert not BROKEN._replace(empirical_epsilon=1.2).broken
    assert BROKEN._replace(empirical_epsilon=1.6).broken


def test_canaries_that_could_contradict_nothing_are_called_too_few() -> None:
    assert "too few to contradict" in judge(Found([], [], [FEW], [])).reasons[0]


def test_many_attacks_need_a_smaller_p() -> None:
    """p = 0.02 is a leak by itself, and none among ten attacks."""
    one = tried(2.05 * 0.01, 1.959964 * 0.01, 100_000)
    assert judge(Found([one], [], [], [])).name == LEAK_SEEN
    assert judge(Found([one] * 1 + [tried(0.0, 0.02)] * 9, [], [], [])).name == NONE_SEEN


def test_a_single_target_shows_nothing() -> None:
    one = TriedAttack("dlg", "server", "MSE", 1, 40.0, 10.0, 30.0, None, None)
    assert (one.p, one.smallest(1)) == (1.0, None)


def pairs(rng: np.random.Generator, n: int, leak: float) -> TriedAttack:
    """An attack on n targets with normal differences, and the 95% bootstrap interval of their mean."""
    x = rng.standard_normal(n) + leak
    means = rng.choice(x, (400, n)).mean(1)
    low, high = np.quantile(means, [0.025, 0.975])
    return TriedAttack("inverting", "server", "PSNR", n, 0, 0, float(x.mean()), float(low), float(high))


@pytest.mark.parametrize("n", [4, 8, 64])
def test_clean_audits_of_three_attacks_rarely_say_that_a_leak_is_seen(n: int) -> None:
    """At most 5% and noise of 200: more than 18 have a chance below 1% at 5%."""
    rng = np.random.default_rng(n)
    said = [judge(Found([pairs(rng, n, 0.0) for _ in range(3)], [], [], [])).name for _ in range(200)]
    assert said.count(LEAK_SEEN) <= binom.isf(0.01, 200, 0.05)


def test_the_smallest_leak_is_seen_with_the_chance_that_is_said() -> None:
    """80% of 200, within what 200 can tell; three attacks, one of which leaks."""
    rng = np.random.default_rng(5)
    smallest = float(np.median([pairs(rng, 30, 0.0).smallest(3) or 0.0 for _ in range(50)]))
    found = [Found([pairs(rng, 30, smallest), pairs(rng, 30, 0), pairs(rng, 30, 0)], [], [], []) for _ in range(200)]
    assert 0.68 < np.mean([judge(one).p[0] < 0.05 for one in found]) < 0.92


# ---------------------------------------------------------------------- one run


def test_the_chance_of_guesses_is_that_of_a_fair_coin_without_a_leak() -> None:
    assert chance(100, 40, 30, 0.0, 0.0) == pytest.approx(float(binom.sf(29, 40, 0.5)))


def test_the_chance_at_a_delta_is_that_of_the_theorem() -> None:
    """By hand: r = 2, v = 2, epsilon = 0; P(v > B >= v - i) / i is 1/2 for i = 1 and 3/8 for i = 2."""
    assert chance(10, 2, 2, 0.0, 0.01) == pytest.approx(0.25 + 2 * 10 * 0.01 * 0.5)


def gaussian(sigma: float, seed: int, m: int = 1000) -> tuple[np.ndarray, np.ndarray]:
    """Scores of a Gaussian release of orthogonal canaries of length 1."""
    rng = np.random.default_rng(seed)
    inside = rng.random(m) < 0.5
    return inside + sigma * rng.standard_normal(m), inside


SIGMA = 2.0028  # of epsilon 1.99 at delta 1e-5: the analytic Gaussian mechanism, checked below
STATED, DELTA = 1.99, 1e-5


def test_sigma_is_that_of_the_stated_epsilon() -> None:
    spent = norm.cdf(1 / (2 * SIGMA) - STATED * SIGMA) - np.exp(STATED) * norm.cdf(-1 / (2 * SIGMA) - STATED * SIGMA)
    assert spent == pytest.approx(DELTA, rel=0.02)


def test_a_right_mechanism_is_shown_to_leak_and_never_more_than_it_states() -> None:
    """T: one run with 1,000 canaries shows 0.5 of 1.99 in most runs, at 95%."""
    found = [lower_bound(*gaussian(SIGMA, seed), DELTA, 0.95).epsilon for seed in range(60)]
    assert np.median(found) >= 0.5
    assert max(found) <= STATED


@pytest.mark.parametrize(
    "scores",
    [
        lambda seed: gaussian(0.0, seed),  # noise forgotten
        lambda seed: gaussian(SIGMA / 4, seed),  # quartered
        lambda seed: gaussian(SIGMA / 10, seed),  # clipping forgotten, or weights by rows: canaries ten times as long
    ],
    ids=["noise forgotten", "noise quartered", "not clipped, or weighted by rows"],
)
def test_each_mutant_is_flagged_in_ten_of_ten(scores: Callable[[int], tuple[np.ndarray, np.ndarray]]) -> None:
    """Against what the ledger states at the delta of the comparison."""
    delta = (1 - CONFIDENCE) / (FINER * 1000)
    stated = epsilon_of(1 / SIGMA, delta)
    assert all(lower_bound(*scores(seed), delta, CONFIDENCE).epsilon > stated for seed in range(10))


def test_scores_that_know_nothing_give_no_bound() -> None:
    found = [lower_bound(gaussian(1.0, 2 * k)[0], gaussian(1.0, 2 * k + 1)[1], DELTA, 0.9975) for k in range(100)]
    assert not any(one.epsilon for one in found)


def test_one_score_for_each_canary_is_needed() -> None:
    with pytest.raises(ValueError, match="one finite score"):
        lower_bound([0.0, np.nan], [True, False], DELTA, 0.95)

"""Members found at 0.1% false positives: the threshold by definition, and how often its intervals hold the truth."""

from __future__ import annotations

import numpy as np
import pytest

from fedatlas.attacks.low_rate import low_rate
from fedatlas.metrics.intervals import clopper_pearson


def test_the_exact_interval_by_hand():
    """Of n with no hit it is [0, 1 - (a / 2)^(1 / n)]; 8 of 10 by Clopper & Pearson's tables."""
    assert clopper_pearson(0, 10) == (0.0, pytest.approx(1 - 0.025**0.1))
    assert clopper_pearson(10, 10) == (pytest.approx(0.025**0.1), 1.0)
    assert clopper_pearson(8, 10) == (pytest.approx(0.4439, abs=1e-4), pytest.approx(0.9748, abs=1e-4))


def test_one_non_member_in_a_thousand_lies_beyond_the_threshold():
    """The threshold is the sixth largest of 5,000 non-members: members above it are found, a tie with it is not."""
    outside = np.arange(10_000.0)
    member = np.arange(10_003) >= 10_000
    base = low_rate(np.append(outside, [0.0, 0.0, 0.0]), member, 3)
    assert base.found.estimate == 0.0
    assert base.placebo.estimate is not None
    assert 0 <= base.placebo.estimate < 0.005
    bound = next(
        x for x in range(9_900, 10_000) if low_rate(np.append(outside, [x + 0.5] * 3), member, 3).found.estimate == 1.0
    )
    exactly = low_rate(np.append(outside, [bound, bound + 0.5, bound - 0.5]), member, 3)
    assert exactly.found.estimate == pytest.approx(1 / 3)
    assert exactly.placebo.estimate is not None
    assert (
        exactly.placebo.estimate * 5000 + 5 == 9_999 - bound
    )  # five of its half lie above, and the placebo's of the other
    assert low_rate(np.append(outside[1:], [1.0] * 3), member[1:], 3).found.estimate is None  # 9,999 do not resolve it


def test_clean_games_are_seldom_called_leaks():
    """Of 200 games with nothing to find at most 5% are; the interval is exact and joins two of 97.5%."""
    member = np.arange(20_000) < 10_000
    called = 0
    for seed in range(200):
        low = low_rate(np.random.default_rng(seed).normal(size=20_000), member, seed).leak.low
        called += low is not None and low > 0
    assert called <= 10


def test_a_planted_leak_is_called_and_its_interval_holds_the_truth():
    """One member in a hundred is exposed: 1% beyond any threshold, and 0.1% of the rest as of non-members."""
    member = np.arange(20_000) < 10_000
    called = held = 0
    for seed in range(50):
        stream = np.random.default_rng(seed)
        score = stream.normal(size=20_000) + 20 * (member & (stream.random(20_000) < 0.01))
        leak = low_rate(score, member, seed).leak
        assert leak.low is not None
        assert leak.high is not None
        called += leak.low > 0
        held += leak.low <= 0.01 <= leak.high
    assert called == 50
    assert held >= 46

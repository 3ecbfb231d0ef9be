"""How long a Paillier key takes: the numbers that a search tests, counted, and the dry run's sentence."""

from __future__ import annotations

import pytest
from scipy.stats import gamma

from fedatlas.privacy.paillier import key_time, primes
from fedatlas.privacy.paillier.words import key_sentences


def test_how_many_numbers_a_search_tests() -> None:
    """Counted among all safe primes of so many bits with both top bits set, as the search takes them; the sieve is played through."""
    bits = 20
    halves = range((3 << (bits - 3)) | 1, 1 << (bits - 1), 2)
    found = sum(primes.safe(2 * half + 1) for half in halves)
    assert len(halves) / found == pytest.approx(key_time.searched(bits), rel=0.1)
    small = primes.sieved_by(bits).tolist()
    left = sum(all(half % r and (2 * half + 1) % r for r in small) for half in halves)
    assert left / found == pytest.approx(key_time.tested(bits), rel=0.1)


def test_the_time_of_a_key_is_that_of_its_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_time, "_power_seconds", lambda bits: 0.5e-3)
    monkeypatch.setattr(key_time, "_window_seconds", lambda bits: 0.06)
    found = key_time.key_seconds(2048)
    assert found["seconds"] == pytest.approx(
        2 * (key_time.tested(1024) * 0.5e-3 + key_time.searched(1024) / 2**18 * 0.06)
    )
    assert 0.8 < found["seconds"] < 1.4
    assert pytest.approx(float(gamma.ppf(0.95, 2)) / 2, abs=1e-3) == key_time.LATE
    (said,) = key_sentences({"key": {"bits": 2048, "seconds": 1.0, "seconds_late": 2.372}})
    assert (
        said
        == "A key of 2048 bits takes 1.00\xa0s on average on this machine, and one time in twenty more than 2.37\xa0s."
    )
    assert key_sentences({}) == []

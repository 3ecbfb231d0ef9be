"""Secret random numbers: no two processes share any, no seed brings them back, and every integer is as likely."""

from __future__ import annotations

import math
import os
import warnings
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from fedatlas import secret
from fedatlas.engine.pool import can_fork
from fedatlas.rng import numpy_stream

pytestmark = pytest.mark.timing

BYTES = 32
WORKERS = 2


def drawn(draw: Callable[[], bytes]) -> list[bytes]:
    """What this process draws, and each of two workers that were forked from it before."""
    ends = []
    for _ in range(WORKERS):
        hear, say = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of threads; the child uses none
            child = os.fork()
        if child == 0:
            os.write(say, draw())
            os._exit(0)
        os.close(say)
        ends.append((hear, child))
    found = [os.read(end, BYTES) for end, _ in ends]
    for end, child in ends:
        os.close(end)
        os.waitpid(child, 0)
    return [draw(), *found]


def integers() -> bytes:
    return secret.integer_below(2 ** (8 * BYTES)).to_bytes(BYTES, "little")


@pytest.mark.skipif(not can_fork(), reason="no workers are forked here")
@pytest.mark.parametrize("draw", [lambda: secret.random_bytes(BYTES), secret.key, integers])
def test_forked_workers_never_share_a_stream(draw: Callable[[], bytes]):
    draw()  # whatever is made at the first use is there before the fork
    found = drawn(draw)
    assert len(set(found)) == 1 + WORKERS
    assert {len(x) for x in found} == {BYTES}


@pytest.mark.skipif(not can_fork(), reason="no workers are forked here")
def test_a_generator_made_before_the_fork_would_be_shared():
    """The test above can fail: this is what it would find."""
    made = numpy_stream(0, "test")
    assert len(set(drawn(lambda: made.bytes(BYTES)))) == 1


def test_no_seed_brings_them_back(monkeypatch: pytest.MonkeyPatch):
    """They are the operating system's own bytes, and those of one call are not those of the next."""
    assert secret.key() != secret.key()
    monkeypatch.setattr(os, "urandom", lambda count: b"\x07" * count)
    assert secret.random_bytes(3) == b"\x07\x07\x07"
    assert secret.key() == b"\x07" * BYTES


def test_every_integer_below_the_bound_is_as_likely():
    """Chi-square over 5 values, which are no power of two: a remainder of a byte would favour the first by 52 to 51 of 256."""
    bound, n = 5, 20_000
    seen = Counter(secret.integer_below(bound) for _ in range(n))
    assert set(seen) == set(range(bound))
    square = sum((seen[i] - n / bound) ** 2 / (n / bound) for i in range(bound))
    assert square < 60  # 4 degrees of freedom: a right source exceeds it once in 10^11 runs
    assert secret.integer_below(1) == 0
    with pytest.raises(ValueError, match="must be positive"):
        secret.integer_below(0)


def test_large_bounds_are_filled():
    """Bits of numbers below 2^300: each is set about half the time."""
    bits, n = 300, 200
    numbers = [secret.integer_below(2**bits) for _ in range(n)]
    share = np.mean([[x >> i & 1 for i in range(bits)] for x in numbers], axis=0)
    assert np.abs(share - 0.5).max() < 8 * 0.5 / math.sqrt(n)

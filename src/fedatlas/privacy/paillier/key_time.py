"""How long making a key takes on this machine, without making one: how many numbers a search tests, times the seconds of a test.

Of the numbers p' of b bits a share of 2 C / ln(2^b)^2 has p' and 2 p' + 1 prime (Hardy and Littlewood's conjecture, C = 0.6601618). The
sieve leaves prod (1 - 2 / r) of the odd ones, over its small primes r, and nearly all of these fail a first power. Both searches of a key
are geometric, so their sum is above 2.4 times its mean in one of twenty.
"""

from __future__ import annotations

import math
import time

from fedatlas.privacy.paillier.primes import WINDOW, gmp, sieved_by, survivors

TWIN = 0.6601618158
LATE = 2.372  # the 95% quantile of a sum of two exponential times, in units of its mean
TIMES = 5


def key_seconds(key_bits: int) -> dict[str, float]:
    """Return the seconds that a key takes on average, and those that it exceeds one time in twenty."""
    half, power = key_bits // 2, _power_seconds(key_bits // 2)
    mean = 2 * (tested(half) * power + searched(half) / WINDOW * _window_seconds(half))
    return {"bits": key_bits, "seconds": mean, "seconds_late": LATE * mean}


def searched(bits: int) -> float:
    """Return how many odd numbers are searched on average for a safe prime of so many bits."""
    return (math.log(2) * (bits - 1)) ** 2 / (4 * TWIN)


def tested(bits: int) -> float:
    """Return how many of them the sieve leaves for a power."""
    return searched(bits) * math.exp(sum(math.log1p(-2 / r) for r in sieved_by(bits).tolist()))


def _power_seconds(bits: int) -> float:
    g, found = gmp(), list[float]()
    modulus = (1 << bits) - 1
    for _ in range(TIMES):
        begun = time.perf_counter()
        g.powmod(3, modulus - 1, modulus)
        found.append(time.perf_counter() - begun)
    return min(found)  # other programs only lengthen it


def _window_seconds(bits: int) -> float:
    begun = time.perf_counter()
    next(survivors(gmp().mpz(1 << (bits - 1)) | 1, sieved_by(bits)))
    return time.perf_counter() - begun

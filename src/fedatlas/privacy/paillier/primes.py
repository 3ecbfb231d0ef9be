"""Safe primes, and the only import of gmpy2.

A safe prime is a prime p = 2 p' + 1 whose p' is also prime. The units modulo p then have no small subgroups, and nearly every non-square
generates them. Candidates p' stand in windows that begin at a random place. A sieve strikes out those where a small prime divides p' or
p, which leaves about one in two hundred for the slow tests. Each window is drawn afresh from the operating system's randomness.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from fedatlas import secret
from fedatlas.errors import ConfigError

WINDOW = 1 << 18  # odd candidates in a window
SMALL = 1 << 19  # small primes below this strike out candidates


def gmp() -> Any:
    """Return the module gmpy2. ConfigError if it is not installed."""
    try:
        import gmpy2
    except ImportError as error:
        raise ConfigError('Paillier encryption needs gmpy2: pip install "fedatlas[he]"') from error
    return gmpy2


def safe_prime(bits: int) -> int:
    """Return a random safe prime of exactly ``bits`` bits (64 or more), both top bits set.

    Both top bits are set so that the product of two such primes has exactly twice as many bits.
    """
    g = gmp()
    small = sieved_by(bits)
    while True:
        # p = 2 p' + 1 has its two top bits from p', which is odd.
        start = g.mpz(secret.integer_below(1 << (bits - 1)) | 3 << (bits - 3) | 1)
        for half in survivors(start, small):
            p = 2 * half + 1
            if half.bit_length() >= bits:  # past the end of the window
                break
            # One cheap test before the thorough ones: nearly all candidates fail it.
            if g.powmod(2, half - 1, half) == 1 and g.powmod(2, half, p) in (1, p - 1) and safe(int(p)):
                return int(p)


def plain_prime(bits: int) -> int:
    """Return a random prime of exactly ``bits`` bits, both top bits set, as all such primes are likely."""
    while True:
        p = secret.integer_below(1 << (bits - 2)) | 3 << (bits - 2) | 1
        if gmp().is_prime(p, 40):
            return p


def safe(p: int) -> bool:
    """Whether p and (p - 1) / 2 are prime (Baillie-PSW and an additional Miller-Rabin test)."""
    g = gmp()
    return bool(p % 2 and g.is_prime(p >> 1) and g.is_prime(p))


def sieved_by(bits: int) -> Any:
    """Return the small primes that strike out candidates for a safe prime of so many bits, (n,) int64."""
    return _odd_primes(min(SMALL, 1 << bits // 8))


def _odd_primes(below: int) -> Any:
    """Return the odd primes below a bound, (n,) int64, by Eratosthenes' sieve."""
    sieve = np.ones(below, dtype=bool)
    sieve[:2] = False
    for r in range(2, int(below**0.5) + 1):
        if sieve[r]:
            sieve[r * r :: r] = False
    return np.flatnonzero(sieve)[1:]


def survivors(start: Any, small: Any) -> Iterator[Any]:
    """Yield those of start, start + 2, ... in a window where no small prime divides p' or 2 p' + 1.

    For p' = start + 2 i a prime r divides p' at i = -start / 2 and 2 p' + 1 at i = ((r - 1) / 2 - start) / 2 (mod r).
    """
    rest = np.array([int(start % r) for r in small.tolist()])
    halved = (small + 1) // 2  # 1/2 mod r
    first = (small - rest) * halved % small
    second = ((small - 1) // 2 - rest) % small * halved % small
    struck = np.zeros(WINDOW, dtype=bool)
    for r, i, j in zip(small.tolist(), first.tolist(), second.tolist(), strict=True):
        struck[i::r] = True
        struck[j::r] = True
    return (start + 2 * i for i in np.flatnonzero(~struck).tolist())

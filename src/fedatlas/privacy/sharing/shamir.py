"""Shamir's secret sharing over a prime field (P13; Shamir, Communications of the ACM, 1979).

The secret is the constant term of a random polynomial f of degree t - 1; share x is (x, f(x)) for x >= 1. Any t shares give
f(0) = sum_i L_i f(x_i) with Lagrange's L_i = prod_{j != i} x_j / (x_j - x_i). These depend only on who answered and are
computed once for all secrets. Fewer than t shares fit every secret equally well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fedatlas.errors import ProtocolError

PRIME = 2**256 + 297  # the smallest prime above 2^256: a whole key of 256 bits is one element of the field
WIDTH = 33  # bytes of an element
SLACK = 16  # bytes drawn beyond the prime's, so that the remainder is uniform to 2^-128


def polynomial(secret: int, threshold: int, source: Callable[[int], bytes], prime: int = PRIME) -> list[int]:
    """Return the coefficients of a random polynomial of degree ``threshold`` - 1 with f(0) = ``secret``, constant term first."""
    width = -(-prime.bit_length() // 8) + SLACK
    return [secret, *(int.from_bytes(source(width), "little") % prime for _ in range(threshold - 1))]


def share(coefficients: Sequence[int], x: int, prime: int = PRIME) -> int:
    """Return f(x) by Horner's rule."""
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * x + coefficient) % prime
    return value


def lagrange(xs: Sequence[int], prime: int = PRIME) -> list[int]:
    """Return the coefficients L_i that take shares at ``xs`` to f(0). ProtocolError unless ``xs`` are distinct and not 0."""
    if len({x % prime for x in xs} | {0}) != len(xs) + 1:
        raise ProtocolError("shares are taken at distinct places that are not 0; one of these came twice.")
    found = []
    for i, x in enumerate(xs):
        above = below = 1
        for j, other in enumerate(xs):
            if i != j:
                above = above * other % prime
                below = below * (other - x) % prime
        found.append(above * pow(below, -1, prime) % prime)
    return found


def rebuilt(shares: Sequence[int], coefficients: Sequence[int], prime: int = PRIME) -> int:
    """Return the secret behind ``shares``, by the Lagrange coefficients of their places."""
    return sum(value * weight for value, weight in zip(shares, coefficients, strict=True)) % prime

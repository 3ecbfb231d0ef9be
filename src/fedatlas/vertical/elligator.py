"""Elligator 2 on curve25519: map a number to the x coordinate of a point on the curve, never on its twist.

    t^2 = s^3 + J s^2 + s  (mod p),   p = 2^255 - 19,  J = 486662
    s1 = -J / (1 + 2 r^2),   s2 = -s1 - J;   the one of both for which the right-hand side is a square

1 + 2 r^2 is never 0, because -1/2 is no square. X25519's exponents are multiples of 8, which takes every such point to the
subgroup of prime order. Source: Bernstein, Hamburg, Krasnova, Lange, CCS 2013; RFC 9380, 6.7.1, with Z = 2.
"""

from __future__ import annotations

from typing import Any

from fedatlas.errors import DataError

P, J = 2**255 - 19, 486662


def numbers() -> Any:
    """Return gmpy2; DataError if it is not installed."""
    try:
        import gmpy2
    except ImportError:
        raise DataError('matching ids on x25519 needs gmpy2: pip install "fedatlas[he]".') from None
    return gmpy2


def coordinate(uniform: bytes) -> bytes:
    """Return 32 bytes, the x coordinate of the point for 64 uniform bytes, little-endian."""
    gmpy2 = numbers()
    r = gmpy2.mpz(int.from_bytes(uniform, "little")) % P
    s = -J * gmpy2.invert(1 + 2 * r * r, P) % P
    if gmpy2.legendre(s * (s * (s + J) % P + 1) % P, P) < 0:
        s = (-s - J) % P
    return int(s).to_bytes(32, "little")

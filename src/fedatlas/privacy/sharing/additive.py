"""Additive shares of words, and reals as words of fixed point (P15; Mohassel & Zhang, SecureML, S&P 2017).

Two holders have a word x of the ring of 2^64 (or 2^32) if x = x_1 + x_2 modulo the ring's size. The first share is drawn uniformly,
so either share is uniform and says nothing of x. A real x is the whole number round(x 2^FRACTION), negative ones modulo 2^64.

**Truncation.** A product of two such numbers has 2 FRACTION binary places. Each holder shortens its own share. The shortened shares add up
to the shortened product within one unit of the last place, unless the shares wrap elsewhere than the product: for a product of l bits
that happens with probability 2^(l + 1 - 64) a word. `PRODUCT` bounds l, so a word is wrong with probability 2^-23 at most.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedatlas import secret
from fedatlas.errors import PrivacyError

FRACTION = 16  # binary places of a real
PRODUCT = 40  # bits of the largest product before truncation
LARGEST = 2.0 ** (PRODUCT - 2 * FRACTION)  # values stay below this size: 256

Words = NDArray[Any]
"""Unsigned words of 32 or 64 bits."""
Source = Callable[[int], bytes]


def split(words: Words, source: Source = secret.random_bytes) -> tuple[Words, Words]:
    """Return two shares of ``words``, each uniform by itself, in the ring of their type."""
    first = np.frombuffer(source(words.nbytes), words.dtype.newbyteorder("<")).astype(words.dtype).reshape(words.shape)
    return first, words - first


def joined(first: Words, second: Words) -> Words:
    """Return the words of two shares."""
    found: Words = first + second
    return found


def encoded(x: NDArray[np.float64], bound: float = LARGEST) -> NDArray[np.uint64]:
    """Return reals as words of 64 bits. PrivacyError for a real above ``bound`` in size, or not a number."""
    if not (np.abs(x) <= bound).all():
        raise PrivacyError(
            f"a value to share is not a number of at most {bound:g} in size: scale it, or raise its bound."
        )
    return np.rint(np.asarray(x, np.float64) * 2.0**FRACTION).astype(np.int64).view(np.uint64)


def decoded(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return the reals of words of 64 bits."""
    return words.view(np.int64) / 2.0**FRACTION


def truncated(share: NDArray[np.uint64], holder: int) -> NDArray[np.uint64]:
    """Return the share of holder 0 or 1 of a product, shortened by ``FRACTION`` places. Nothing is exchanged."""
    places = np.uint64(FRACTION)
    return share >> places if holder == 0 else -(-share >> places)


def check_product(bound: float) -> None:
    """Raise PrivacyError if a product of up to this size cannot be truncated safely."""
    if not bound * 2.0 ** (2 * FRACTION) <= 2.0**PRODUCT:
        bits = math.ceil(math.log2(bound)) + 2 * FRACTION if math.isfinite(bound) else "infinitely many"
        raise PrivacyError(
            f"a product of up to {bound:g} has {bits} bits, of which {PRODUCT} can be shortened safely: scale the factors."
        )

"""Products of shared tables by Beaver's triples, between two holders (P15; Beaver, CRYPTO 1991).

A dealer, who is trusted and takes no part afterwards, shares random a, b and c = a b. The holders open e = x - a and f = y - b, which are
uniform, and each computes its share of x y = e f + e b + a f + c without another message. The same a and b under two pairs of
factors would show their difference, so a triple is used up by its product.

The functions play both holders. Every value carries a public bound of its size, from which the products' bits follow (`additive`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedatlas import secret
from fedatlas.errors import PrivacyError, ProtocolError
from fedatlas.privacy.sharing.additive import (
    FRACTION,
    LARGEST,
    Source,
    check_product,
    decoded,
    encoded,
    joined,
    split,
    truncated,
)

Table = NDArray[np.uint64]
Shares = tuple[Table, Table]


class Shared(NamedTuple):
    """A table of reals in two shares, one of each holder. ``bound``: public, the largest size that a value may have."""

    shares: Shares
    bound: float


class Triple:
    """Shares of random a and b and of their product. It is consumed by one product."""

    def __init__(self, a: Shares, b: Shares, c: Shares) -> None:
        self._shares: tuple[Shares, Shares, Shares] | None = (a, b, c)

    def __repr__(self) -> str:
        return f"Triple({'used' if self._shares is None else 'fresh'}, hidden)"

    def take(self) -> tuple[Shares, Shares, Shares]:
        """Return the shares of a, b and c, once. ProtocolError the second time."""
        if self._shares is None:
            raise ProtocolError("a triple serves one product, and this one was used: ask the dealer for another.")
        found, self._shares = self._shares, None
        return found


class Differences(NamedTuple):
    """The words that both holders see during a product: x - a and y - b."""

    e: Table
    f: Table


def dealt(one: tuple[int, ...], other: tuple[int, ...], times: Callable[[Table, Table], Table] = np.multiply,
          source: Source = secret.random_bytes) -> Triple:  # fmt: skip
    """Return the dealer's triple for factors of these shapes; ``times`` is `numpy.multiply` or `numpy.matmul`."""
    a, b = (np.frombuffer(source(8 * int(np.prod(shape))), np.uint64).reshape(shape) for shape in (one, other))
    return Triple(split(a, source), split(b, source), split(times(a, b), source))


def shared(x: NDArray[np.float64], bound: float = 1.0, source: Source = secret.random_bytes) -> Shared:
    """Share a table of reals. PrivacyError for a value above ``bound`` in size, and for a bound above ``LARGEST``."""
    if not bound <= LARGEST:
        raise PrivacyError(
            f"values of up to {bound:g} are too large to compute with: scale them to {LARGEST:g} or less."
        )
    return Shared(split(encoded(x, bound), source), bound)


def revealed(x: Shared) -> NDArray[np.float64]:
    """Return the reals of a shared table: the holders put their shares together."""
    return decoded(joined(*x.shares))


def plus(x: Shared, y: Shared) -> Shared:
    """Return x + y. Each holder adds what it has."""
    first, second = (a + b for a, b in zip(x.shares, y.shares, strict=True))
    return Shared((first, second), x.bound + y.bound)


def scaled(x: Shared, factor: float) -> Shared:
    """Return a public factor times x, within (|x| + |factor|) 2^-17 + 2^-16."""
    check_product(bound := abs(factor) * x.bound)
    whole = np.uint64(round(factor * 2.0**FRACTION) % 2**64)
    return Shared(_shortened(tuple(share * whole for share in x.shares)), bound)


def multiplied(x: Shared, y: Shared, triple: Triple) -> tuple[Shared, Differences]:
    """Return x y, value by value, and what the holders see of it."""
    return _product(x, y, triple, np.multiply, x.bound * y.bound)


def matmul(x: Shared, y: Shared, triple: Triple) -> tuple[Shared, Differences]:
    """Return the matrix product and what the holders see of it. For values up to 1 it is within (d + 2) 2^-16, d the inner dimension."""
    return _product(x, y, triple, np.matmul, x.bound * y.bound * x.shares[0].shape[-1])


def _product(
    x: Shared, y: Shared, triple: Triple, times: Callable[[Table, Table], Table], bound: float
) -> tuple[Shared, Differences]:
    check_product(bound)
    a, b, c = triple.take()
    if (a[0].shape, b[0].shape) != (x.shares[0].shape, y.shares[0].shape):
        raise ProtocolError("a triple has the shapes of its factors; this one was dealt for others.")
    e = joined(*(mine - hidden for mine, hidden in zip(x.shares, a, strict=True)))
    f = joined(*(mine - hidden for mine, hidden in zip(y.shares, b, strict=True)))
    first, second = (times(e, b[holder]) + times(a[holder], f) + c[holder] for holder in (0, 1))
    return Shared(_shortened((first + times(e, f), second)), bound), Differences(e, f)


def _shortened(shares: tuple[Table, ...]) -> Shares:
    first, second = (truncated(share, holder) for holder, share in enumerate(shares))
    return first, second

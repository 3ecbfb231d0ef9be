"""Mask ids as points of a group: without the exponent nobody can tell the id of a point, and two exponents commute.

    H(id)^a^b = H(id)^b^a

``ed25519``: H is libsodium's map of 32 uniform bytes (BLAKE2b of the id) to the subgroup of prime order. There,
deciding whether two points have the same exponent is as hard as the decisional Diffie-Hellman problem. ``x25519`` is
about three times as fast and uses the hash as an x coordinate. Whether it is on the curve or on its twist survives
every exponent, so each masked id reveals one bit.

PyNaCl (``pip install "fedatlas[he]"``) is imported when it is used. libsodium refuses points outside the subgroup. It
releases Python's lock, so threads share the work.

Secure against parties that are curious but follow the protocol. Source: Meadows, S&P 1986; Huberman, Franklin, Hogg, EC
1999; the group: RFC 7748, Bernstein et al. 2011.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedatlas import secret
from fedatlas.errors import DataError, ProtocolError

Group = Literal["ed25519", "x25519"]
BYTES = 32
STRETCH = 2000  # points that a thread processes at once
DOMAIN = b"fedatlas alignment 1"


def sodium() -> Any:
    """Return PyNaCl's bindings; DataError if they are not installed."""
    try:
        import nacl.bindings
    except ImportError:
        raise DataError('matching ids needs PyNaCl: pip install "fedatlas[he]".') from None
    return nacl.bindings


def exponent(group: Group) -> bytes:
    """Return a fresh secret exponent."""
    if group == "x25519":
        return secret.random_bytes(BYTES)
    found: bytes = sodium().crypto_core_ed25519_scalar_reduce(secret.random_bytes(2 * BYTES))
    return found


def hashed(ids: Sequence[str], group: Group, workers: int = 1) -> Tensor:
    """Return (n, 32) uint8, the point of each id."""
    lift = sodium().crypto_core_ed25519_from_uniform if group == "ed25519" else bytes

    def point(one: str) -> bytes:
        found: bytes = lift(hashlib.blake2b(one.encode(), digest_size=BYTES, key=DOMAIN).digest())
        return found

    return _each(point, ids, workers)


def raised(points: Any, key: bytes, group: Group, workers: int = 1) -> Tensor:
    """Return (n, 32) uint8, each point to the power of the exponent.

    ProtocolError for a value that is not a point of the group.
    """
    rows = points_of(points)
    power = sodium().crypto_scalarmult_ed25519_noclamp if group == "ed25519" else sodium().crypto_scalarmult

    def one(point: bytes) -> bytes:
        found: bytes = power(key, point)
        return found

    try:
        return _each(one, rows, workers)
    except RuntimeError:
        raise ProtocolError("a masked id is not a point of the group: it is broken or forged.") from None


def points_of(points: Any) -> list[bytes]:
    """Return the masked ids of a message, each as bytes. ProtocolError for anything but (n, 32) uint8."""
    if not isinstance(points, Tensor) or points.dtype != torch.uint8 or points.ndim != 2 or points.shape[1] != BYTES:
        raise ProtocolError("a message does not hold masked ids, which are (n, 32) bytes.")
    return keys_of(points)


def keys_of(points: Tensor) -> list[bytes]:
    """Return each point as bytes, for look-ups."""
    data = points.contiguous().numpy().tobytes()
    return [data[at : at + BYTES] for at in range(0, len(data), BYTES)]


def _each(make: Callable[[Any], bytes], items: Sequence[Any], workers: int) -> Tensor:
    """Apply ``make`` to every item, in threads, and return (n, 32)."""
    stretches = [items[at : at + STRETCH] for at in range(0, len(items), STRETCH)]

    def some(stretch: Sequence[Any]) -> bytes:
        return b"".join([make(one) for one in stretch])

    if workers > 1 and len(stretches) > 1:
        with ThreadPoolExecutor(workers) as threads:
            data = b"".join(threads.map(some, stretches))
    else:
        data = b"".join(map(some, stretches))
    return torch.from_numpy(np.frombuffer(bytearray(data), np.uint8).reshape(-1, BYTES))


def shuffle(count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return a secret order of ``count`` items, sorted by fresh 16-byte keys from the operating system."""
    keys = np.frombuffer(secret.random_bytes(16 * count), np.dtype("V16"))
    return np.array(sorted(range(count), key=lambda i: keys[i].tobytes()), dtype=np.int64)

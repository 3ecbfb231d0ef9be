"""Mask ids as points of a group: without the exponent nobody can tell the id of a point, and two exponents commute.

    H(id)^a^b = H(id)^b^a

Both groups have prime order, and deciding whether two points have the same exponent is as hard as the decisional
Diffie-Hellman problem. H takes 64 uniform bytes, BLAKE2b of the id. ``ristretto255`` (RFC 9496) takes libsodium's map.
Every point has one encoding, and all other bytes are refused. ``x25519`` is faster: it takes x coordinates of curve25519
(`elligator`), and exponents that are multiples of 8. Other bytes count as a coordinate on the curve or on its twist, where an
exponent is as safe, and only those of small order are refused.

rbcl and PyNaCl (``pip install "fedatlas[he]"``) wrap libsodium, and are imported when they are used. Both release
Python's lock, so threads share the work.

Secure against parties that are curious but follow the protocol. Source: Meadows, S&P 1986; Huberman, Franklin, Hogg, EC
1999; the groups: RFC 9496,
RFC 7748.
"""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedatlas import secret
from fedatlas.errors import DataError, ProtocolError
from fedatlas.vertical import elligator
from fedatlas.vertical.parties import unheard

Group = Literal["ristretto255", "x25519"]
Tick = Callable[[int], None]
"""Hears how many points were made since the last call."""

BYTES = 32  # of a point
STRETCH = 2000  # points that a thread makes at once
DOMAIN = b"fedatlas alignment 2"


def ristretto() -> Any:
    """Return rbcl; DataError if it cannot be used.

    Its import writes libsodium to a temporary file and leaves it there. The file is removed here once it is loaded, where
    the system permits that.
    """
    before = "rbcl._sodium" in sys.modules
    try:
        import rbcl
    except ImportError:
        raise DataError('matching ids needs rbcl: pip install "fedatlas[he]".') from None
    except OSError as error:
        raise DataError(
            f"rbcl cannot load libsodium from the temporary folder ({error}): set TMPDIR to a folder from which programs may run."
        ) from None
    if not before:
        with contextlib.suppress(AttributeError, OSError):  # Windows keeps a loaded library
            Path(sys.modules["rbcl._sodium"].lib_path).unlink()
    return rbcl


def sodium() -> Any:
    """Return PyNaCl's bindings; DataError if they are not installed."""
    try:
        import nacl.bindings
    except ImportError:
        raise DataError('matching ids on x25519 needs PyNaCl: pip install "fedatlas[he]".') from None
    return nacl.bindings


def exponent(group: Group) -> bytes:
    """Return a fresh secret exponent."""
    if group == "x25519":
        return secret.random_bytes(BYTES)
    found: bytes = ristretto().crypto_core_ristretto255_scalar_reduce(secret.random_bytes(2 * BYTES))
    return found


def lift(group: Group) -> Callable[[str], bytes]:
    """Return H, the map of an id to a point."""
    to_point = elligator.coordinate if group == "x25519" else ristretto().crypto_core_ristretto255_from_hash

    def point(one: str) -> bytes:
        found: bytes = to_point(hashlib.blake2b(one.encode(), digest_size=2 * BYTES, key=DOMAIN).digest())
        return found

    return point


def power(group: Group) -> Callable[[bytes, bytes], bytes]:
    """Return the function (exponent, point) -> point. It raises RuntimeError for bytes that are no point."""
    found: Callable[[bytes, bytes], bytes] = (
        sodium().crypto_scalarmult if group == "x25519" else ristretto().crypto_scalarmult_ristretto255
    )
    return found


def hashed(ids: Sequence[str], group: Group) -> Tensor:
    """Return (n, 32) uint8, the point of each id."""
    return _each(lift(group), len(ids), lambda at: ids[at : at + STRETCH])


def masked(ids: Sequence[str], key: bytes, group: Group, workers: int = 1, tick: Tick = unheard) -> Tensor:
    """Return (n, 32) uint8, the point of each id to the power of the exponent."""
    point, to = lift(group), power(group)
    return _each(lambda one: to(key, point(one)), len(ids), lambda at: ids[at : at + STRETCH], workers, tick)


def raised(points: Any, key: bytes, group: Group, workers: int = 1, tick: Tick = unheard) -> Tensor:
    """Return (n, 32) uint8, each point to the power of the exponent.

    ProtocolError for a value that is not a point of the group, or for a point that occurs twice.
    """
    data, to = distinct(points_of(points)).tobytes(), power(group)

    def stretch(at: int) -> Iterator[bytes]:
        return (data[i : i + BYTES] for i in range(at * BYTES, min((at + STRETCH) * BYTES, len(data)), BYTES))

    try:
        return _each(lambda point: to(key, point), len(data) // BYTES, stretch, workers, tick)
    except RuntimeError:
        raise ProtocolError("a masked id is not a point of the group: it is broken or forged.") from None


def points_of(points: Any) -> NDArray[np.bytes_]:
    """Return the masked ids of a message as (n,) of 32 bytes each. ProtocolError for anything but (n, 32) uint8."""
    if not isinstance(points, Tensor) or points.dtype != torch.uint8 or points.ndim != 2 or points.shape[1] != BYTES:
        raise ProtocolError("a message does not hold masked ids, which are (n, 32) bytes.")
    return points.contiguous().numpy().view(f"S{BYTES}").reshape(-1)


def distinct(points: NDArray[np.bytes_]) -> NDArray[np.bytes_]:
    """Return the masked ids. ProtocolError if one occurs twice, because a party sends each id once."""
    if len(set(points.tolist())) < len(points):
        raise ProtocolError("a masked id occurs twice in a set: a party sends each of its ids once.")
    return points


def among(points: NDArray[np.bytes_], others: NDArray[np.bytes_]) -> NDArray[np.bool_]:
    """Return (n,), which of the masked ids are also among the others."""
    held = frozenset(others.tolist())
    return np.fromiter((one in held for one in points.tolist()), bool, len(points))


def _each(
    make: Callable[[Any], bytes],
    count: int,
    items: Callable[[int], Any],
    workers: int = 1,
    tick: Tick = unheard,
) -> Tensor:
    """Make ``count`` points in threads, and return (count, 32). ``items``: a place -> the `STRETCH` items from there."""
    out = np.empty(count * BYTES, np.uint8)

    def some(at: int) -> int:
        made = b"".join([make(one) for one in items(at)])
        out[at * BYTES : at * BYTES + len(made)] = np.frombuffer(made, np.uint8)
        return len(made) // BYTES

    with ThreadPoolExecutor(workers) if workers > 1 and count > STRETCH else contextlib.nullcontext() as threads:
        for done in (threads.map if threads else map)(some, range(0, count, STRETCH)):
            tick(done)
    return torch.from_numpy(out.reshape(-1, BYTES))


def shuffle(count: int) -> NDArray[np.int64]:
    """Return a secret order of ``count`` items, sorted by fresh 16-byte keys from the operating system."""
    keys = np.frombuffer(secret.random_bytes(16 * count), np.uint64)
    return np.lexsort((keys[:count], keys[count:])).astype(np.int64)

"""Random numbers that must stay secret: keys, shares, masks and noise.

They come from the operating system at every call. Nothing is kept between calls, so a forked process cannot continue its
parent's generator, and no number can be derived again. Streams of `fedatlas.rng` follow from the seed and hide nothing.
Numbers drawn here must not decide what a run computes, or the run would no longer be a function of its seed. For many numbers,
expand a fresh `key` for each draw.
"""

from __future__ import annotations

import os
import secrets  # noqa: TID251  # the only place that may import it
from typing import NoReturn

from fedatlas.errors import PrivacyError

KEY = 32  # bytes: 256 bits, as AES-256 and ChaCha20 need


def random_bytes(count: int) -> bytes:
    """Return ``count`` bytes from the operating system."""
    return os.urandom(count)  # noqa: TID251  # the only place that may


def key() -> bytes:
    """Return a fresh key of 256 bits, for one draw of many numbers."""
    return random_bytes(KEY)


def integer_below(bound: int) -> int:
    """Return an integer from 0, ..., ``bound`` - 1, each equally likely. ValueError for a bound below 1."""
    return secrets.randbelow(bound)


class Secret(bytes):
    """Bytes that never show their content and that pickle refuses. They live only in the memory of their party."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "Secret(hidden)"

    __str__ = __repr__

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise PrivacyError("a secret is never written: keep the session in the memory of its party.")

"""Random numbers that must be secret: keys, shares, masks and noise that somebody would profit from guessing.

They come from the operating system at every call. Nothing is kept between two calls, so that no process that was forked can go on with
a generator of its parent's, and nothing can be derived again: a stream of `fedatlas.rng`, which follows from the seed, hides
nothing. What is drawn here must not decide what a run computes, or the run would not be a function of its seed. Where many numbers
are wanted, expand a fresh `key` for each draw.
"""

from __future__ import annotations

import os
import secrets  # noqa: TID251  # the one place that may

KEY = 32  # bytes: 256 bits, what AES-256 and ChaCha20 take


def random_bytes(count: int) -> bytes:
    """``count`` bytes from the operating system."""
    return os.urandom(count)  # noqa: TID251  # the one place that may


def key() -> bytes:
    """A fresh key of 256 bits, for one draw of many numbers."""
    return random_bytes(KEY)


def integer_below(bound: int) -> int:
    """An integer of 0, ..., ``bound`` - 1, each equally likely, of any size. ValueError for a bound below 1."""
    return secrets.randbelow(bound)

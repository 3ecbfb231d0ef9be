"""Words of reals (48 bits) in pieces small enough for a cryptosystem's sums, and back."""

from __future__ import annotations

import numpy as np

from fedatlas.privacy.encrypted.cryptosystem import Numbers
from fedatlas.privacy.secagg.fixed import LIMB


def pieces(bits: int) -> int:
    """Return how many pieces of so many bits carry a word."""
    return -(-LIMB // bits)


def split(words: Numbers, bits: int) -> Numbers:
    """Return the pieces (n pieces,) of words (n,), the lowest of each first."""
    shifts = np.arange(pieces(bits), dtype=np.int64) * bits
    out: Numbers = (words[:, None] >> shifts & (1 << bits) - 1).reshape(-1)
    return out


def joined(sums: Numbers, bits: int) -> Numbers:
    """Return sums of words (n,) of sums of their pieces."""
    shifts = np.arange(pieces(bits), dtype=np.int64) * bits
    out: Numbers = (sums.reshape(-1, len(shifts)) << shifts).sum(axis=1)
    return out

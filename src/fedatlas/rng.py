"""Random streams: every draw takes a generator derived from (seed, purpose, key...).

No library code leaves a global generator touched (the initial weights of a network are drawn by torch's own, seeded from a
stream and put back afterwards), so the order in which clients, chunks or workers happen to
run changes nothing (C7). Purposes in use: ``init``, ``sampling``, ``shuffle``, ``dropout``,
``augment``, ``failures``, ``partition``, ``split``, ``bootstrap``, ``transform``, ``chain``, ``grouping``, ``graph``,
``gossip``, ``compression``, ``matching``, ``models``, ``public``, ``patience``, ``balance``, ``check``, ``noise``,
``effects``, ``front``, ``track``, ``attack``, ``boosting``.
The union of all rows and the server, which are no clients, shuffle with the streams of client 0.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def derive(seed: int, purpose: str, *key: int | str) -> int:
    """A 63-bit seed that depends on nothing but its arguments (BLAKE2b, so streams do not overlap by accident)."""
    text = "\x1f".join([str(int(seed)), purpose, *(str(k) for k in key)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def numpy_stream(seed: int, purpose: str, *key: int | str) -> np.random.Generator:
    """A NumPy generator for one purpose."""
    return np.random.Generator(np.random.PCG64(derive(seed, purpose, *key)))


def torch_stream(seed: int, purpose: str, *key: int | str) -> torch.Generator:
    """A torch CPU generator for one purpose."""
    import torch  # seconds to load, which what only draws with NumPy is spared

    return torch.Generator().manual_seed(derive(seed, purpose, *key))

"""Random streams: every draw takes a generator derived from (seed, purpose, key...).

No library code sets or reads a global generator. A network's initial weights also come from a stream (`models.draws`). So
neither the order of clients, chunks or workers nor other threads change anything (C7). Purposes in use: ``init``,
``sampling``, ``shuffle``, ``dropout``, ``augment``, ``failures``, ``partition``, ``split``, ``bootstrap``, ``transform``, ``chain``,
``grouping``, ``graph``, ``gossip``, ``compression``, ``matching``, ``models``, ``public``, ``patience``, ``balance``,
``check``, ``noise``, ``effects``, ``front``, ``track``, ``attack``, ``boosting``, ``forest``, ``tune``, ``fold``, ``race``,
``buckets``.
The union of all rows and the server, which are not clients, shuffle with the streams of client 0.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def derive(seed: int, purpose: str, *key: int | str) -> int:
    """Return a 63-bit seed that depends only on the arguments (BLAKE2b, so streams do not overlap by accident)."""
    text = "\x1f".join([str(int(seed)), purpose, *(str(k) for k in key)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def numpy_stream(seed: int, purpose: str, *key: int | str) -> np.random.Generator:
    """Return a NumPy generator for one purpose."""
    return np.random.Generator(np.random.PCG64(derive(seed, purpose, *key)))


def torch_stream(seed: int, purpose: str, *key: int | str) -> torch.Generator:
    """Return a torch CPU generator for one purpose."""
    import torch  # takes seconds to load; code that uses only NumPy avoids it

    return torch.Generator().manual_seed(derive(seed, purpose, *key))

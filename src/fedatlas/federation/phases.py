"""What the seconds of a round went into: the algorithm's tasks by their names, and the phases of what protects them.

=========  ==========================================================================================================
keys       identities and keys before round 1; of a masked round its key exchange and the sharing of its secrets
noise      clipping and noise at the clients, where nothing hides their updates
mask       clients turn their updates into whole numbers and mask them
encrypt    clients turn their updates into whole numbers and encrypt them
aggregate  the server's arithmetic on what arrives: adding up, taking masks off, decoding, clipping and noise of its own
decrypt    a client opens the sum of ciphertexts
unmask     clients hand over the shares by which the server takes masks off
=========  ==========================================================================================================

Clients work side by side, so what an ask took on the clock is parted between their work and its sealing as their own seconds are.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedatlas.privacy import encrypted_sum, secure_sum
from fedatlas.privacy.mechanisms import Paillier, SecAgg
from fedatlas.privacy.protection import Protection

KEYS, NOISE, MASK, ENCRYPT, AGGREGATE, DECRYPT, UNMASK = (
    "keys",
    "noise",
    "mask",
    "encrypt",
    "aggregate",
    "decrypt",
    "unmask",
)
PHASES = (KEYS, NOISE, MASK, ENCRYPT, AGGREGATE, DECRYPT, UNMASK)

QUESTIONS: Mapping[str, str] = {
    secure_sum.KEYS: KEYS,
    secure_sum.SHARES: KEYS,
    secure_sum.UNMASK: UNMASK,
    encrypted_sum.OPEN: DECRYPT,
}
"""A protocol's question -> the phase that it belongs to."""


def sealing_of(how: Protection) -> str:
    """The phase in which clients seal their updates."""
    return MASK if how.of(SecAgg) is not None else ENCRYPT if how.of(Paillier) is not None else NOISE


def parted(what: str, sealing: str, seconds: float, worked: float, sealed: float) -> dict[str, float]:
    """phase -> its share of ``seconds`` on the clock; clients worked for ``worked`` seconds, ``sealed`` of these on sealing."""
    share = min(sealed / worked, 1.0) if worked else 0.0
    return {what: seconds * (1 - share), sealing: seconds * share}


def server_phase(what: str) -> str:
    """The phase of what the server computes after the replies to an ask: its part of the key exchange is that of ``keys``."""
    return KEYS if QUESTIONS.get(what) == KEYS else AGGREGATE

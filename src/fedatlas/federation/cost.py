"""The cost of a round: bytes, and seconds by the algorithm's tasks and by the phases of what protects them.

=========  ==========================================================================================================
keys       identities and keys before round 1; the key exchange and the sharing of secrets in a masked round
noise      clipping and noise at the clients, if nothing hides their updates
mask       clients turn their updates into whole numbers and mask them
encrypt    clients turn their updates into whole numbers and encrypt them
agree      clients sign who is in the sum, and the server hands the signatures on
aggregate  the server's arithmetic on arrivals: adding up, taking masks off, decoding, clipping and adding noise
decrypt    a client opens the sum of ciphertexts; a simulation opens a model that all clients would open once for all
unmask     clients hand over the shares by which the server takes masks off
=========  ==========================================================================================================

Clients work side by side. The clock time of an ask is therefore divided between work and sealing in the proportion of the clients'
own seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from fedatlas.algorithm import Ask
from fedatlas.privacy.mechanism import Protection

KEYS, AGREE, AGGREGATE, DECRYPT = "keys", "agree", "aggregate", "decrypt"


class Cost(NamedTuple):
    """The cost of a round so far, as counted by the server. Bytes are those of the codec."""

    bytes_up: int = 0
    bytes_down: int = 0
    bytes_peer: int = 0
    bytes_privacy: int = 0  # how many of these bytes are due to protection
    seconds: Mapping[str, float] = {}
    weights: Mapping[int, float] = {}  # coefficients of the last mean
    messages: float = 0  # up and down, between server and clients

    def spending(self, seconds: Mapping[str, float]) -> Cost:
        """Return the cost after these further seconds, by phase."""
        known = self.seconds
        return self._replace(seconds={**known, **{p: known.get(p, 0.0) + more for p, more in seconds.items()}})

    def in_vain(self) -> Cost:
        """Return the cost of a failed attempt. All its bytes are due to protection: without it there would be no such attempt."""
        return self._replace(bytes_privacy=self.bytes_up + self.bytes_down + self.bytes_peer, weights={})


def parted(what: str, sealing: str, seconds: float, worked: float, sealed: float) -> dict[str, float]:
    """Divide ``seconds`` on the clock by phase. Clients worked for ``worked`` seconds, ``sealed`` of them on sealing."""
    if sealing == what:
        return {what: seconds}
    share = min(sealed / worked, 1.0) if worked else 0.0
    return {what: seconds * (1 - share), sealing: seconds * share}


def phases_of(
    ask: Ask, how: Protection | None, seconds: float, adding: float, worked: float, sealed: float
) -> Mapping[str, float]:
    """Return the seconds of an ask by phase: the task's phase or those of its protection, with the server's ``adding`` included."""
    if how is None:
        return {ask.what: seconds}
    if not ask.words:
        return {how.phase(ask.what): seconds}
    return {**parted(ask.what, how.phase(ask.what, sealing=True), seconds - adding, worked, sealed), AGGREGATE: adding}


def server_phase(how: Protection, what: str) -> str:
    """Return the phase of what the server computes after an ask's replies: ``keys`` and ``agree`` for those asks, else ``aggregate``."""
    phase = how.phase(what)
    return phase if phase in {KEYS, AGREE} else AGGREGATE

"""Cohorts that are drawn in secret, so that sampling amplifies a mechanism's privacy."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedatlas.errors import PrivacyError
from fedatlas.privacy.mechanism import Noise
from fedatlas.privacy.noise import words


def secret_cohort(clients: Sequence[int], rate: float, noise: Noise, round: int) -> tuple[int, ...]:
    """Return the clients of a round, each drawn with probability ``rate`` from secret randomness or the seed. May be empty.

    rate = 1 selects all clients. A draw that could be guessed would amplify nothing.
    """
    if not 0 < rate <= 1:
        raise PrivacyError(f"a client cannot take part with probability {rate}: give a fraction above 0 and up to 1.")
    if rate == 1:
        return tuple(clients)
    below = math.floor(rate * 2**64)
    drawn = words(noise, len(clients), "cohort", round)
    return tuple(k for k, word in zip(clients, drawn.tolist(), strict=True) if word < below)

"""A bound on changes that follows a quantile of their lengths, found from noisy counts.

=========  ==================================================  =========  =====================================
S          bound of the round, in the server's memory          gamma      share of changes within the bound
b_k        whether client k's change is within S: 0 or 1       eta_C      rate at which the bound moves
sigma_b    noise on the sum of the b_k - 1/2                   z          noise multiplier of both sums together
=========  ==================================================  =========  =====================================

    b = 1/2 + (sum over the cohort of (b_k - 1/2) + N(0, sigma_b^2)) / (q K)
    S <- S exp(-eta_C (b - gamma))

A client moves the sum of changes by S and that of the centred counts by 1/2 at most. With noise z_delta S on the first,

    z_delta = (z^-2 - (2 sigma_b)^-2)^(-1/2)

both together cost a Gaussian release with multiplier z. The client tells b_k of its change before it shortens it, and the server clips
once more. S follows from noisy counts and is no secret.

Source: Andrew, Thakkar, McMahan, Ramaswamy 2021; B17.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from fedatlas.errors import PrivacyError, ProtocolError
from fedatlas.privacy.mechanism import Noise

LEAST, MOST = 1e-9, 1e9  # between which a bound stays whatever the counts say
WITHIN = "within"  # the part of an update that holds b_k


class Adaptive(NamedTuple):
    """How a bound follows the lengths of changes."""

    quantile: float
    rate: float
    first: float
    count_noise: float | None  # None: a twentieth of the expected cohort

    def spread(self, expected: float, multiplier: float) -> float:
        """Return sigma_b for a cohort of this expected size; 0 in a run without noise."""
        if not multiplier:
            return 0.0
        return expected / 20 if self.count_noise is None else self.count_noise

    def multiplier(self, expected: float, z: float) -> float:
        """Return z_delta, the noise on the sum of changes over S. PrivacyError if the counts alone cost more than z."""
        if not z:
            return 0.0
        twice = 2 * self.spread(expected, z)
        if twice <= z:
            raise PrivacyError(
                f"noise of {twice / 2:g} on the count of changes within the bound costs more than noise_multiplier = {z:g} allows; "
                f"set count_noise above {z / 2:g}, lower noise_multiplier, or let more clients take part"
            )
        return 1 / math.sqrt(1 / z**2 - 1 / twice**2)

    def moved(self, clip: float, centred: float, expected: float, noise: Noise, z: float, *key: int | str) -> float:
        """Return the next bound from the sum of b_k - 1/2."""
        from fedatlas.privacy.noise import gaussian, on_grid

        if spread := self.spread(expected, z):
            centred = float(on_grid(gaussian(1, spread, noise, "central_dp count", *key) + centred, spread))
        step = -self.rate * (0.5 + centred / expected - self.quantile)
        return min(max(clip * math.exp(min(max(step, -50.0), 50.0)), LEAST), MOST)


def bound_told(word: Mapping[str, Any]) -> float:
    """Return the bound S that a client was told. ProtocolError for anything but a finite number above 0."""
    told = word.get("clip")
    if isinstance(told, int | float) and not isinstance(told, bool) and 0 < told < math.inf:
        return float(told)
    raise ProtocolError("a client is told no bound to which it could shorten its change: refused.")


def counted(told: Mapping[str, Any]) -> float:
    """Return b_k - 1/2 of what a client sent; 0, as of a client that is not there, for anything but a yes or no."""
    within = told.get(WITHIN)
    return float(within) - 0.5 if isinstance(within, bool) else 0.0

"""Each client's share of the noise of a sum, and the room that a word of 32 bits leaves for both."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

from fedatlas.errors import PrivacyError
from fedatlas.privacy.mechanism import Source
from fedatlas.privacy.secagg.keys import FEWEST, threshold_of, tolerated
from fedatlas.privacy.skellam import check_variance

RING = 32  # bits of a word
UNLIKELY = 70 * math.log(2)  # a sum leaves its word with probability 2^-70 a number, so 2^-40 for 2^30 of them


class NoisySum(NamedTuple):
    """The keys of the table."""

    clip: float
    noise_multiplier: float
    delta: float | None
    threshold: float
    colluding: int
    bits: int
    noise: Source

    @property
    def steps(self) -> int:
        """The clip in steps: the most by which one client moves the sum, in the Euclidean norm."""
        return 1 << self.bits

    @property
    def step(self) -> float:
        """The distance between neighbouring values."""
        return math.ldexp(self.clip, -self.bits)


def honest(how: NoisySum, asked: int, needed: int) -> int:
    """Return t - c: how many honest clients stay in every sum that can be opened. PrivacyError if so many may not collude.

    A client gives shares only on t signatures over the survivors of its own sum, at most c of them by colluding clients. With more than
    2 t - asked - 1 of these, t signatures could be had over two sums.
    """
    most = tolerated(asked, needed)
    if how.colluding > most:
        raise PrivacyError(
            f"of {asked} clients asked, of whom {needed} have to stay, {most} may collude, and not {how.colluding}: ask more "
            "clients, or raise the threshold."
        )
    return needed - how.colluding


def variance(how: NoisySum, asked: int, needed: int) -> int:
    """Return the variance of a client's noise in squared steps: (z 2^bits)^2 / (t - c), rounded up. PrivacyError as `honest`."""
    return math.ceil((Fraction(how.noise_multiplier) * how.steps) ** 2 / honest(how, asked, needed))


def check_fits(how: NoisySum, asked: int) -> None:
    """Raise PrivacyError if a sum of so many clients could wrap around, its noise cannot be drawn, or too many may collude."""
    clients = max(asked, FEWEST)
    share = variance(how, clients, max(threshold_of(clients, how.threshold), FEWEST))
    check_variance(share)
    room = (1 << RING - 1) - 1 - clients * how.steps
    if room <= 0 or tail(room, clients * share) > -UNLIKELY:
        raise PrivacyError(
            f"the sum of {clients} clients and their noise could wrap around a word of {RING} bits: take fewer bits."
        )


def tail(size: float, spread: float) -> float:
    """Return Chernoff's bound on log P(|X| >= size) of a Skellam number of this variance."""
    if not spread:
        return -math.inf
    return math.log(2) + math.hypot(size, spread) - spread - size * math.asinh(size / spread)

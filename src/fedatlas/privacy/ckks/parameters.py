"""The error of a CKKS sum, and the noise that hides it.

A decryption is the sum plus an error that depends on the secret key. Whoever sees enough exact decryptions of sums that he knows solves
for the key (Li and Micciancio, EUROCRYPT 2021: IND-CPA-D). So the party that opens a sum adds Gaussian noise of standard deviation

        sqrt(24 T) 2^20 x bound,   T = the openings of a key

and rounds to a grid, before anything leaves it. Per value, all T openings together then reveal at most T bound^2 / (2 deviation^2) =
2^-45.6 nats about the error, and a sum of d values d times the mean of their squared errors over bound^2 times that.

The bound for a sum of K fresh symmetric encryptions of numbers in [-range, range]:

        10 x 3.24 sqrt(N K / 2) / scale     SEAL's error, ten standard deviations of a slot
        + 16 x range 2^-53                  float64 in SEAL's transform, twice the largest that was measured

Source: Li, Micciancio, Schultz, Sorrell, CRYPTO 2022 (noise for T openings); Cheon, Kim, Kim, Song, ASIACRYPT 2017.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from fedatlas.errors import PrivacyError

DEGREE, SLOTS = 8192, 4096  # N, numbers per ciphertext
PRIMES = (60, 60, 60)  # bits; SEAL keeps the last one back
SCALE = 2.0**60
LARGEST_ERROR = 1e-5  # of an opened value
SURE = 7  # standard deviations of the noise that stay below it


class Parameters(NamedTuple):
    """Facts on which the noise of an opened sum depends."""

    clients: int
    range: float  # of values
    openings: int  # T

    @property
    def bound(self) -> float:
        """The largest error of a decryption."""
        return 10 * 3.24 * math.sqrt(DEGREE * self.clients / 2) / SCALE + 16 * self.range * 2.0**-53

    @property
    def deviation(self) -> float:
        """The standard deviation of the noise of an opening."""
        return math.sqrt(24 * self.openings) * 2.0**20 * self.bound

    @property
    def grid(self) -> float:
        """The distance between neighbouring opened numbers."""
        return math.ldexp(1.0, math.floor(math.log2(self.deviation)))

    @property
    def error(self) -> float:
        """The largest error of an opened value, noise included."""
        return SURE * self.deviation + self.grid / 2 + self.bound

    @property
    def piece(self) -> int:
        """Bits of a word of reals that travel together."""
        return math.floor(math.log2(self.range / (32 * self.clients * self.deviation)))

    @property
    def unit(self) -> float:
        """The number that stands for 1 in a piece: sums stay in [0, range / 2], and half a unit is eight deviations or more."""
        return self.range / (2 * self.clients << self.piece)


def parameters(clients: int, range: float, openings: int) -> Parameters:
    """Return the parameters. PrivacyError if the noise would exceed the largest error."""
    found = Parameters(clients, range, openings)
    if found.error >= LARGEST_ERROR or found.piece < 1:
        smaller = (range / 2**halved for halved in (1, 2, 3, 4))
        fits = next((one for one in smaller if Parameters(clients, one, openings).error < LARGEST_ERROR), 0)
        raise PrivacyError(
            f"{openings} sums may be opened, and noise that protects the key in all of them makes an error of up to {found.error:.2g}, "
            f"above {LARGEST_ERROR:g}: {f'range = {fits:g} would do' if fits else 'lower rounds'}, or use bfv, which is exact."
        )
    return found

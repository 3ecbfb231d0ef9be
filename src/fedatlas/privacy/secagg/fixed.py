"""Numbers as words of the ring of 2^32 or 2^64, and sums of such words as numbers (P14's input).

A **value** x in [-range, range) is the whole number q = round(x / step), step = range 2^(1 - bits): one of 2^bits steps, negative ones
modulo R. The sum of m of them is exact if R >= m 2^bits, and within m half steps of the sum of the x. With weights by rows a client
gives (n q, n) for n <= n_cap, and R >= m n_cap 2^bits. **Whole numbers** are summed exactly modulo 2^64. **Reals** of any
magnitude up to 2^120 (moments of a table's columns) are summed in steps of 2^-104, five words of 48 bits each, so that a sum of m
is within m 2^-105: 2^-24 of itself from m 2^-81 upwards.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedatlas.errors import ConfigError, PrivacyError
from fedatlas.privacy.secagg.messages import UNSIGNED, Words
from fedatlas.privacy.steps import rounded, step_of

LIMBS, LIMB = 5, 48  # words of a real, bits of each
FRACTION, LARGEST = 104, 120  # a real in steps of 2^-FRACTION, below 2^LARGEST
WIDEST = 52  # bits of a value that float64 still rounds correctly


class Fixed(NamedTuple):
    """The encoding of values: 2^bits steps across [-range, range) in a ring of 2^ring. cap = 0 without hidden weights."""

    bits: int
    range: float
    ring: int
    cap: int

    @property
    def step(self) -> float:
        return step_of(self.bits, self.range)


def needed(clients: int, bits: int, cap: int = 0) -> int:
    """Return the smallest R in which no sum wraps: m 2^bits, times n_cap if weights are hidden."""
    return clients * max(cap, 1) << bits


def fixed(clients: int, bits: int = 24, range: float = 16.0, cap: int = 0) -> Fixed:
    """Return the smaller ring that is large enough. PrivacyError if neither is, ConfigError for meaningless figures."""
    if not 1 < bits <= WIDEST or not 0 < range < math.inf or cap < 0:
        raise ConfigError(
            f"secagg takes 2 to {WIDEST} bits, a finite range above 0 and a cap of rows, not {bits}, {range}, {cap}."
        )
    wanted = needed(clients, bits, cap)
    if wanted > 1 << 64:
        most = largest_cap(clients, bits, 64)
        hint = f"n_cap = {most} holds" if cap and most else "ask fewer clients or take fewer bits"
        raise PrivacyError(
            f"sums of {clients} clients at {bits} bits need {(wanted - 1).bit_length()} bits, the ring has 64: {hint}."
        )
    return Fixed(bits, range, 32 if wanted <= 1 << 32 else 64, cap)


def largest_cap(clients: int, bits: int, ring: int = 32) -> int:
    """Return the largest n_cap with which hidden weights fit into the ring; below 1 none fits. A ring of 32 bits halves the bytes."""
    return (1 << ring) // (clients << bits)


def values(x: Tensor, form: Fixed, client: int | str, part: str, coefficient: float = 1.0) -> Words:
    """Return round(coefficient x / step) as words. ``part`` and ``client`` name the values in errors.

    The coefficient was told before and is multiplied in before rounding. PrivacyError, with a sufficient range, if a product is outside
    [-range, range) or not a number.
    """
    scaled = x.detach().flatten().double().numpy() * (coefficient / form.step)
    return rounded(scaled, form.bits, form.range, f"client {client}", part).astype(UNSIGNED[form.ring])


def weighted(words: Words, rows: int, form: Fixed, client: int | str) -> Words:
    """Return the n q of P14's pair (n q, n). PrivacyError unless ``rows`` is a number from 0 to the cap."""
    if not 0 <= rows <= form.cap:
        raise PrivacyError(f"client {client} does not have 0 to n_cap = {form.cap} rows: raise n_cap, or leave it out.")
    weighed: Words = words * words.dtype.type(rows)
    return weighed


def total(words: Words, form: Fixed) -> Tensor:
    """Return an opened sum of ``values`` as float64."""
    return torch.from_numpy(_signed(words) * form.step)


def mean(words: Words, form: Fixed) -> tuple[Tensor, int]:
    """Return (weighted mean, sum of the rows) of an opened sum of ``weighted``. PrivacyError if there are no rows."""
    signed = _signed(words)
    rows = int(signed[-1])
    if rows < 1:
        raise PrivacyError(f"the clients of this sum have {rows} rows together: there is no mean over them.")
    return torch.from_numpy(signed[:-1] / rows * form.step), rows


def reals(x: Tensor, client: int | str, part: str) -> Words:
    """Return reals as words of 64 bits, ``LIMBS`` words each. PrivacyError if one is not a number below 2^120 in size."""
    out = []
    for value in x.double().flatten().tolist():
        if not abs(value) < 2.0**LARGEST:
            raise PrivacyError(
                f"'{part}' of client {client} holds something that is no number below 2^{LARGEST}: scale the column."
            )
        above, below = value.as_integer_ratio()
        number = ((above << FRACTION + 1) + below) // (2 * below)
        out += [number >> LIMB * i & (1 << LIMB) - 1 for i in range(LIMBS)]
    return np.array(out, np.uint64)


def reals_total(words: Words) -> Tensor:
    """Return an opened sum of ``reals`` as float64, one row."""
    modulus = 1 << LIMBS * LIMB
    out = []
    for limbs in words.reshape(-1, LIMBS).tolist():
        number = sum(limb << LIMB * i for i, limb in enumerate(limbs)) % modulus
        out.append((number - modulus if number >= modulus // 2 else number) / (1 << FRACTION))
    return torch.tensor(out, dtype=torch.float64)


def _signed(words: Words) -> np.ndarray[Any, Any]:
    """Return words read as the signed numbers next to 0."""
    return words.view(f"i{words.dtype.itemsize}")

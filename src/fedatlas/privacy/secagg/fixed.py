"""Numbers as words of the ring of 2^32 or 2^64, and sums of such words as numbers (P14's input).

A **value** x of [-range, range) is the whole number q = round(x / step), step = range 2^(1 - bits): one of 2^bits steps, negative ones
modulo R. The sum of m of them is exact where R >= m 2^bits, and within m half steps of the sum of the x. With weights by rows a client
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

N_CAP = 2**20  # rows of a client whose weight stays hidden
LIMBS, LIMB = 5, 48  # words of a real, bits of each
FRACTION, LARGEST = 104, 120  # a real in steps of 2^-FRACTION, below 2^LARGEST
WIDEST = 52  # bits of a value that float64 still rounds right


class Fixed(NamedTuple):
    """How values travel: 2^bits steps across [-range, range) in a ring of 2^ring; cap = 0 without hidden weights."""

    bits: int
    range: float
    ring: int
    cap: int

    @property
    def step(self) -> float:
        return math.ldexp(self.range, 1 - self.bits)


def needed(clients: int, bits: int, cap: int = 0) -> int:
    """The smallest R in which no sum wraps: m 2^bits, times n_cap where weights are hidden."""
    return clients * max(cap, 1) << bits


def fixed(clients: int, bits: int = 24, range: float = 16.0, cap: int = 0) -> Fixed:
    """The smaller ring that holds. Raises PrivacyError where neither does, ConfigError for figures that mean nothing."""
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
    """The largest n_cap with which hidden weights fit into the ring; below 1 there is none. A ring of 32 halves the bytes."""
    return (1 << ring) // (clients << bits)


def bound(form: Fixed, clients: int) -> float:
    """How far an opened sum of values may be from the sum of what went in: half a step a client.

    Of a mean by hidden weights half a step alone, because its weights sum to 1.
    """
    return form.step / 2 * clients


def values(x: Tensor, form: Fixed, client: int | str, part: str, coefficient: float = 1.0) -> Words:
    """round(coefficient x / step) as words, by name ``part`` of ``client``.

    The coefficient was told before and is multiplied in before rounding. Raises PrivacyError, with a range that would do,
    where a product is outside [-range, range), and where one is no number.
    """
    return _steps(x, form, client, part, coefficient).astype(UNSIGNED[form.ring])


def weighted(x: Tensor, rows: int, form: Fixed, client: int | str, part: str) -> Words:
    """P14's pair (n q, n) as words, n last. Raises PrivacyError where ``rows`` are no number from 0 to the cap, and as ``values``."""
    if not 0 <= rows <= form.cap:
        raise PrivacyError(f"client {client} does not have 0 to n_cap = {form.cap} rows: raise n_cap, or leave it out.")
    q = _steps(x, form, client, part, 1.0)
    return np.append(q * rows, rows).astype(UNSIGNED[form.ring])


def total(words: Words, form: Fixed) -> Tensor:
    """An opened sum of ``values`` as float64."""
    return torch.from_numpy(_signed(words) * form.step)


def mean(words: Words, form: Fixed) -> tuple[Tensor, int]:
    """(weighted mean, sum of the rows) of an opened sum of ``weighted``. Raises PrivacyError where there are no rows."""
    signed = _signed(words)
    rows = int(signed[-1])
    if rows < 1:
        raise PrivacyError(f"the clients of this sum have {rows} rows together: there is no mean over them.")
    return torch.from_numpy(signed[:-1] / rows * form.step), rows


def whole(x: Tensor, clients: int, client: int | str, part: str) -> Words:
    """Whole numbers as words of 64 bits. Raises PrivacyError where one is none, or where ``clients`` of them could wrap."""
    exact = x.numpy().astype(np.int64) if not x.is_floating_point() else x.double().numpy()
    most = ((1 << 63) - 1) // clients
    if x.is_floating_point() and not (np.isfinite(exact).all() and (exact == np.rint(exact)).all()):
        raise PrivacyError(
            f"'{part}' of client {client} holds something else than whole numbers: they are summed exactly, or not at all."
        )
    if exact.size and max(int(exact.max()), -int(exact.min())) > most:
        raise PrivacyError(
            f"'{part}' of client {client} holds a whole number beyond {most}, the most of which {clients} fit into 64 bits."
        )
    return exact.astype(np.int64).view(np.uint64)


def whole_total(words: Words) -> Tensor:
    """An opened sum of ``whole`` as int64."""
    return torch.from_numpy(_signed(words))


def reals(x: Tensor, client: int | str, part: str) -> Words:
    """Reals as words of 64 bits, ``LIMBS`` each. Raises PrivacyError where one is no number or not below 2^120."""
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
    """An opened sum of ``reals`` as float64, one row."""
    modulus = 1 << LIMBS * LIMB
    out = []
    for limbs in words.reshape(-1, LIMBS).tolist():
        number = sum(limb << LIMB * i for i, limb in enumerate(limbs)) % modulus
        out.append((number - modulus if number >= modulus // 2 else number) / (1 << FRACTION))
    return torch.tensor(out, dtype=torch.float64)


def _signed(words: Words) -> np.ndarray[Any, Any]:
    """Words read as the numbers next to 0."""
    return words.view(f"i{words.dtype.itemsize}")


def _steps(x: Tensor, form: Fixed, client: int | str, part: str, coefficient: float) -> np.ndarray[Any, Any]:
    steps = x.detach().flatten().double().numpy() * (coefficient / form.step)
    np.rint(steps, out=steps)
    half = 1 << form.bits - 1
    low, high = (steps.min(), steps.max()) if steps.size else (0.0, 0.0)  # both are NaN where one is
    if -half <= low and high < half:
        return steps.astype(np.int64)  # a negative float64 as an unsigned word would be the processor's choice
    if not math.isfinite(low) or not math.isfinite(high):
        raise PrivacyError(
            f"'{part}' of client {client} holds something that is no finite number: its training diverged."
        )
    wanted = form.range
    while low * form.step < -wanted or high * form.step >= wanted * (1 - math.ldexp(1.0, 1 - form.bits)):
        wanted *= 2
    raise PrivacyError(
        f"'{part}' of client {client} holds a value outside [-{form.range:g}, {form.range:g}): range = {wanted:.15g} would do."
    )

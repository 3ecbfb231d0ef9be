"""Real numbers as whole ones, many per plaintext, so that no sum can run over into its neighbour.

A value x is a = round(x / step), step = 2 range / 2^bits, one of the 2^bits whole numbers from -2^(bits-1) on (so P11's
f = bits - 1 - log2 range). A plaintext holds a + 2^(bits-1) >= 0, one per slot. A sum with whole weights of total W needs

        slot = bit length of (2^bits - 1) W,   floor((key_bits - 2) / slot) slots per plaintext

W is 2^(weight bits) if the server weighs (slot = bits + weight bits), and the number of clients if they weigh themselves.
P10 also keeps x = range, whose code 2^bits takes one more bit. Here the largest value is half a step below.
The error of a weighted mean is at most step / 2, plus the cost of rounding the weights: K max|x| / W.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedatlas.errors import PrivacyError, ProtocolError
from fedatlas.privacy.paillier.primes import gmp
from fedatlas.privacy.steps import rounded, step_of

Whole = NDArray[np.int64]


class Layout(NamedTuple):
    """The layout of codes in plaintexts. `layout` makes and checks it."""

    bits: int  # of a code
    total: int  # largest sum of the weights of all summands
    slot: int  # bits of a slot
    slots: int  # codes per plaintext

    def plaintexts(self, values: int) -> int:
        """Return how many plaintexts hold this number of values."""
        return -(-values // self.slots)


def slot_bits(largest: int, total: int) -> int:
    """Return the bits that hold every sum of codes up to ``largest`` with whole weights of this total."""
    return (largest * total).bit_length()


def layout(key_bits: int, bits: int, total: int) -> Layout:
    """Return the layout of codes of ``bits`` bits for sums of ``total`` weight. PrivacyError if not even one value fits."""
    slot = slot_bits((1 << bits) - 1, total)
    if slot > min(62, key_bits - 2):
        raise PrivacyError(
            f"sums of values of {bits} bits need {slot} bits each, and at most {min(62, key_bits - 2)} fit: lower bits."
        )
    return Layout(bits, total, slot, (key_bits - 2) // slot)


def quantise(x: Any, *, bits: int, range: float, owner: str, part: str) -> Whole:
    """Return codes (n,) of a tensor or array. PrivacyError, with a sufficient range, for values without a code; nothing is clipped.

    owner, part: the owner of the values and the part of the model, for the message.
    """
    if isinstance(x, torch.Tensor):
        x = x.detach().to("cpu", torch.float64).numpy()
    values = np.asarray(x, dtype=np.float64).reshape(-1)
    return rounded(values / step_of(bits, range), bits, range, owner, part)


def dequantise(sums: Whole, *, bits: int, range: float, total: float = 1.0) -> NDArray[np.float64]:
    """Return the values behind sums of codes, divided by ``total``: the weighted mean if that is the sum of the weights."""
    return sums.astype(np.float64) * (step_of(bits, range) / total)


def pack(form: Layout, codes: Whole) -> list[int]:
    """Return plaintexts of codes (n,), the first lowest. Other whole numbers may be packed too. PrivacyError for one outside."""
    top = 1 << (form.bits - 1)
    if len(codes) and (codes.min() < -top or codes.max() >= top):
        raise PrivacyError(f"a whole number is outside of the {form.bits} bits of its slot: raise bits.")
    raised = (codes + top).tolist()
    return [gmp().pack(raised[at : at + form.slots], form.slot) for at in range(0, len(raised), form.slots)]


def unpack(form: Layout, plaintexts: Sequence[int], values: int, weight: int | None = None) -> Whole:
    """Return the sums sum_k w_k a_k (values,) of opened plaintexts; ``weight`` = sum_k w_k if not all summands came.

    ProtocolError if a plaintext cannot be such a sum: it has another key or layout, or is forged.
    """
    weight = form.total if weight is None else weight
    if len(plaintexts) != form.plaintexts(values) or not 0 <= weight <= form.total:
        raise ProtocolError(
            f"{len(plaintexts)} sums were opened where {form.plaintexts(values)} were due: they are not whole."
        )
    out = np.zeros(values, dtype=np.int64)
    for i, m in enumerate(plaintexts):
        here, found = out[i * form.slots : (i + 1) * form.slots], gmp().unpack(m, form.slot)
        if len(found) > len(here):
            raise ProtocolError(
                "an opened sum holds more than its slots can: it is not of this key and layout, or forged."
            )
        here[: len(found)] = [int(x) for x in found]  # without zeros on top
    if values and out.max() > ((1 << form.bits) - 1) * weight:
        raise ProtocolError("an opened sum is larger than its summands can be: it is not of this layout, or forged.")
    return out - (weight << (form.bits - 1))


def join(fields: Sequence[int], widths: Sequence[int]) -> int:
    """Pack whole numbers of different widths into one plaintext, the first lowest (gradient, curvature and count of a row in a tree)."""
    number = at = 0
    for value, width in zip(fields, widths, strict=True):
        if not 0 <= value < 1 << width:
            raise PrivacyError(f"a number does not fit into its {width} bits of a plaintext: widen its field.")
        number |= int(value) << at
        at += width
    return number


def separate(number: int, widths: Sequence[int]) -> list[int]:
    """Return the fields of a plaintext. ProtocolError if anything stands above them."""
    fields = []
    for width in widths:
        fields.append(int(number) & ((1 << width) - 1))
        number >>= width
    if number:
        raise ProtocolError(
            "an opened sum holds more than its fields can: it is not of this key and layout, or forged."
        )
    return fields

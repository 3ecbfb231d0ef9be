"""Histograms of ciphertexts, as in V2, with the savings of SecureBoost+ (V3 (1) to (3), and (5) by `joint`).

A row is one plaintext of three fields, each wide enough for the sum over all rows (``pack``; without it g has a separate
ciphertext). g is made positive by adding 2^precision, the largest size that it can have:

    h | g + 2^precision | 1        bits of n 2^precision + 1 | bits of 2 n 2^precision + 1 | bits of n + 1

With three or more classes h and g of each class stand one after the other, and then one count: a ciphertext a row and round.

Sums of several candidates are gathered in one plaintext before they are returned (``compress``), and blinded by fresh
encryptions of 0, so that the carrier cannot recognise equal sums. Adding them needs only the public key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedatlas.errors import PrivacyError, ProtocolError
from fedatlas.privacy.paillier import cryptosystem as paillier
from fedatlas.vertical.boosting.bins import Grid
from fedatlas.vertical.boosting.gains import Fixed
from fedatlas.vertical.boosting.histogram import fields as fields_of
from fedatlas.vertical.boosting.joint import SumLayer, layers
from fedatlas.vertical.boosting.settings import SecureBoost
from fedatlas.vertical.parties import Whole

Sealed = tuple[paillier.Batch, ...]
"""The ciphertexts of some sums: one batch if fields are packed, else one of g and one of h with the count."""


class Fields(NamedTuple):
    """The layout of sums in plaintexts: of each class g and h, then the number of rows."""

    widths: tuple[tuple[int, ...], ...]  # for each batch, bits of its fields, the lowest first
    each: tuple[int, ...]  # for each batch, how many candidates share a plaintext
    offset: int  # added to every g

    def batches(self, candidates: int) -> list[int]:
        """Return how many ciphertexts each batch has for ``candidates`` sums."""
        return [-(-candidates // each) for each in self.each]


def fields(rows: int, how: SecureBoost, classes: int = 1) -> Fields:
    """Return the layout of sums over at most ``rows`` rows, of one class or several.

    PrivacyError if the key is too short for one sum.
    """
    offset = 1 << how.precision
    g, h, count = ((most - 1).bit_length() + 1 for most in (2 * rows * offset, rows * offset, rows + 1))
    widths = ((h, g) * classes + (count,),) if how.pack else ((g,), (h, count)) * classes
    slots, room = [sum(some) for some in widths], how.key_bits - 2
    if max(slots) > room:
        fits = (room - count) // (g + h) if how.pack else 0
        of, cure = (
            (f" and {classes} classes", f"use at most {fits} classes, lower algorithm.precision or use a longer key")
            if classes > 1
            else ("", "lower algorithm.precision or use a longer key")
        )
        raise PrivacyError(
            f"sums of {rows:,} rows{of} need {max(slots)} bits, but a key of {how.key_bits} has room for {room}: {cure}."
        )
    return Fields(widths, tuple((how.key_bits - 2) // slot if how.compress else 1 for slot in slots), offset)


def sealed(found: Sequence[Fixed], form: Fields, keys: paillier.Holder, workers: int) -> Sealed:
    """Return each row's gradients and curvatures of all classes and its count, encrypted by the key holder.

    PrivacyError for a number above the offset, whose sums could run over into the next field.
    """
    if max(int(np.abs(each).max(initial=0)) for one in found for each in (one.g, one.h)) > form.offset:
        raise PrivacyError("a gradient is larger than its fixed point allows: weigh the rows before it is formed.")
    pairs = [(one.h.tolist(), (one.g + form.offset).tolist()) for one in found]
    count = [1] * len(found[0].g)
    rows: list[list[tuple[int, ...]]] = [[*zip(*(each for pair in pairs for each in pair), count, strict=True)]]
    if len(form.widths) > 1:
        rows = []
        for h, g in pairs:
            rows += [[(a,) for a in g], [(b, 1) for b in h]]
    plain = [[paillier.join(row, widths) for row in some] for some, widths in zip(rows, form.widths, strict=True)]
    return tuple(paillier.encrypt(keys.public, some, keys=keys, workers=workers) for some in plain)


class Cipher(NamedTuple):
    """Sums of gradients that a passive party cannot read; `histogram.Clear` does the same in the clear."""

    public: paillier.PublicKey
    rows: Sealed  # those that the tree is grown on
    form: Fields
    workers: int = 1

    def histogram(self, members: Whole, spots: Whole, width: int) -> Sealed:
        """Return, at each position, the sum over some of the rows, whose bins are (members, columns)."""
        found = layers(members, spots)
        return tuple(self._summed(batch, found, width) for batch in self.rows)

    def _summed(self, rows: paillier.Batch, found: Sequence[SumLayer], width: int) -> paillier.Batch:
        out = paillier.subsets(self.public, rows, [()] * width)
        for layer in found:
            rows = paillier.subsets(self.public, rows, layer.members, workers=self.workers)
            out.ciphertexts[layer.bins] = rows.ciphertexts[layer.sums]
        return out

    def sister(self, parent: Sealed, child: Sealed) -> Sealed:
        """Return the other child's sums: the parent's minus those of the child."""
        pairs = zip(parent, child, strict=True)
        return tuple(paillier.subtract(self.public, a, b, workers=self.workers) for a, b in pairs)

    def returned(self, histogram: Sealed, found: Grid, order: Whole) -> Any:
        """Return the left sums of all candidates in this order, as they are sent: gathered and blinded."""
        out = []
        for batch, widths, each in zip(histogram, self.form.widths, self.form.each, strict=True):
            sums = self._left(batch, found).at(order)
            if each > 1:
                sums = paillier.gather(self.public, sums, sum(widths), each, workers=self.workers)
            zeros = paillier.encrypt(self.public, [0] * len(sums), workers=self.workers)
            out.append(paillier.add(self.public, sums, zeros, workers=self.workers).plain())
        return out

    def _left(self, batch: paillier.Batch, found: Grid) -> paillier.Batch:
        ends = [*found.first[1:].tolist(), found.width]
        lengths = [end - first for first, end in zip(found.first.tolist(), ends, strict=True)]
        sums, adds = paillier.running(self.public, batch, lengths).at(found.at), np.flatnonzero(found.adds)
        if len(adds):
            holes = batch.at(found.hole[adds])
            sums.ciphertexts[adds] = paillier.add(self.public, sums.at(adds), holes, workers=self.workers).ciphertexts
        return sums


def opened(keys: paillier.Holder, plain: Any, form: Fields, candidates: int, workers: int) -> Whole:
    """Return (candidates, 2 classes + 1), the opened sums of g and h of each class, and of rows.

    ProtocolError if there are more or fewer, if they belong to another key, or if they cannot be such sums.
    """
    if not isinstance(plain, list) or len(plain) != len(form.widths):
        raise ProtocolError("the message holds no ciphertexts of sums")
    columns: list[list[int]] = []  # h, g of each class and a count; or of each class g, h and a count
    for one, widths, each, count in zip(plain, form.widths, form.each, form.batches(candidates), strict=True):
        batch = paillier.received(keys.public, one, count)
        slots: list[int] = []
        for m in paillier.decrypt(keys, batch, workers=workers):
            slots += paillier.separate(m, [sum(widths)] * min(each, candidates - len(slots)))
        rows = [paillier.separate(slot, widths) for slot in slots]
        columns += [list(field) for field in zip(*rows, strict=True)] or [[] for _ in widths]
    if max((x for field in columns for x in field), default=0) >= 1 << 63:
        raise ProtocolError("an opened sum is larger than its summands can be: it has another layout, or is forged.")
    sums = np.array(columns, np.int64)
    g, h = (sums[1::2], sums[:-1:2]) if len(form.widths) == 1 else (sums[::3], sums[1::3])
    return np.concatenate([fields_of((g - sums[-1] * form.offset).T, h.T), sums[-1:].T], axis=1)

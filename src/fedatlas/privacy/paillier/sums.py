"""Arithmetic on ciphertexts by the public key: Enc(a) Enc(b) = Enc(a + b), Enc(a)^k = Enc(k a), Enc(a)^-1 = Enc(-a), modulo n^2.

The result is as secret as the input but is not re-randomised: somebody who knows the whole input recognises it. If that matters,
add an encryption of zeros.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fedatlas.errors import PrivacyError, ProtocolError
from fedatlas.privacy.paillier.batches import Batch, check_key, computed, number, raw
from fedatlas.privacy.paillier.keys import PublicKey
from fedatlas.privacy.paillier.primes import gmp

TOGETHER = 4  # bases whose products share one table: 11 products, for one multiplication per bit
LONG, OF_LONG = (
    512,
    6,
)  # bits of weights from which a larger table, of 57 products, takes fewer multiplications, and its bases


def weighted_sum(public: PublicKey, batches: Sequence[Batch], weights: Sequence[int], *, workers: int = 1) -> Batch:
    """Return sum_k weights[k] batches[k] per ciphertext, by Straus' simultaneous powers: all bases share the squarings.

    Weights are whole numbers of any sign. The caller must ensure that the sums stay below n (`fixed.Layout`).
    """
    _alike(batches)
    if len(weights) != len(batches):
        raise PrivacyError(f"{len(weights)} weights for {len(batches)} batches: give each batch one.")
    chosen = [(raw(public, batch), k) for batch, k in zip(batches, weights, strict=True) if k]
    g, plan = gmp(), _plan([abs(k) for _, k in chosen])
    square, width = g.mpz(public.n) ** 2, public.width

    def one(i: int) -> Any:
        bases = [number(data, i, width) for data, _ in chosen]
        return _powers(
            [b if k > 0 else g.invert(b, square) for b, (_, k) in zip(bases, chosen, strict=True)], plan, square
        )

    return computed(public, len(batches[0]), workers, lambda places: map(one, places))


def weighted_sums(
    public: PublicKey, batches: Sequence[Batch], weights: Sequence[Sequence[int]], *, workers: int = 1
) -> Batch:
    """Return sum_k weights[r][k] batches[k] for every row r of weights: all rows of the first ciphertext, then those of the next.

    The products of bases are shared by the rows, so that more bases share a table. Weights are whole numbers from 0.
    """
    _alike(batches)
    g, square, width = gmp(), gmp().mpz(public.n) ** 2, public.width
    data, rows = [raw(public, batch) for batch in batches], len(weights)
    length = max(k.bit_length() for row in weights for k in row)
    size = min(range(1, len(batches) + 1), key=lambda s: -(-len(batches) // s) * (length + 2**s / rows))
    steps = [_steps(row, size, length) for row in weights]

    def powers(places: range) -> Iterator[Any]:
        here, tables = -1, list[_Products]()
        for place in places:
            if place // rows != here:
                here = place // rows
                bases = [number(each, here, width) for each in data]
                tables = [_Products(bases[at : at + size], square) for at in range(0, len(bases), size)]
            product = g.mpz(1)
            for step in steps[place % rows]:
                product = product * product % square
                for table, mask in zip(tables, step, strict=True):
                    if mask:
                        product = product * table[mask] % square
            yield product

    return computed(public, len(batches[0]) * rows, workers, powers)


class _Products(dict[int, Any]):
    """Products of sets of bases, by bit mask, made when they are first needed."""

    def __init__(self, bases: Sequence[Any], square: Any) -> None:
        super().__init__({1 << j: base for j, base in enumerate(bases)})
        self.square = square

    def __missing__(self, mask: int) -> Any:
        rest = mask & (mask - 1)
        found = self[mask] = self[rest] * self[mask ^ rest] % self.square
        return found


def add(public: PublicKey, a: Batch, b: Batch, *, workers: int = 1) -> Batch:
    """Return a + b."""
    return weighted_sum(public, [a, b], [1, 1], workers=workers)


def subtract(public: PublicKey, a: Batch, b: Batch, *, workers: int = 1) -> Batch:
    """Return a - b (modulo n: packed values must not become negative)."""
    return weighted_sum(public, [a, b], [1, -1], workers=workers)


def times(public: PublicKey, a: Batch, k: int, *, workers: int = 1) -> Batch:
    """Return k a."""
    return weighted_sum(public, [a], [k], workers=workers)


def subsets(public: PublicKey, batch: Batch, members: Sequence[Sequence[int]], *, workers: int = 1) -> Batch:
    """Return, for each list of places in the batch, the sum of the entries there. An empty list gives a bare 0, which hides nothing."""
    check_key(public, batch)
    numbers, square = batch.numbers, gmp().mpz(public.n) ** 2

    def one(i: int) -> Any:
        if not members[i]:
            return gmp().mpz(1)
        first, *others = members[i]
        product = numbers[first]
        for place in others:
            product = product * numbers[place] % square
        return product

    return computed(public, len(members), workers, lambda places: map(one, places), sizes=[*map(len, members)])


def running(public: PublicKey, batch: Batch, lengths: Sequence[int]) -> Batch:
    """Return running sums within consecutive stretches of these lengths: from the start of each stretch up to every place."""
    data, width, square = raw(public, batch), public.width, gmp().mpz(public.n) ** 2
    begin = {sum(lengths[:i]) for i in range(len(lengths))}

    def products(places: range) -> Iterator[Any]:
        product = gmp().mpz(1)
        for place in places:
            here = number(data, place, width)
            product = here if place in begin else product * here % square
            yield product

    return computed(public, len(batch), 1, products)


def gather(public: PublicKey, batch: Batch, slot: int, each: int, *, workers: int = 1) -> Batch:
    """Gather ``each`` ciphertexts into one, the following plaintexts one ``slot`` of bits above each other. The last may hold fewer.

    Computes sum_i m_i 2^(slot i) by Horner's rule. Opening then costs one decryption for ``each`` sums. The m_i are below 2^slot.
    """
    if slot * each > public.bits - 2:
        raise PrivacyError(
            f"{each} sums of {slot} bits do not fit into a plaintext of {public.bits} bits: gather fewer."
        )
    g = gmp()
    data, width, square = raw(public, batch), public.width, g.mpz(public.n) ** 2

    def one(i: int) -> Any:
        product = g.mpz(1)
        for place in reversed(range(i * each, min((i + 1) * each, len(batch)))):
            product = g.powmod(product, 1 << slot, square) * number(data, place, width) % square
        return product

    return computed(public, -(-len(batch) // each), workers, lambda places: map(one, places))


def _alike(batches: Sequence[Batch]) -> None:
    lengths = {len(batch) for batch in batches}
    if len(lengths) != 1:
        raise ProtocolError(f"batches of {sorted(lengths)} ciphertexts cannot be added up: all clients send as many.")


def _plan(weights: Sequence[int]) -> tuple[int, list[list[int]], list[list[int]]]:
    """Return (bases in a group; per group, sets whose products are needed, smaller first; per bit from the top, the set of each group).

    A set of bases is a bit mask. A product is made from the set without its lowest member, so that set is needed too.
    """
    length = max((k.bit_length() for k in weights), default=0)
    size = TOGETHER if length < LONG else OF_LONG
    steps = _steps(weights, size, length)
    needed = []
    for place in range(-(-len(weights) // size)):
        wanted = set()
        for mask in {step[place] for step in steps}:
            while mask:
                wanted.add(mask)
                mask &= mask - 1
        needed.append(sorted(wanted))
    return size, needed, steps


def _steps(weights: Sequence[int], size: int, length: int) -> list[list[int]]:
    """Return, for each bit from the top, the set of each group of so many bases whose weights have it."""
    groups = [weights[at : at + size] for at in range(0, len(weights), size)]
    return [
        [sum((k >> bit & 1) << j for j, k in enumerate(group)) for group in groups] for bit in reversed(range(length))
    ]


def _powers(bases: Sequence[Any], plan: tuple[int, list[list[int]], list[list[int]]], square: Any) -> Any:
    """Return prod_k bases[k]^weights[k] modulo n^2."""
    one = gmp().mpz(1)
    size, groups, steps = plan
    tables = []
    for at, needed in enumerate(groups):
        table = {0: one}
        for mask in needed:
            rest, base = table[mask & (mask - 1)], bases[at * size + (mask & -mask).bit_length() - 1]
            table[mask] = base if rest is one else rest * base % square
        tables.append(table)
    product = one
    for step in steps:
        if product is not one:
            product = product * product % square
        for table, mask in zip(tables, step, strict=True):
            if mask:
                product = table[mask] if product is one else product * table[mask] % square
    return product

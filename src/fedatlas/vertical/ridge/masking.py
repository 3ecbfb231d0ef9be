"""The masked solution of normal equations: A beta = b is solved by a party that sees A R and b + A r, uniform whatever A and b are.

    engine:    [[A R]], [[b + A r]] from [[A]], [[b]], by powers of ciphertexts; R and r uniform modulo N
    provider:  t = (A R)^-1 (b + A r) mod N
    unmasked:  beta = R t - r mod N, and from it the fraction

A is symmetric, and its upper triangle is sent, row after row. All else that crosses stands column after column. R is not singular but
for a chance of about 2 / p, p a prime factor of N.

Masked ciphertexts get fresh randomness from the same base as all others (`paillier.sealer`), so all that the provider could compute
from their randomness is uniform, too. Its key may have any primes: under decisional composite residuosity h = y^(2 N) cannot be told
from (1 + N)^(2 a) y^(2 N), of which the power s with `paillier.full` bits hides a message modulo N, since s modulo N is uniform
whatever s is modulo the order of y^(2 N).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import isqrt
from typing import Any

import numpy as np
import torch

from fedatlas import secret
from fedatlas.errors import DataError, ProtocolError
from fedatlas.privacy.paillier import cryptosystem as paillier
from fedatlas.privacy.paillier.primes import gmp
from fedatlas.vertical.parties import Whole

Matrix = list[list[int]]
"""Rows of whole numbers."""

CLEAR = (1 << 4423) - 1
"""A prime longer than any key, modulo which equations in the clear are solved, as exactly as under a key."""

SINGULAR = (
    "the columns determine the coefficients only with a penalty, since a column is constant or follows from others: "
    "set algorithm.l2 above 0, or drop the column."
)


def triangle(p: int) -> Whole:
    """Return (p, p), the place of each entry of a symmetric matrix in its upper triangle."""
    found, (i, j) = np.zeros((p, p), np.int64), np.triu_indices(p)
    found[i, j] = found[j, i] = np.arange(len(i))
    return found


def flat(a: Matrix, b: Matrix) -> list[int]:
    """Return the upper triangle of ``a``, and then ``b``, column after column."""
    upper = [x for i, row in enumerate(a) for x in row[i:]]
    return upper + [row[j] for j in range(len(b[0])) for row in b]


def of_flat(values: Sequence[int], p: int) -> tuple[Matrix, Matrix]:
    """Return the matrix (p, p) and the targets (p, c) of numbers in the order of `flat`."""
    at, first = triangle(p), p * (p + 1) // 2
    columns = [values[k : k + p] for k in range(first, len(values), p)]
    return [[values[j] for j in row] for row in at], [list(row) for row in zip(*columns, strict=True)]


def drawn(rows: int, columns: int, n: int) -> Matrix:
    """Draw a matrix, each entry uniform below n."""
    return [[secret.integer_below(n) for _ in range(columns)] for _ in range(rows)]


def masked(
    keys: paillier.Sealer, equations: paillier.Batch, matrix: Matrix, shift: Matrix, workers: int = 1
) -> paillier.Batch:
    """Return [[A R]] and [[b + A r]] of encrypted equations (`flat`), column after column.

    The equations are as `paillier.received` returns them.
    """
    p, public, at = len(matrix), keys.public, triangle(len(matrix))
    columns = [equations.at(at[:, j]) for j in range(p)]
    products = paillier.weighted_sums(
        public, columns, [*zip(*matrix, strict=True), *zip(*shift, strict=True)], workers=workers
    )
    found = [products.at(slice(k, None, p + len(shift[0]))).ciphertexts for k in range(p + len(shift[0]))]
    for k in range(len(shift[0])):
        first = p * (p + 1) // 2 + k * p
        shifted = paillier.Batch(public.name, found[p + k])
        found[p + k] = paillier.add(public, shifted, equations.at(slice(first, first + p)), workers=workers).ciphertexts
    sums = paillier.Batch(public.name, torch.cat(found))
    zeros = paillier.encrypt(public, [0] * len(sums), keys=keys, workers=workers)
    return paillier.add(public, sums, zeros, workers=workers)


def square(values: Sequence[int], p: int) -> tuple[Matrix, Matrix]:
    """Return the matrix (p, p) and the targets (p, c) of values column after column."""
    columns = [list(values[at : at + p]) for at in range(0, len(values), p)]
    rows = [list(row) for row in zip(*columns, strict=True)]
    return [row[:p] for row in rows], [row[p:] for row in rows]


def solved(a: Matrix, b: Matrix, n: int) -> Matrix:
    """Return a^-1 b modulo n, by Gauss. DataError if ``a`` is singular."""
    g, p = gmp(), len(a)
    rows: list[list[Any]] = [[g.mpz(x) % n for x in (*left, *right)] for left, right in zip(a, b, strict=True)]
    for k in range(p):
        pivot = next((i for i in range(k, p) if g.gcd(rows[i][k], n) == 1), None)
        if pivot is None:
            raise DataError(SINGULAR)
        rows[k], rows[pivot] = rows[pivot], rows[k]
        inverse = g.invert(rows[k][k], n)
        rows[k] = [x * inverse % n for x in rows[k]]
        for i in range(p):
            if i != k and (factor := rows[i][k]):
                rows[i] = [(x - factor * y) % n for x, y in zip(rows[i], rows[k], strict=True)]
    return [[int(x) for x in row[p:]] for row in rows]


def unmasked(found: Matrix, matrix: Matrix, shift: Matrix, n: int) -> list[list[Fraction]]:
    """Return beta as fractions. ProtocolError for a number that is none of that size.

    Many false solutions have such fractions, too: this notices few of them.
    """
    columns = list(zip(*found, strict=True))
    return [
        [
            fraction((sum(x * y for x, y in zip(row, column, strict=True)) - own) % n, n)
            for column, own in zip(columns, r, strict=True)
        ]
        for row, r in zip(matrix, shift, strict=True)
    ]


def fraction(value: int, n: int) -> Fraction:
    """Return the fraction a / b with a = b value modulo n and both at most sqrt(n / 2), by Euclid. ProtocolError if there is none."""
    most, (r, s), (t, v) = isqrt(n // 2), (n, value % n), (0, 1)
    while s > most:
        q = r // s
        r, s, t, v = s, r - q * s, v, t - q * v
    if not 0 < abs(v) <= most:
        raise ProtocolError("the solution is no fraction of the planned size: a party does not follow the protocol.")
    return Fraction(s, v)


def as_bytes(values: Matrix, n: int) -> torch.Tensor:
    """Return (entries, width of n) uint8, the numbers of a matrix row after row, big-endian."""
    width = -(-n.bit_length() // 8)
    data = bytearray(b"".join(x.to_bytes(width, "big") for row in values for x in row))
    return torch.frombuffer(data, dtype=torch.uint8).reshape(-1, width)


def from_bytes(data: torch.Tensor, columns: int) -> Matrix:
    """Return the matrix of such bytes."""
    values = [int.from_bytes(row.numpy().tobytes(), "big") for row in data]
    return [values[at : at + columns] for at in range(0, len(values), columns)]

"""Fixed point: real numbers as whole ones, and how many bits a key must have for them.

A column is divided by 2^e, the smallest power of two that no value of any owner exceeds, and the label likewise. So |x| <= 1, and the
division is exact. Then f bits stand after the point. The normal equations A = X'X + D and b = X'y of the whole numbers are exact. Their
solution has numerators and denominators of at most (sqrt(p) (n + d) 2^(2 f))^p by Cramer and Hadamard, d the largest penalty, and a
fraction is found again modulo N if twice the product of both is below N:

    2 p (2 f + log2(n + d) + log2(p) / 2) + 1 < bits(N)

p counts the intercept, a last column of ones that is not penalised. A is positive definite, so its denominator lacks the factor
p^(p / 2) >= 2, which pays for the bit that N may be short of 2^bits.

l2 is of the columns as they are: a column that is divided by 2^e has the penalty l2 / 4^e. One above 0 is never rounded to 0, so with it A
has a solution, whatever the columns.

Source: Giacomelli, Jha, Joye, Page, Yoon, ACNS 2018 (V4).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from fedatlas.errors import DataError, PrivacyError
from fedatlas.vertical.parties import Floats, Whole

FEWEST, MOST = 8, 52  # bits after the point; a double has 52 behind its first
NOTHING = -1100  # exponent of a column of zeros
LARGE = 1 << 60  # penalties from here on are taken as whole numbers, since a double ends at 2^1024
LIMB = 26  # bits of a half of a whole number: products of two and sums of 1,024 of them stay within 63
ROWS = 1024

BEYOND = "a coefficient is larger than every double: give the numbers of the columns and of the label in units in which they are near 1."


class FixedPoint(NamedTuple):
    """How all owners write their numbers."""

    rows: int  # of all owners
    precision: int  # f
    largest: tuple[int, ...]  # exponent of each column, and last of the label

    @property
    def width(self) -> int:
        """Number of columns, the intercept among them."""
        return len(self.largest)

    def penalties(self, l2: float) -> list[int]:
        """Return what is added to the diagonal of X'X, in its unit 2^(-2 f). Of ``l2`` above 0 none is 0."""
        exact = [Fraction(l2) * Fraction(4) ** (self.precision - e) for e in self.largest[:-1]]
        return [max(round(one), int(one > 0)) for one in exact] + [0]

    def unscaled(self, solution: Sequence[Sequence[Fraction]]) -> Floats:
        """Return (columns, targets) coefficients of the columns as they are, the intercept last, each the nearest double.

        DataError for one above all doubles.
        """
        powers = [self.largest[-1] - e for e in (*self.largest[:-1], 0)]
        pairs = zip(solution, powers, strict=True)
        try:
            return np.array([[float(one * Fraction(2) ** power) for one in row] for row, power in pairs])
        except OverflowError:
            raise DataError(BEYOND) from None


def exponents(x: Floats) -> Whole:
    """Return (columns,) the smallest e with |x| <= 2^e in each column."""
    most = np.abs(x).max(axis=0, initial=0.0)
    mantissa, found = np.frexp(most)
    return np.where(most > 0, found - (mantissa == 0.5), NOTHING).astype(np.int64)


def whole(x: Floats, largest: Sequence[int], precision: int) -> Whole:
    """Return (rows, columns) whole numbers, x / 2^e with ``precision`` bits after the point, ties to even."""
    found: Whole = np.rint(np.ldexp(x, precision - np.asarray(largest))).astype(np.int64)
    return found


def products(a: Whole, b: Whole) -> list[list[int]]:
    """Return a'b exactly. Entries are at most 2^52 in size."""
    total = np.zeros((a.shape[1], b.shape[1]), object)
    for at in range(0, len(a), ROWS):
        halves = [(each >> LIMB, each & ((1 << LIMB) - 1)) for each in (a[at : at + ROWS], b[at : at + ROWS])]
        for i, left in enumerate(halves[0]):
            for j, right in enumerate(halves[1]):
                total += (left.T @ right).astype(object) << (LIMB * (2 - i - j))
    found: list[list[int]] = total.tolist()
    return found


def needed(width: int, precision: int, rows: int, penalty: float) -> float:
    """Return the bits that N must have more than, for the solution to be found again."""
    return 2 * width * (2 * precision + math.log2(rows + penalty) + math.log2(width) / 2) + 1


def planned(rows: int, largest: Sequence[int], l2: float, precision: int | None, key_bits: int) -> FixedPoint:
    """Return the plan. ``precision``: None: the largest that fits. PrivacyError if it does not fit the key, or none does."""
    found = tuple(0 if e == NOTHING else int(e) for e in largest)
    width, exact = len(found), Fraction(l2) * Fraction(4) ** -min(found[:-1])
    penalty = float(exact) if exact < LARGE else int(exact)
    tried = range(MOST, FEWEST - 1, -1) if precision is None else (precision,)
    for f in tried:
        if needed(width, f, rows, max(penalty, 4.0**-f if l2 else 0.0)) < key_bits:
            return FixedPoint(rows, f, found)
    bits = math.floor(needed(width, tried[-1], rows, penalty)) + 1
    cure = "use fewer columns or a longer key" if precision is None else "lower algorithm.precision or use a longer key"
    raise PrivacyError(
        f"private ridge regression of {width - 1} columns and {rows:,} rows with {tried[-1]} bits after the point needs a key of "
        f"{bits:,} bits, and this key has {key_bits:,}: {cure}."
    )


def error(plan: FixedPoint, l2: float, x: Floats, y: Floats, coefficients: Floats) -> float:
    """Return a bound on how far a prediction is from that of the coefficients of the numbers before they were rounded.

    x, y: rows of one owner and their targets (rows, targets). coefficients: (columns + 1, targets) of the columns as they are. It holds
    for every row whose values are no larger than the plan says, in the label's unit. The owner asks nobody: all that it needs of the
    other owners' rows is how many there are. Infinite if its own rows do not determine the coefficients.

    In scaled numbers, A* and b* those before rounding: A* (beta - beta*) = (A* - A) beta - (b* - b). An entry of A or b is a sum over n
    rows of products of numbers of at most 1, each rounded by at most u = 2^(-f-1), so it changes by at most 2 n u, and a penalty by
    less than 4 u^2. And the least eigenvalue of A* is at least that of the owner's own part with the penalty, since the other owners'
    parts have none below 0. The last term is the rounding of the coefficients to doubles.
    """
    n, p, u = plan.rows, plan.width, 2.0 ** (-plan.precision - 1)
    own = np.concatenate([np.ldexp(x, -np.array(plan.largest[:-1])), np.ones((len(x), 1))], axis=1)
    penalty = np.array([*(math.ldexp(l2, -2 * e) for e in plan.largest[:-1]), 0.0])
    gram = own.T @ own + np.diag(penalty)
    least = float(np.linalg.eigvalsh(gram)[0]) - (len(x) + p * p) * 2.0**-52 * float(np.trace(gram))
    if least <= 0:
        return math.inf
    powers = np.array([*plan.largest[:-1], 0]) - plan.largest[-1]
    with np.errstate(over="ignore"):
        size = float(np.abs(np.ldexp(coefficients, powers[:, None])).sum(axis=0).max())
    residual = math.sqrt(p) * (2 * n * u * (1 + size) + 4 * u * u * size)
    with np.errstate(over="ignore"):
        return float(np.ldexp(math.sqrt(p) * residual / least + 2.0**-53 * size, plan.largest[-1]))

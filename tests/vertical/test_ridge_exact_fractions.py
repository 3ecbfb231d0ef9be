"""How much the exact solution of private ridge tells: who takes the masks off finds sums over all rows, and the texts say so."""

from __future__ import annotations

from fractions import Fraction
from math import lcm
from pathlib import Path

import numpy as np
import pytest

from fedatlas.vertical.ridge import masking, numbers
from fedatlas.vertical.ridge.scheme import FRACTIONS, WORDS
from fedatlas.vertical.ridge.settings import Ridge

Rows = list[list[int]]


def dot(a: list[Fraction], b: list[Fraction]) -> Fraction:
    return sum((x * y for x, y in zip(a, b, strict=True)), Fraction(0))


def orthogonal(rows: Rows) -> tuple[list[list[Fraction]], list[Fraction]]:
    """The coefficients of Gram and Schmidt, and the squared lengths of what they leave."""
    left: list[list[Fraction]] = []
    factors = [[Fraction(0)] * len(rows) for _ in rows]
    for i, row in enumerate(rows):
        rest = [Fraction(x) for x in row]
        for j in range(i):
            factors[i][j] = dot([Fraction(x) for x in row], left[j]) / dot(left[j], left[j])
            rest = [x - factors[i][j] * y for x, y in zip(rest, left[j], strict=True)]
        left.append(rest)
    return factors, [dot(one, one) for one in left]


def reduced(rows: Rows) -> Rows:
    """A basis of short vectors of the same lattice (Lenstra, Lenstra and Lovász)."""
    rows, k = [[*row] for row in rows], 1
    while k < len(rows):
        for j in reversed(range(k)):
            if times := round(orthogonal(rows)[0][k][j]):
                rows[k] = [x - times * y for x, y in zip(rows[k], rows[j], strict=True)]
        factors, sizes = orthogonal(rows)
        if sizes[k] >= (Fraction(3, 4) - factors[k][k - 1] ** 2) * sizes[k - 1]:
            k += 1
        else:
            rows[k - 1], rows[k], k = rows[k], rows[k - 1], max(k - 1, 1)
    return rows


def sums_of(solution: list[Fraction], rows: int, precision: int) -> list[int]:
    """The sums of all columns and of the label, in steps, from the exact solution and the number of rows.

    The intercept's equation says: sum of sums times coefficients = sum of labels. Only one choice of whole numbers is so small.
    """
    one = lcm(*(x.denominator for x in solution))
    *slopes, last = (int(x * one) for x in solution)
    each, far = rows << precision, 1 << (8 * precision * len(solution))
    line = [*slopes, each * last, -one]
    scale = [*(1 for _ in slopes), each, 1]
    basis = [[scale[i] * (i == j) for j in range(len(line))] + [far * x] for i, x in enumerate(line)]
    (found,) = (one for one in reduced(basis) if not one[-1] and abs(one[len(slopes)]) == each)
    sign = found[len(slopes)] // each
    return [sign * x for x in (*found[: len(slopes)], found[-2])]


@pytest.mark.parametrize("columns", [1, 3])
def test_from_the_exact_solution_an_owner_finds_the_others_sums(columns: int) -> None:
    draw, precision = np.random.default_rng(columns), 10
    x = draw.uniform(-1, 1, (40, columns))
    y = np.clip(x.mean(axis=1) + draw.normal(size=40) / 8, -1, 1)
    plan = numbers.FixedPoint(40, precision, (0,) * (columns + 1))
    whole, label = numbers.whole(x, plan.largest[:-1], precision), numbers.whole(y[:, None], (0,), precision)
    left = np.concatenate([whole, np.full((40, 1), 1 << precision)], axis=1)
    a = numbers.products(left, left)
    for j, penalty in enumerate(plan.penalties(1.0)):
        a[j][j] += penalty
    n = masking.CLEAR  # stands for a key: fractions are found again as under one
    solution = [masking.fraction(value, n) for (value,) in masking.solved(a, numbers.products(left, label), n)]
    own, found = slice(0, 20), np.array(sums_of(solution, 40, precision))
    told = found - np.array([*whole[own].sum(axis=0), label[own].sum()])
    assert told.tolist() == [*whole[20:].sum(axis=0).tolist(), int(label[20:].sum())]


@pytest.mark.parametrize("reveal", ["engine", "owners"])
def test_the_table_the_report_and_the_page_say_so(reveal: str) -> None:
    (row,) = (one for one in WORDS.learns(Ridge(1.0, None, reveal), True) if one.step == "coefficients")  # type: ignore[arg-type]
    knows, other = (row.active, row.passive) if reveal == "engine" else (row.passive, row.active)
    assert FRACTIONS in knows
    assert FRACTIONS not in other
    assert FRACTIONS in WORDS.caution
    page = (Path(__file__).parents[2] / "docs" / "vertical.md").read_text()
    assert "sum of every column and of the label over all owners' rows" in " ".join(page.split())

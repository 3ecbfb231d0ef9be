"""The mathematics of private ridge regression: fixed point, the rule for the key, masked equations, fractions."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from fedatlas.errors import DataError, PrivacyError, ProtocolError
from fedatlas.privacy.paillier import cryptosystem as paillier
from fedatlas.vertical.ridge import masking, numbers

N = (1 << 127) - 1  # a prime: no ciphertexts here


def by_hand(a: list[list[int]], b: list[list[int]]) -> list[list[Fraction]]:
    """a^-1 b in fractions."""
    rows = [[Fraction(x) for x in (*one, *other)] for one, other in zip(a, b, strict=True)]
    for k in range(len(rows)):
        pivot = next(i for i in range(k, len(rows)) if rows[i][k])
        rows[k], rows[pivot] = rows[pivot], rows[k]
        rows[k] = [x / rows[k][k] for x in rows[k]]
        for i in range(len(rows)):
            if i != k:
                rows[i] = [x - rows[i][k] * y for x, y in zip(rows[i], rows[k], strict=True)]
    return [row[len(a) :] for row in rows]


def test_the_rule_for_the_key_is_that_of_the_specification() -> None:
    assert math.ceil(numbers.needed(18, 24, 100, 1.0)) == 2044
    assert math.ceil(numbers.needed(20, 24, 100, 1.0)) == 2274


def test_auto_takes_the_most_bits_that_fit_and_a_key_without_room_is_refused() -> None:
    plan = numbers.planned(1000, [0] * 17, 1.0, None, 2048)
    assert numbers.needed(17, plan.precision, 1000, 1.0) < 2048 <= numbers.needed(17, plan.precision + 1, 1000, 1.0)
    assert numbers.planned(100, [0] * 18, 1.0, 24, 2048).precision == 24
    with pytest.raises(PrivacyError, match=r"19 columns and 100 rows with 24 bits .* a key of 2,274 bits"):
        numbers.planned(100, [0] * 20, 1.0, 24, 2048)
    with pytest.raises(PrivacyError, match="use fewer columns or a longer key"):
        numbers.planned(100, [0] * 60, 1.0, None, 2048)
    assert numbers.planned(100, [0] * 3, 1.0, None, 4096).precision == numbers.MOST
    with pytest.raises(PrivacyError, match="needs a key of"):
        numbers.planned(100, [-900, 0, 0], 1.0, None, 4096)  # its penalty is l2 2^1800


def test_columns_are_divided_by_the_least_power_of_two_that_no_value_exceeds() -> None:
    x = np.array([[1.0, 0.9, -3.0, 0.0, 5e-324], [-0.5, 1.1, 4.0, 0.0, 0.0]])
    assert numbers.exponents(x).tolist() == [0, 1, 2, numbers.NOTHING, -1074]
    whole = numbers.whole(x[:, :3], [0, 1, 2], 3)
    assert whole.tolist() == [[8, 4, -6], [-4, 4, 8]]  # 0.9 / 2 * 8 = 3.6 and 1.1 / 2 * 8 = 4.4


@pytest.mark.parametrize("rows", [1, 1024, 2500])
def test_products_of_the_largest_numbers_are_exact(rows: int) -> None:
    draw = np.random.default_rng(0)
    a = draw.integers(-(1 << 52), (1 << 52) + 1, (rows, 3))
    a[:, 0] = 1 << 52
    a[:, 1] = -(1 << 52)
    assert numbers.products(a, a) == (a.astype(object).T @ a.astype(object)).tolist()


def test_penalties_are_of_the_columns_as_they_are() -> None:
    assert numbers.FixedPoint(10, 8, (0, 2, -3, 7)).penalties(0.5) == [1 << 15, 1 << 11, 1 << 21, 0]


def test_a_penalty_is_never_rounded_to_nothing_so_a_column_of_large_numbers_may_be_constant() -> None:
    assert numbers.FixedPoint(10, 8, (31, 0, 31, 7)).penalties(1.0) == [1, 1 << 16, 1, 0]
    assert numbers.FixedPoint(10, 8, (31, 0, 31, 7)).penalties(0.0) == [0] * 4
    a = [[6, 6, 12], [6, 6, 12], [12, 12, 24]]  # each column is half of the last
    for j, one in enumerate(numbers.FixedPoint(6, 8, (31, 31, 0)).penalties(1e-9)):
        a[j][j] += one
    assert masking.solved(a, [[3], [3], [6]], N)[:2] == [[0], [0]]


def test_penalties_and_coefficients_beyond_doubles_are_sentences() -> None:
    with pytest.raises(PrivacyError, match="1 columns and 9 rows with 20 bits"):  # its penalty is 2^1000
        numbers.planned(9, [-500, 0], 1.0, 20, 4096)
    with pytest.raises(PrivacyError, match="needs a key of"):
        numbers.planned(9, [-700, 0], 1e300, None, 4096)
    with pytest.raises(DataError, match="larger than every double"):
        numbers.FixedPoint(9, 8, (-1070, 0)).unscaled([[Fraction(1)], [Fraction(0)]])
    plan, x = numbers.FixedPoint(9, 8, (1000, 1023)), np.array([[1e300], [9e299]])
    assert numbers.error(plan, 0.0, x, np.ones((2, 1)), np.array([[1e30], [1e300]])) == math.inf


@pytest.mark.parametrize("targets", [1, 3])
def test_masked_equations_have_the_same_solution_as_the_equations(targets: int) -> None:
    draw = np.random.default_rng(1)
    x = draw.integers(-9, 10, (12, 4))
    a, b = numbers.products(x, x), numbers.products(x, draw.integers(-9, 10, (12, targets)))
    keys = paillier.generate_plain(256, testing=True)
    n = keys.public.n
    sealer = paillier.sealer(keys.public, paillier.base(keys.public, paillier.full(keys.public)))
    sealed = paillier.encrypt(keys.public, [m % n for m in masking.flat(a, b)], keys=sealer)
    matrix, shift = masking.drawn(4, 4, n), masking.drawn(4, targets, n)
    sent = masking.masked(sealer, sealed, matrix, shift)
    left, right = masking.square(paillier.decrypt(paillier.holder(keys, combs=False), sent), 4)
    product = (np.array(a, object) @ np.array(matrix, object)) % n
    shifted = (np.array(b, object) + np.array(a, object) @ np.array(shift, object)) % n
    assert left == product.tolist()
    assert right == shifted.tolist()
    assert masking.unmasked(masking.solved(left, right, n), matrix, shift, n) == by_hand(a, b)


def test_columns_of_targets_are_solved_one_by_one() -> None:
    draw = np.random.default_rng(2)
    a, b = draw.integers(0, 1 << 60, (5, 5)).tolist(), draw.integers(0, 1 << 60, (5, 3)).tolist()
    every = masking.solved(a, b, N)
    for k in range(3):
        assert masking.solved(a, [[row[k]] for row in b], N) == [[row[k]] for row in every]


def test_masked_equations_are_spread_evenly_whatever_the_equations_are() -> None:
    """Each of A R and b + A r is in each quarter of the numbers modulo N as often, within 6 standard errors."""
    draws, a, b = 400, np.array([[3, 1], [1, 2]], object), np.array([[5], [7]], object)
    found = []
    for _ in range(draws):
        matrix, shift = (np.array(masking.drawn(2, columns, N), object) for columns in (2, 1))
        found.append([*(a @ matrix % N).ravel(), *((b + a @ shift) % N).ravel()])
    for entries in zip(*found, strict=True):
        counts = np.bincount([4 * x // N for x in entries], minlength=4)
        assert abs(counts - draws / 4).max() < 6 * math.sqrt(draws * 3 / 16)


def test_fractions_are_found_again_up_to_the_bound_and_others_are_refused() -> None:
    most = math.isqrt(N // 2)
    for a, b in [(0, 1), (1, 1), (-3, 7), (most, most - 1), (-(most - 1), most), (5, most)]:
        assert masking.fraction(a * pow(b, -1, N) % N, N) == Fraction(a, b)
    assert masking.fraction(N - 1, N) == -1
    singular = [[1, 2], [2, 4]]
    with pytest.raises(DataError, match=r"set algorithm\.l2 above 0"):
        masking.solved(singular, [[1], [1]], N)


def test_a_solution_without_a_fraction_is_refused() -> None:
    """Modulo 15 with numbers of at most 2 there is no fraction that is 4."""
    with pytest.raises(ProtocolError, match="no fraction"):
        masking.fraction(4, 15)


def test_matrices_travel_as_bytes() -> None:
    matrix = masking.drawn(3, 2, N)
    assert masking.from_bytes(masking.as_bytes(matrix, N), 2) == matrix


def test_plain_keys_are_as_long_as_asked_and_4096_bits_are_for_them_only() -> None:
    keys = paillier.generate_plain(512, testing=True)
    assert keys.public.bits == 512
    assert paillier.public_key(keys.public.plain(), testing=True) == keys.public
    with pytest.raises(PrivacyError, match="choose 2048 or 3072"):
        paillier.generate(4096)
    with pytest.raises(PrivacyError, match="choose 2048 or 3072 or 4096"):
        paillier.generate_plain(1024)
    n = paillier.PublicKey((3 << 4094) + 1)
    assert paillier.public_key(n.plain(), plain_primes=True) == n
    with pytest.raises(PrivacyError, match="4096 bits"):
        paillier.public_key(n.plain())


def closed(x: np.ndarray, y: np.ndarray, penalties: list[Fraction]) -> list[Fraction]:
    """The coefficients of least squares with these penalties, in fractions; the last column is that of the intercept."""
    rows = [[*map(Fraction, row), Fraction(1)] for row in x.tolist()]
    p, targets = len(rows[0]), [*map(Fraction, y.tolist())]
    a = [[sum(row[i] * row[j] for row in rows) + (penalties[i] if i == j else 0) for j in range(p)] for i in range(p)]
    b = [[sum(row[i] * t for row, t in zip(rows, targets, strict=True))] for i in range(p)]
    return [one for (one,) in by_hand(a, b)]  # type: ignore[arg-type]


def drawn_table(kind: str, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Rows and labels, well and ill conditioned."""
    n = int(draw.integers(6, 30))
    x = draw.normal(size=(n, 3)) * 10.0 ** draw.integers(-3, 4, 3)
    if kind == "alike":  # two columns that are nearly the same
        x[:, 1] = x[:, 0] * (1 + 1e-4 * draw.normal(size=n))
    elif kind == "rare":  # a column that is nearly always 0
        x[:, 2] = 0
        x[0, 2] = 1.0
    elif kind == "halves":  # every number lies in the middle between two steps
        x = (np.rint(x / np.abs(x).max(axis=0) * 100) + 0.5) / 256
        x[0] = 1.0
    y = x @ draw.normal(size=3) * 3 + draw.normal(size=n) + 5
    return x, y


@pytest.mark.parametrize("precision", [8, 14])
@pytest.mark.parametrize("kind", ["plain", "alike", "rare", "halves"])
def test_no_drawn_table_breaks_the_bound_of_an_owner_for_the_worst_row(kind: str, precision: int) -> None:
    """Exact coefficients of the numbers and of the rounded ones; the worst row in their range has the sign of every difference."""
    draw, finite, near = np.random.default_rng(precision), 0, 0
    for l2 in (0.0, 1e-3, 1.0, 50.0):
        for _ in range(6):
            x, y = drawn_table(kind, draw)
            largest = (*numbers.exponents(x).tolist(), int(numbers.exponents(y[:, None])[0]))
            plan = numbers.FixedPoint(len(y), precision, largest)
            scaled, label = np.ldexp(x, -np.array(largest[:-1])), np.ldexp(y, -largest[-1])
            penalties = [Fraction(l2) / Fraction(4) ** e for e in largest[:-1]] + [Fraction(0)]
            whole = [
                numbers.whole(x, largest[:-1], precision),
                numbers.whole(y[:, None], largest[-1:], precision)[:, 0],
            ]
            step = 2.0**-precision
            rounded = [Fraction(d, 4**precision) for d in plan.penalties(l2)]
            try:
                due, got = closed(scaled, label, penalties), closed(whole[0] * step, whole[1] * step, rounded)
            except StopIteration:  # singular once rounded: refused in a run
                continue
            worst = float(sum(abs(a - b) for a, b in zip(due, got, strict=True))) * 2.0 ** largest[-1]
            coefficients = plan.unscaled([[one] for one in got])
            cut = len(y) // 2
            for own in (slice(None), slice(0, cut), slice(cut, None), slice(0, 1)):
                bound = numbers.error(plan, l2, x[own], y[own, None], coefficients)
                assert worst <= bound
                finite += np.isfinite(bound)
                near += worst > bound / 1000
    assert finite > 20
    if kind != "alike":
        assert near > 10  # the bound is not far from what happens

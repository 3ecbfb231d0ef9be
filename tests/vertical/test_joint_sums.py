"""Additions that columns share: the same ciphertexts as from adding up every bin by itself, and as few multiplications as predicted."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boosting_federation import Table, trained
from fedatlas.privacy.paillier import batches, spread, sums
from fedatlas.privacy.paillier import cryptosystem as paillier
from fedatlas.vertical.boosting import sealed
from fedatlas.vertical.boosting.joint import ENOUGH, joined, layers, multiplications
from fedatlas.vertical.boosting.settings import secureboost

KEYS = paillier.holder(paillier.generate(256, testing=True))
ROWS = paillier.encrypt(KEYS.public, list(range(100, 160)), keys=KEYS)


def spots_of(bins: np.ndarray) -> tuple[np.ndarray, int]:
    """The places of these bins (rows, columns) in one histogram, and its width."""
    widths = [0, *(bins.max(axis=0, initial=0) + 1).tolist()]
    return bins + np.cumsum(widths)[:-1], sum(widths)


def one_by_one(members: np.ndarray, spots: np.ndarray, width: int) -> list[list[int]]:
    """The rows of each place."""
    return [members[(spots == place).any(axis=1)].tolist() for place in range(width)]


def apart(spots: np.ndarray) -> int:
    """Multiplications if every bin is added up by itself."""
    return sum(spots.shape[0] - len(np.unique(column)) for column in spots.T)


TABLES = st.tuples(st.integers(0, 40), st.lists(st.integers(1, 5), max_size=5), st.integers(0, 2**32 - 1))


@settings(max_examples=60, deadline=None)
@given(TABLES)
def test_sums_are_the_same_ciphertexts_to_the_bit(table: tuple[int, list[int], int]) -> None:
    n, widths, seed = table
    stream = np.random.default_rng(seed)
    bins = np.stack([stream.integers(0, k, n) for k in widths], axis=1) if widths else np.zeros((n, 0), np.int64)
    bins[:, 1:2] = bins[:, :1]  # two columns that are alike
    members = np.sort(stream.permutation(len(ROWS))[:n])
    spots, width = spots_of(bins)
    cipher = sealed.Cipher(KEYS.public, (ROWS,), sealed.Fields(((8,),), (1,), 0))
    found = cipher.histogram(members, spots, width + 1)[0]  # the last place has no rows
    expected = paillier.subsets(KEYS.public, ROWS, one_by_one(members, spots, width + 1))
    assert found.ciphertexts.tolist() == expected.ciphertexts.tolist()
    assert multiplications(layers(members, spots)) <= apart(spots)


def test_a_joined_pair_saves_a_multiplication_per_row_beyond_its_cells() -> None:
    """n - c(A) + n - c(B) become n + c(AB) - c(A) - c(B), counted as they are done."""
    stream = np.random.default_rng(0)
    bins = stream.integers(0, (4, 6), (4000, 2))
    spots, _ = spots_of(bins)
    found, cells = layers(np.arange(4000), spots), 24
    assert multiplications(found) == 4000 + cells - 4 - 6
    assert apart(spots) - multiplications(found) == 4000 - cells


def test_category_columns_cost_as_one_column() -> None:
    """0/1 columns of one text column: a row is added once for all of them, where it was added once for each."""
    n, k = 5000, 12
    kind = np.random.default_rng(0).integers(0, k, n)
    spots, _ = spots_of((kind[:, None] == np.arange(k)).astype(np.int64))
    single, _ = spots_of(kind[:, None])
    counted, alone = multiplications(layers(np.arange(n), spots)), multiplications(layers(np.arange(n), single))
    assert apart(spots) == k * (n - 2)
    assert alone == n - k
    assert alone < counted <= alone + k * k
    assert apart(spots) / counted > 0.95 * k


def test_zeros_of_rare_columns_are_not_added_again() -> None:
    """0/1 columns with few ones: little more than the rows and the ones, instead of all rows of each column."""
    n, k = 5000, 20
    bins = (np.random.default_rng(0).random((n, k)) < 0.01).astype(np.int64)
    spots, _ = spots_of(bins)
    assert apart(spots) > 0.99 * n * k
    assert multiplications(layers(np.arange(n), spots)) < n + 3 * bins.sum()


def test_columns_that_have_nothing_in_common_stay_apart() -> None:
    bins = np.random.default_rng(0).integers(0, 90, (200, 2))
    spots, _ = spots_of(bins)
    assert len(np.unique(bins[:, 0] * 90 + bins[:, 1])) > ENOUGH * 200
    assert [group.cells for group in joined(spots)] == sorted(len(np.unique(column)) for column in bins.T)
    assert multiplications(layers(np.arange(200), spots)) == apart(spots)


# ---------------------------------------------------------------------- a run


def federation(key_bits: int) -> Any:
    """Two parties; the passive one holds a column of numbers, one of few values, and the 0/1 columns of a text column."""
    stream = np.random.default_rng(0)
    n = 120
    kind = stream.integers(0, 4, n)
    x = np.column_stack(
        [stream.normal(size=n), stream.normal(size=n), stream.integers(0, 3, n), kind[:, None] == np.arange(4)]
    )
    x[stream.random(n) < 0.2, 1] = np.nan
    y = (x[:, 0] + x[:, 1] > 0) ^ (kind == 2)
    table = Table(x.astype(np.float64), np.asarray(y, np.float64), "classes")
    return trained(table, [[0], list(range(1, x.shape[1]))], secureboost(trees=2, bins=8)._replace(key_bits=key_bits))


@pytest.mark.timing
def test_trees_are_bit_identical_and_take_fewer_multiplications(monkeypatch: pytest.MonkeyPatch) -> None:
    done = {"shared": 0, "apart": 0}

    def counting(members: np.ndarray, spots: np.ndarray) -> Any:
        found = layers(members, spots)
        done["shared"] += multiplications(found)
        done["apart"] += apart(spots)
        return found

    plain = federation(0)
    monkeypatch.setattr(sealed, "layers", counting)
    under = federation(512)
    assert under.trees == plain.trees
    assert under.outputs.tobytes() == plain.outputs.tobytes()
    assert done["shared"] < 0.6 * done["apart"]


@pytest.mark.timing
def test_ciphertexts_of_rows_are_read_once_per_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the depth: every row's ciphertext becomes a number when it arrives, and no more."""
    read: list[int] = []
    parsed = batches.number

    def counting(data: bytes, i: int, width: int) -> Any:
        if len(data) == 120 * width:
            read.append(i)
        return parsed(data, i, width)

    for module in (batches, sums):
        monkeypatch.setattr(module, "number", counting)
    under = federation(512)
    assert sorted(read) == sorted([*range(120)] * len(under.trees))


def test_stretches_of_work_are_alike() -> None:
    """Items of unlike size: every process gets about as much, in order, and nothing twice."""
    sizes = [100, *[1] * 300, 200, *[0] * 50]

    def work(first: int, end: int) -> bytes:
        return b"".join([bytes([first % 251]) for _ in range(first, end)])

    found = spread.spread(work, len(sizes), 3, sizes)
    starts = [0, *(i for i, (a, b) in enumerate(pairwise(found), 1) if a != b), len(found)]
    assert len(found) == len(sizes)
    assert [sum(sizes[a:b]) for a, b in pairwise(starts)] == [200, 200, 200]

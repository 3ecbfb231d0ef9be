"""h: the expectation of an IID split against simulated splits and a sum over all outcomes; its two ends; files of counts."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from fedatlas.errors import DataError
from fedatlas.study.heterogeneity import from_distance, heterogeneity, iid_distance, mean_deviation, read_counts


@pytest.mark.parametrize(
    ("total", "marked", "drawn"), [(10, 4, 3), (30, 1, 29), (50, 25, 10), (7, 7, 3), (9, 0, 4), (5, 2, 5)]
)
def test_the_mean_deviation_is_the_sum_over_all_outcomes(total: int, marked: int, drawn: int):
    ways = math.comb(total, drawn)
    summed = sum(
        abs(x - drawn * marked / total) * math.comb(marked, x) * math.comb(total - marked, drawn - x) / ways
        for x in range(min(marked, drawn) + 1)
        if drawn - x <= total - marked
    )
    assert mean_deviation(total, marked, drawn) == pytest.approx(summed, abs=1e-12)


def test_an_iid_split_has_on_average_the_distance_that_is_said():
    classes, sizes = np.array([60, 30, 9, 1]), np.array([5, 5, 20, 30, 40])
    labels, stream = np.repeat(np.arange(4), classes), np.random.default_rng(0)
    seen = []
    for _ in range(4000):
        parts = np.split(stream.permutation(labels), np.cumsum(sizes)[:-1])
        seen.append(np.mean([np.abs(np.bincount(p, minlength=4) / len(p) - classes / 100).sum() / 2 for p in parts]))
    error = np.std(seen) / math.sqrt(len(seen))
    assert iid_distance(sizes, classes) == pytest.approx(np.mean(seen), abs=4 * error)


def test_it_is_0_for_iid_and_1_for_one_class_each():
    assert heterogeneity(np.diag([50, 50, 50])) == pytest.approx(1.0, abs=1e-12)
    assert heterogeneity(np.full((4, 3), 25)) == 0.0
    assert heterogeneity(np.eye(6, dtype=int)) == 0.0, "one row each: an IID split is no different"
    stream = np.random.default_rng(1)
    labels = np.repeat(np.arange(10), 144)
    for nodes in (2, 10, 48):
        split = [np.bincount(p, minlength=10) for p in np.split(stream.permutation(labels), nodes)]
        assert heterogeneity(split) < 0.03, "plain distance would be .03, .1 or .23"


def test_of_a_known_distance_it_is_linear_between_its_ends_and_clipped():
    sizes, classes = [100] * 10, [500, 500]
    low, high = iid_distance(sizes, classes), 0.5
    assert from_distance((low + high) / 2, sizes, classes) == pytest.approx(0.5)
    assert from_distance(low / 2, sizes, classes) == 0
    assert from_distance(0.9, sizes, classes) == 1


def test_empty_clients_count_for_nothing_and_order_changes_nothing():
    counts = np.array([[30, 2, 5], [3, 20, 1], [4, 4, 40]])
    assert heterogeneity(np.vstack([counts, [[0, 0, 0]]])) == heterogeneity(counts)
    assert heterogeneity(counts[::-1, [2, 0, 1]]) == pytest.approx(heterogeneity(counts), abs=1e-14)


def test_a_file_of_counts(tmp_path: Path):
    path = tmp_path / "counts.csv"
    path.write_text("a,b\n10,0\n0,10\n")
    assert heterogeneity(read_counts(path)) == 1.0
    for wrong in ("a,b\n1\n2,3\n", "a,b\n", "a,b\nx,1\n", ""):
        path.write_text(wrong)
        with pytest.raises(DataError, match="a heading, then one line per client"):
            read_counts(path)
    with pytest.raises(DataError, match="whole numbers"):
        heterogeneity([[1.5, 2.0]])

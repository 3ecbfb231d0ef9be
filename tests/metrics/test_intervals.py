"""How sure figures are: the bootstrap beside theory and beside plain formulas, spread over seeds, means of last rounds."""

import math

import numpy as np
import pytest

from fedatlas.metrics.intervals import bootstrap, differences, drawings, mean_last, over_seeds
from fedatlas.metrics.quality import (
    auc,
    calibration,
    class_sums,
    log_loss,
    macro_f1,
    number_figures,
    number_sums,
    weighted_f1,
)
from fedatlas.metrics.resampling import of_classes, of_mean, of_numbers, of_two_classes, together
from fedatlas.rng import numpy_stream


def share(right):
    return lambda w: {"share": w @ right / w.sum(1)}


def test_bootstrap_of_a_share_has_the_width_theory_gives():
    right = np.arange(400) % 4 != 0  # accuracy 3/4: sd sqrt(3/16 / 400) = 0.02165
    found = bootstrap(share(right), 400, 1, draws=2000)["share"]
    assert found.estimate == 0.75
    assert found.low == pytest.approx(0.75 - 1.96 * 0.02165, abs=0.006)
    assert found.high == pytest.approx(0.75 + 1.96 * 0.02165, abs=0.006)
    narrow = bootstrap(share(right), 400, 1, draws=2000, level=0.5)["share"]
    assert found.low < narrow.low < narrow.high < found.high


def test_bootstrap_depends_on_seed_and_key_alone():
    stream = np.random.default_rng(3)
    y, p = stream.integers(0, 6, 60), stream.integers(0, 6, 60)
    f1 = of_classes(p, y, 6)
    a = bootstrap(f1, 60, 1, "client", 4, draws=60)
    assert a == bootstrap(f1, 60, 1, "client", 4, draws=60)
    for other in (bootstrap(f1, 60, 1, "client", 5, draws=60), bootstrap(f1, 60, 2, "client", 4, draws=60)):
        assert all(a[name] != other[name] for name in ("macro_f1", "weighted_f1"))
    assert all(one.low <= one.estimate <= one.high for one in a.values())


def test_bootstrap_weights_are_repeated_rows():
    # a draw that takes rows 0, 0, 2 of three is the figure of those rows: sums of weights are always n
    seen = []
    bootstrap(lambda w: seen.extend(w) or {"a": np.zeros(len(w))}, 3, 1, draws=120)
    assert len(seen) == 1 + 120  # the rows as they are, then the draws
    assert all(w.sum() == 3 and (w == np.round(w)).all() for w in seen)
    assert len({tuple(w) for w in seen}) > 3


def test_draws_together_are_those_of_one_after_another():
    for rows in (2, 3, 37, 30_000):  # 120 draws in pieces of 50, and of 33
        stream = numpy_stream(1, "bootstrap", "client", 4)
        each = [np.bincount(stream.integers(rows, size=rows), minlength=rows) for _ in range(120)]
        assert np.array_equal(np.concatenate(list(drawings(rows, 1, "client", 4, draws=120))), each)


def test_bootstrap_where_the_figure_is_not_defined():
    y, p = np.array([0, 1]), np.array([0.2, 0.7])
    found = bootstrap(of_two_classes(p, p, y), 2, 1, draws=40)["auc"]  # half of the draws hold one class only
    assert (found.estimate, found.low, found.high) == (1.0, 1.0, 1.0)
    nothing = bootstrap(lambda w: {"a": np.full(len(w), np.nan)}, 5, 1, draws=3)["a"]
    assert nothing[:3] == (None, None, None)
    assert bootstrap(of_mean("a", np.ones(0), np.ones(0)), 0, 1)["a"][:3] == (None, None, None)


@pytest.mark.parametrize("own", [False, True])
def test_figures_of_drawn_rows_are_those_of_the_rows_repeated(own):
    """Every figure under any drawing, rows with weights of their own or without, beside the plain formulas row by row."""
    stream = np.random.default_rng(5)
    n, draws = 40, stream.integers(0, 3, (7, 40)).astype(float)
    draws[0, 5:] = 0  # a few rows, of which some class is missing
    weight = stream.uniform(0.2, 3, n) if own else None
    y, p, two = stream.integers(0, 5, n), stream.integers(0, 6, n), stream.integers(0, 2, n)
    score = np.round(stream.normal(size=n), 1)  # with ties
    chance = 1 / (1 + np.exp(-score))
    truth, said = 1000 + stream.normal(size=n), 1000 + stream.normal(size=n)
    losses = stream.uniform(size=n)
    found = together(
        of_classes(p, y, 6, weight), of_two_classes(score, chance, two, weight), of_numbers(said, truth, weight)
    )(draws)
    plain = np.ones(n) if weight is None else weight
    mean = of_mean("loss", losses, plain)(draws)["loss"]
    root = of_mean("rmse", (truth - said) ** 2, plain, root=True)(draws)["rmse"]
    for k, counts in enumerate(draws):
        w = counts * plain
        numbers = number_figures(number_sums(said, truth, losses, w))
        expected = {
            "macro_f1": macro_f1(class_sums(p, y, losses, 6, w)),
            "weighted_f1": weighted_f1(class_sums(p, y, losses, 6, w)),
            "auc": auc(score, two, w),
            "log_loss": log_loss(chance, two, w),
            "calibration_error": calibration(chance, two, w).error,
            "mae": numbers["mae"],
            "r2": numbers["r2"],
        }
        assert {name: x[k] for name, x in found.items()} == pytest.approx(expected, rel=1e-9, nan_ok=True)
        assert (mean[k], root[k]) == pytest.approx((numbers["loss"], numbers["rmse"]), rel=1e-9)


def test_f1_of_drawn_texts_counts_their_tokens():
    stream = np.random.default_rng(6)
    y, p = stream.integers(0, 4, (9, 6)), stream.integers(0, 4, (9, 6))
    draws = stream.integers(0, 3, (3, 9)).astype(float)
    found = of_classes(p, y, 4, ignore=0)(draws)["macro_f1"]
    for k, counts in enumerate(draws):
        sums = class_sums(p, y, np.zeros((9, 6)), 4, counts, ignore=0)
        assert found[k] == pytest.approx(macro_f1(sums))


def test_spread_over_seeds_by_hand():
    assert over_seeds([1.0, 2.0, 4.0]) == (pytest.approx(7 / 3), pytest.approx(math.sqrt(7 / 3)), 3)
    assert over_seeds([2.0, None]) == (2.0, None, 1)
    assert over_seeds([None]) == (None, None, 0)


@pytest.mark.parametrize(("rounds", "window"), [(0, 1), (1, 1), (20, 1), (149, 1), (150, 2), (1000, 10)])
def test_mean_last_takes_a_hundredth_of_the_rounds(rounds, window):
    values = [float(r) for r in range(rounds + 1)]
    assert mean_last(values) == pytest.approx(np.mean(values[-window:]))


def test_mean_last_skips_rounds_that_were_not_evaluated():
    assert mean_last([0.0] * 298 + [None, 0.4, 0.6]) == pytest.approx(0.5)
    assert mean_last([0.1, None]) is None


def test_a_difference_is_judged_on_rows_drawn_alike_for_both() -> None:
    """Equal to the bootstrap of the difference itself; a shift of every row has no spread at all, however much the rows have."""
    stream = np.random.default_rng(3)
    one, other, weight = stream.random((2, 60)), stream.random((1, 60)), stream.uniform(0.5, 2.0, 60)
    low, high = differences(one, other, weight, 7, "gain")
    for column in (0, 1):
        expected = bootstrap(of_mean("gain", one[column] - other[0], weight), 60, 7, "gain")["gain"]
        assert (low[column], high[column]) == pytest.approx((expected.low, expected.high), abs=1e-12)
    shifted = differences(one + 0.25, one, weight, 7, "gain")
    assert shifted == pytest.approx(np.full((2, 2), 0.25), abs=1e-12)
    roots = differences(4 * one, one, weight, 7, "gain", root=True)
    plain = differences(one, np.zeros((1, 60)), weight, 7, "gain", root=True)
    assert roots == pytest.approx(plain, abs=1e-12)  # 2 sqrt(m) - sqrt(m)

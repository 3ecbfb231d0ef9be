"""FID and KID as functions of features: closed forms, a second implementation, and refusals."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg

from fedatlas.errors import DataError
from fedatlas.metrics import frechet
from fedatlas.metrics.frechet import frechet_distance, kernel_distance


def drawn(rows: int, features: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, features)) @ rng.normal(size=(features, features)) + rng.normal(size=features)


def whitened(rows: int, features: int, seed: int = 0) -> np.ndarray:
    """Rows with mean 0 and sample covariance 1, both exact."""
    x = drawn(rows, features, seed)
    q, _ = np.linalg.qr(x - x.mean(0))
    return q * np.sqrt(rows - 1)


@pytest.mark.parametrize("shape", [(50, 6), (6, 50)], ids=["more rows", "more features"])
def test_equal_sets_have_no_distance(shape: tuple[int, int]):
    x = drawn(*shape)
    assert frechet_distance(x, x) < 1e-9
    assert frechet_distance(x, x[::-1]) < 1e-9


def test_worked_by_hand():
    """Means 1 and 4, variances 2 and 8: (1 - 4)^2 + 2 + 8 - 2 sqrt(16) = 11."""
    assert frechet_distance([[0.0], [2.0]], [[2.0], [6.0]]) == pytest.approx(11.0, abs=1e-12)


def test_diagonal_normal_laws_have_their_closed_form():
    """``|mu_a - mu_b|^2 + sum (s_a - s_b)^2``."""
    s, t, shift = np.array([1.0, 2.0, 0.5]), np.array([3.0, 1.0, 0.5]), np.array([1.0, -2.0, 0.25])
    a, b = whitened(40, 3, 1) * s, whitened(40, 3, 2) * t + shift
    assert frechet_distance(a, b) == pytest.approx((shift**2).sum() + ((s - t) ** 2).sum(), abs=1e-10)


def test_shift_and_scale():
    """A shift adds its squared length; a common factor s makes it s^2 times as large; sides may be exchanged."""
    a, b = drawn(30, 5, 1), drawn(30, 5, 2)
    assert frechet_distance(a, a + 2.0) == pytest.approx(5 * 4.0, abs=1e-9)
    assert frechet_distance(3 * a, 3 * b) == pytest.approx(9 * frechet_distance(a, b), rel=1e-9)
    assert frechet_distance(a, b) == pytest.approx(frechet_distance(b, a), rel=1e-9)


def test_equals_the_matrix_square_root():
    """``Tr (S_a S_b)^(1/2)`` by scipy. Its element-wise root would give another number."""
    a, b = drawn(200, 8, 1), drawn(200, 8, 2)
    s, t = np.cov(a.T), np.cov(b.T)
    shift = a.mean(0) - b.mean(0)
    by_root = shift @ shift + np.trace(s + t - 2 * scipy.linalg.sqrtm(s @ t).real)
    assert frechet_distance(a, b) == pytest.approx(by_root, rel=1e-8)


def test_fewer_rows_than_features_cost_no_digits():
    """Two sets in orthogonal spaces share nothing: the distance is the sum of both variances."""
    x = drawn(10, 10, 3)
    a, b = np.hstack([x, np.zeros_like(x)]), np.hstack([np.zeros_like(x), x])
    total = x.var(0, ddof=1).sum()
    assert frechet_distance(a, b) == pytest.approx(2 * (x.mean(0) ** 2).sum() + 2 * total, rel=1e-12)


def test_kid_worked_by_hand():
    """D = 1, a = (0, 1), b = (1, 2), k = (xy + 1)^3: k(0, 1) = 1; k(1, 2) = 27; crossed 1, 1, 8, 27: 1 + 27 - 2 * 37 / 4."""
    assert kernel_distance([[0.0], [1.0]], [[1.0], [2.0]]) == pytest.approx(9.5, abs=1e-12)


def test_kid_over_blocks_equals_loops(monkeypatch: pytest.MonkeyPatch):
    a, b = drawn(23, 4, 1), drawn(23, 4, 2)

    def k(x: np.ndarray, y: np.ndarray) -> float:
        return (x @ y / 4 + 1) ** 3

    n = range(23)
    inside = sum(k(x[i], x[j]) for x in (a, b) for i in n for j in n if i != j) / (23 * 22)
    slow = inside - 2 * sum(k(a[i], b[j]) for i in n for j in n) / 23**2
    monkeypatch.setattr(frechet, "BLOCK", 10)
    assert kernel_distance(a, b) == pytest.approx(slow, rel=1e-9)


def test_kid_is_unbiased_and_fid_is_not():
    """Over 200 pairs of sets of one law the mean of KID is 0 within four standard errors, that of FID far above."""
    rng = np.random.default_rng(5)
    pairs = [(rng.normal(size=(10, 3)), rng.normal(size=(10, 3))) for _ in range(200)]
    kid, fid = (np.array([of(*pair) for pair in pairs]) for of in (kernel_distance, frechet_distance))
    assert abs(kid.mean()) < 4 * kid.std(ddof=1) / np.sqrt(200)
    assert fid.mean() > 0.3


def test_equal_those_of_torch_fidelity():
    """Stored figures of torch-fidelity 0.4.0; its KID over one block of all rows."""
    rng = np.random.default_rng(7)
    a, b = rng.gamma(2.0, 1.0, (200, 12)), rng.gamma(2.5, 1.0, (200, 12))
    assert frechet_distance(a, b) == pytest.approx(5.767850416575023, rel=1e-9)
    assert kernel_distance(a, b) == pytest.approx(116.4719974585131, rel=1e-9)


@pytest.mark.parametrize("distance", [frechet_distance, kernel_distance])
@pytest.mark.parametrize(
    ("a", "b", "why"),
    [
        (np.ones((3, 2)), np.ones((4, 2)), "3 and 4 rows cannot be compared"),
        (np.ones((3, 2)), np.ones((3, 4)), "shapes"),
        (np.ones(3), np.ones(3), "shapes"),
        (np.ones((1, 2)), np.ones((1, 2)), "at least two rows"),
        (np.full((3, 2), np.nan), np.ones((3, 2)), "NaN"),
    ],
)
def test_what_cannot_be_compared_is_refused(distance, a: np.ndarray, b: np.ndarray, why: str):
    with pytest.raises(DataError, match=why):
        distance(a, b)

"""Numbers in the ring: section 15's secure-sum modulus, exact sums and their bounds, what does not fit."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedatlas.errors import ConfigError, PrivacyError
from fedatlas.privacy.secagg import fixed
from secagg_sessions import hold


def added(rows: list) -> np.ndarray:
    return np.sum(rows, axis=0, dtype=rows[0].dtype)


def pair(x: torch.Tensor, rows: int, form: fixed.Fixed, client: int) -> np.ndarray:
    """P14's pair (n q, n) as words, n last."""
    words = fixed.weighted(fixed.values(x, form, client, "model"), rows, form, client)
    return np.append(words, words.dtype.type(rows))


@pytest.mark.timing
def test_secure_sum_modulus_vector() -> None:
    """beta = 4, n = (3, 5), q = (15, 15): sums 120 and 8 want R >= 128; m 2^beta = 32 would give 24."""
    n, q = np.array([3, 5]), np.array([15, 15])
    assert (int((n * q).sum()), int(n.sum())) == (120, 8)
    assert fixed.needed(1, 4, 8) == 128
    assert fixed.needed(2, 4) == 32
    assert 120 % 32 == 24
    words = {k: {"x": np.array([n[k] * q[k], n[k]], np.uint32)} for k in range(2)} | {2: {"x": np.zeros(2, np.uint32)}}
    assert hold(words).sums["x"].tolist() == [120, 8]


def test_the_smaller_ring_that_holds() -> None:
    assert [fixed.fixed(m).ring for m in (3, 256, 257)] == [32, 32, 64]
    assert [fixed.fixed(8, 16, cap=cap).ring for cap in (2**13, 2**13 + 1, 2**20)] == [32, 64, 64]
    assert fixed.fixed(100, cap=2**20) == (24, 16.0, 64, 2**20)
    assert (fixed.largest_cap(8, 16), fixed.largest_cap(100, 24), fixed.largest_cap(257, 24)) == (2**13, 2, 0)
    with pytest.raises(PrivacyError, match="need 69 bits, the ring has 64: n_cap = 41943 holds"):
        fixed.fixed(100, 42, cap=2**20)
    assert fixed.fixed(100, 42, cap=41943).ring == 64
    with pytest.raises(PrivacyError, match="fewer bits"):
        fixed.fixed(2**14, 52)
    for wrong in ((8, 1, 16.0), (8, 24, 0.0), (8, 24, float("inf")), (8, 53, 16.0)):
        with pytest.raises(ConfigError, match="secagg takes"):
            fixed.fixed(*wrong)


@given(st.integers(3, 12), st.sampled_from([8, 16, 24, 40]), st.sampled_from([0.5, 3.0, 16.0]), st.integers(0, 99))
def test_sums_of_values_are_exact_in_steps_and_within_their_bound(m: int, bits: int, range: float, seed: int) -> None:
    form = fixed.fixed(m, bits, range)
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.uniform(-range, range, (m, 30)) * (1 - 2.0 ** (1 - bits))).float()
    x = x.clamp(-range, range * (1 - 2.0 ** (1 - bits)) * (1 - 2.0**-20))
    c = rng.dirichlet([1.0] * m).tolist()
    words = [fixed.values(x[k], form, k, "model", c[k]) for k in np.arange(m).tolist()]
    q = [np.rint(x[k].double().numpy() * (c[k] / form.step)).astype(np.int64) for k in np.arange(m).tolist()]
    got = fixed.total(added(words), form)
    assert np.array_equal(got.numpy(), np.sum(q, axis=0) * form.step)
    exact = sum(c[k] * x[k].double() for k in np.arange(m).tolist())
    assert float((got - exact).abs().max()) <= form.step / 2 * m * (1 + 1e-9)


@pytest.mark.parametrize(("m", "bits"), [(256, 24), (4, 30), (8, 16)])
def test_the_largest_sums_do_not_wrap(m: int, bits: int) -> None:
    form = fixed.fixed(m, bits)
    edge = torch.tensor([form.range - form.step, -form.range], dtype=torch.float64)
    total = fixed.total(added([fixed.values(edge, form, k, "model") for k in range(m)]), form)
    assert (form.ring, total.tolist()) == (32, (edge * m).tolist())
    hidden = fixed.fixed(m, bits, cap=2**20)
    words = [pair(edge, 2**20, hidden, k) for k in range(m)]
    mean, rows = fixed.mean(added(words), hidden)
    assert (mean.tolist(), rows) == (edge.tolist(), m * 2**20)


def test_weights_by_rows_travel_as_a_pair() -> None:
    form = fixed.fixed(3, cap=2**20)
    rng = np.random.default_rng(0)
    n, x = [5000, 17, 0], torch.from_numpy(rng.normal(size=(3, 20)))
    got, rows = fixed.mean(added([pair(x[k], n[k], form, k) for k in range(3)]), form)
    assert rows == 5017
    wanted = sum(n[k] * x[k] for k in range(3)) / 5017
    assert float((got - wanted).abs().max()) <= form.step / 2 * (1 + 1e-9)
    for wrong in (2**20 + 1, -1):
        with pytest.raises(PrivacyError, match="client 2 does not have 0 to n_cap = 1048576 rows"):
            pair(x[2], wrong, form, 2)
    with pytest.raises(PrivacyError, match="no mean"):
        fixed.mean(pair(x[2], 0, form, 2), form)


def test_a_value_outside_names_client_part_and_a_range_that_would_do() -> None:
    form = fixed.fixed(8)
    for outside, wanted in [(17.0, 32), (16.0, 32), (-16.1, 32), (-300.0, 512), (1e9, 2**30)]:
        x = torch.tensor([0.1, outside])
        with pytest.raises(
            PrivacyError, match=rf"'model' of client 5 holds a value outside \[-16, 16\): range = {wanted} would do"
        ):
            fixed.values(x, form, 5, "model")
        wider = fixed.fixed(8, range=float(wanted))
        fixed.values(x, wider, 5, "model")
    fixed.values(torch.tensor([17.0]), form, 5, "model", 0.5)  # what counts is the product
    for broken in (float("nan"), float("inf"), -float("inf")):
        with pytest.raises(PrivacyError, match="'model' of client 5 holds something that is no finite number"):
            fixed.values(torch.tensor([0.0, broken]), form, 5, "model")
    assert fixed.values(torch.tensor([]), form, 5, "model").shape == (0,)


real = st.floats(-(2.0**119), 2.0**119, allow_subnormal=False)


@given(st.lists(st.lists(real, min_size=3, max_size=3), min_size=2, max_size=8))
def test_reals_of_any_magnitude_are_summed_within_their_bound(rows: list[list[float]]) -> None:
    words = [fixed.reals(torch.tensor(row, dtype=torch.float64), k, "moments") for k, row in enumerate(rows)]
    got = fixed.reals_total(added(words)).tolist()
    for value, column in zip(got, zip(*rows, strict=True), strict=True):
        exact = sum(map(Fraction, column))
        error = abs(Fraction(value) - exact)
        assert (
            error <= Fraction(len(rows), 2**105) + abs(exact) / 2**52
        )  # the second: the float that it is handed out as
        if abs(exact) >= Fraction(len(rows), 2**81):
            assert error <= abs(exact) / 2**24


def test_reals_that_are_none_or_too_large_are_refused() -> None:
    for wrong in (float("nan"), float("inf"), 2.0**120):
        with pytest.raises(PrivacyError, match=r"'moments' of client 4 holds .* no number below 2\^120"):
            fixed.reals(torch.tensor([1.0, wrong], dtype=torch.float64), 4, "moments")

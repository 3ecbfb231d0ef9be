"""Shares as blocks: Shamir's over a prime field (section 15's vector), additive ones over words, and products by Beaver's triples."""

from __future__ import annotations

import itertools
import os
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fedatlas.errors import PrivacyError, ProtocolError
from fedatlas.privacy.sharing import additive, beaver, shamir

# Shamir


def test_shamir_vector() -> None:
    shares = [shamir.share([42, 7, 11], x, 257) for x in range(1, 6)]
    assert shares == [60, 100, 162, 246, 95]
    for xs in itertools.combinations(range(1, 6), 3):
        assert shamir.rebuilt([shares[x - 1] for x in xs], shamir.lagrange(xs, 257), 257) == 42


def test_fewer_shares_than_the_threshold_fit_every_secret_equally_well() -> None:
    """Exhaustive over the field of 17: each pair of values at two places comes from exactly one polynomial for each secret."""
    seen = {secret: set() for secret in range(17)}
    for secret, a, b in itertools.product(range(17), repeat=3):
        seen[secret].add((shamir.share([secret, a, b], 2, 17), shamir.share([secret, a, b], 5, 17)))
    assert all(len(pairs) == 17**2 for pairs in seen.values())


def test_shamir_over_a_whole_key() -> None:
    secrets = [int.from_bytes(os.urandom(32), "little") for _ in range(2)]
    lines = [shamir.polynomial(s, 4, os.urandom) for s in secrets]
    xs = (9, 2, 100, 5)
    weights = shamir.lagrange(xs)
    for secret, line in zip(secrets, lines, strict=True):
        assert shamir.rebuilt([shamir.share(line, x) for x in xs], weights) == secret
    added = [sum(shamir.share(line, x) for line in lines) for x in xs]  # shares of a sum are sums of shares
    assert shamir.rebuilt(added, weights) == sum(secrets) % shamir.PRIME
    assert shamir.rebuilt([shamir.share(lines[0], x) for x in xs[:3]], shamir.lagrange(xs[:3])) != secrets[0]
    assert len(set(lines[0])) == 4
    assert max(lines[0]) < shamir.PRIME < 2 ** (8 * shamir.WIDTH)


@pytest.mark.parametrize("xs", [(1, 2, 1), (0, 1)])
def test_shamir_refuses_places_that_say_nothing(xs: tuple[int, ...]) -> None:
    with pytest.raises(ProtocolError, match="distinct places"):
        shamir.lagrange(xs)


@pytest.mark.parametrize(("threshold", "holders"), [(1, 4), (2, 5), (3, 6), (5, 5)])
def test_every_subset_of_the_threshold_rebuilds_the_secret(threshold: int, holders: int) -> None:
    line = shamir.polynomial(11, threshold, os.urandom, 17)
    shares = {x: shamir.share(line, x, 17) for x in range(1, holders + 1)}
    for xs in itertools.combinations(shares, threshold):
        assert shamir.rebuilt([shares[x] for x in xs], shamir.lagrange(xs, 17), 17) == 11


# Additive shares


def uniform(*tables: Any) -> bool:
    """Whether each table's bytes are equally frequent, by a chi-square test at one in a million."""
    counts = [np.bincount(np.ascontiguousarray(table).view(np.uint8).ravel(), minlength=256) for table in tables]
    return all(stats.chisquare(row).pvalue > 1e-6 for row in counts)


def reals(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).uniform(-1, 1, shape)


@pytest.mark.parametrize("kind", [np.uint32, np.uint64])
@pytest.mark.parametrize("value", [0, 1, np.iinfo(np.uint32).max])
def test_either_share_is_uniform_whatever_is_shared(kind: Any, value: int) -> None:
    words = np.full(60_000, value, kind)
    first, second = additive.split(words)
    assert first.dtype == second.dtype == kind
    assert np.array_equal(additive.joined(first, second), words)
    assert uniform(first, second)
    again, _ = additive.split(words)
    assert int((first == again).sum()) < 5
    assert not uniform(words)  # the test can fail


def test_one_share_fits_every_word() -> None:
    """Exhaustive in the ring of 2^8: with any first share each word has a second share of its own."""
    words = np.arange(256, dtype=np.uint8)
    for byte in range(256):
        first, second = additive.split(words, lambda count, byte=byte: bytes([byte]) * count)
        assert {*first.tolist()} == {byte}
        assert {*second.tolist()} == {*range(256)}


def test_reals_come_back_within_half_a_step() -> None:
    x = reals(1, 1000) * 200
    found = beaver.revealed(beaver.shared(x, 256.0))
    assert float(np.abs(found - x).max()) <= 2.0**-17
    assert np.array_equal(beaver.revealed(beaver.shared(np.array([1.0, -1.0, 0.5]))), [1.0, -1.0, 0.5])


def test_sums_and_public_multiples() -> None:
    x, y = reals(2, 50, 20), reals(3, 50, 20)
    total = beaver.plus(beaver.shared(x), beaver.shared(y))
    assert float(np.abs(beaver.revealed(total) - (x + y)).max()) <= 2.0**-16
    assert total.bound == 2.0
    for factor in (3.0, -0.37, 100.25, 0.0):
        found = beaver.revealed(beaver.scaled(beaver.shared(x), factor))
        assert float(np.abs(found - factor * x).max()) <= (1 + abs(factor)) * 2.0**-17 + 2.0**-16


def test_truncation_of_each_share_is_that_of_the_word_within_one_step() -> None:
    rng = np.random.default_rng(4)
    words = np.concatenate([rng.integers(-(2**40), 2**40, 20_000), [0, 1, -1, 2**40, -(2**40)]])
    shares = additive.split(words.view(np.uint64))
    found = additive.joined(*(additive.truncated(share, i) for i, share in enumerate(shares))).view(np.int64)
    assert int(np.abs(found - (words >> 16)).max()) <= 1


def test_truncation_fails_as_often_as_is_said() -> None:
    """At l = 62 bits two in eight words wrap elsewhere than the product; at the bits allowed it would take millions to see one."""
    words = np.full(40_000, 2**62, np.uint64)
    shares = additive.split(words)
    found = additive.joined(*(additive.truncated(share, i) for i, share in enumerate(shares)))
    wrong = float((np.abs((found - (words >> np.uint64(16))).view(np.int64)) > 1).mean())
    assert wrong == pytest.approx(2.0 ** (62 - 64), rel=0.05)
    assert 2.0 ** (additive.PRODUCT + 1 - 64) == 2.0**-23


# Products


@pytest.mark.parametrize("inner", [1, 8, 100, 250])
def test_a_matrix_product_is_within_its_bound(inner: int) -> None:
    x, y = reals(inner, 12, inner), reals(inner + 1, inner, 9)
    triple = beaver.dealt(x.shape, y.shape, np.matmul)
    found, _ = beaver.matmul(beaver.shared(x), beaver.shared(y), triple)
    error = float(np.abs(beaver.revealed(found) - x @ y).max())
    assert error <= (inner + 2) * 2.0**-16
    assert found.bound == inner


def test_products_value_by_value_and_of_products() -> None:
    """x y x: the result of a product is a factor like any other."""
    x, y = reals(5, 300), reals(6, 300)
    one = beaver.shared(x)
    product, _ = beaver.multiplied(one, beaver.shared(y), beaver.dealt(x.shape, y.shape))
    twice, _ = beaver.multiplied(product, one, beaver.dealt(x.shape, x.shape))
    assert float(np.abs(beaver.revealed(product) - x * y).max()) <= 3 * 2.0**-16
    assert float(np.abs(beaver.revealed(twice) - x * y * x).max()) <= 6 * 2.0**-16


def test_what_either_holder_sees_of_a_product_is_uniform() -> None:
    x = np.zeros((120, 120))
    x[0] = 1.0
    one, other = beaver.shared(x), beaver.shared(x)
    _, seen = beaver.matmul(one, other, beaver.dealt(x.shape, x.shape, np.matmul))
    assert uniform(seen.e, seen.f, *one.shares, *other.shares)


def test_a_triple_is_used_once() -> None:
    x = beaver.shared(np.ones((2, 2)))
    triple = beaver.dealt((2, 2), (2, 2), np.matmul)
    assert repr(triple) == "Triple(fresh, hidden)"
    beaver.matmul(x, x, triple)
    with pytest.raises(ProtocolError, match="serves one product"):
        beaver.matmul(x, x, triple)
    assert repr(triple) == "Triple(used, hidden)"


def test_a_triple_for_other_shapes_is_refused_and_gone() -> None:
    x = beaver.shared(np.ones((2, 3)))
    triple = beaver.dealt((3, 2), (3, 2), np.multiply)
    with pytest.raises(ProtocolError, match="dealt for others"):
        beaver.multiplied(x, x, triple)
    with pytest.raises(ProtocolError, match="serves one product"):
        triple.take()


def test_products_too_large_to_shorten_are_refused_before_a_triple_is_spent() -> None:
    x = beaver.shared(np.ones((1, 300)))
    y = beaver.shared(np.ones((300, 1)))
    triple = beaver.dealt((1, 300), (300, 1), np.matmul)
    with pytest.raises(PrivacyError, match="of which 40 can be shortened"):
        beaver.matmul(x, y, triple)
    triple.take()
    with pytest.raises(PrivacyError, match="scale the factors"):
        beaver.scaled(x, float("inf"))


@pytest.mark.parametrize(("value", "bound"), [(1.5, 1.0), (float("nan"), 1.0), (-300.0, 256.0), (1.0, 257.0)])
def test_values_beyond_their_bound_are_refused(value: float, bound: float) -> None:
    with pytest.raises(PrivacyError, match="scale"):
        beaver.shared(np.array([value]), bound)

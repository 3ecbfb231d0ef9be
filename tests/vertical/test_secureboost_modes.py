"""SecureBoost+: mixed and layered trees, and trees on rows with large gradients, are those of a clear booster by the same rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from boosting_federation import trained
from fedatlas.errors import ConfigError, PrivacyError
from fedatlas.privacy.paillier import cryptosystem as paillier
from fedatlas.rng import numpy_stream
from fedatlas.vertical.boosting import bins, gains, goss, modes, sealed
from fedatlas.vertical.boosting.scheme import SECUREBOOST
from fedatlas.vertical.boosting.settings import secureboost
from test_secureboost import BITS, HALVES, assert_same, made, oracle
from test_softmax import made as made_classes

THREE = [[0, 4], [1, 5], [2, 3]]
CASES: list[dict[str, Any]] = [
    {"mode": "mix", "trees": 5},
    {"mode": "mix", "trees": 4, "complete_secure": 2, "columns": 1.0},
    {"mode": "layered"},
    {"mode": "layered", "depth": 4, "passive_depth": 1},
    {"mode": "layered", "depth": 2, "passive_depth": 2},
    {"mode": "layered", "complete_secure": 1, "min_leaf": 9},
]


# ------------------------------------------------------------------------------------------------ who takes part


def test_who_grows_which_level() -> None:
    """Three parties, the second of which has the label."""
    crew = modes.Crew(1, 3)

    def table(keys: dict[str, Any], tree: int) -> list[tuple[int, ...]]:
        return [modes.growing(secureboost(**keys), crew, tree, level) for level in (1, 2, 3)]

    assert table({}, 1) == [(0, 1, 2)] * 3
    assert [table({"mode": "mix"}, tree) for tree in (1, 2, 3, 4)] == [[(k,)] * 3 for k in (0, 1, 2, 0)]
    assert table({"mode": "layered"}, 1) == [(0, 2), (0, 2), (1,)]
    assert table({"mode": "layered", "complete_secure": 1}, 1) == [(1,)] * 3
    assert modes.summing(secureboost(mode="mix"), crew, 2, 1) == ()
    assert modes.growing(secureboost(mode="layered"), modes.Crew(0, 1), 1, 1) == (0,), "nobody else is there"


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"passive_depth": 1}, 'is for mode = "layered"'),
        ({"mode": "mix", "passive_depth": 1}, 'is for mode = "layered"'),
        ({"mode": "layered", "passive_depth": 4}, "passive_depth = 4 is more than depth = 3"),
        ({"goss": (0.7, 0.4)}, "more than 1 together"),
        ({"goss": (0.5, 0.0)}, "no row stands for the others"),
    ],
)
def test_keys_that_do_not_go_together_are_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        secureboost(**keys)


# ------------------------------------------------------------------------------------------------ whole trees


@pytest.mark.parametrize("task", ["classes", "numbers"])
@pytest.mark.parametrize("owners", [HALVES, THREE], ids=["2", "3"])
@pytest.mark.parametrize("keys", CASES, ids=str)
def test_trees_of_each_mode_are_those_of_the_booster_by_its_rule(keys: dict[str, Any], owners: Any, task: str) -> None:
    table, how = made(seed=2, task=task, weights=True), secureboost(**{"trees": 3, "bins": 12, **keys})
    train = np.arange(0, 240, 2)
    found = trained(table, owners, how, active=1, train=train)
    assert_same(found, oracle(table, owners, how, active=1, train=train))
    joined = oracle(table, owners, how._replace(mode="default"), active=1, train=train)
    assert found.outputs.tolist() != joined.outputs, "the rule decides something"


SEVERAL: list[dict[str, Any]] = [
    {"mode": "mix"},
    {"mode": "layered", "multi_output": True},
    {"mode": "layered", "passive_depth": 1},
    {"goss": (0.2, 0.1)},
    {"mode": "mix", "goss": (0.3, 0.2), "multi_output": True},
]


@pytest.mark.parametrize("keys", SEVERAL, ids=str)
def test_rounds_of_several_classes_in_each_mode_are_those_of_the_booster(keys: dict[str, Any]) -> None:
    table, how, train = made_classes(weights=True), secureboost(trees=4, bins=6, **keys), np.arange(0, 120, 2)
    found = trained(table, THREE, how, active=2, train=train)
    assert_same(found, oracle(table, THREE, how, active=2, train=train, sampled=sampled))


@pytest.mark.timing
@pytest.mark.parametrize("keys", SEVERAL[1:4], ids=str)
def test_encrypted_rounds_of_several_classes_are_the_plain_ones(keys: dict[str, Any]) -> None:
    table, how = made_classes(48), secureboost(trees=2, bins=4, **keys)
    plain, under = (trained(table, HALVES, one) for one in (how, how._replace(key_bits=BITS)))
    assert under.trees == plain.trees
    assert under.outputs.tolist() == plain.outputs.tolist()


@pytest.mark.timing
@pytest.mark.parametrize(
    "keys", [CASES[0], CASES[2], {"goss": (0.3, 0.2)}, {"mode": "layered", "goss": (0.2, 0.1)}], ids=str
)
def test_encrypted_trees_of_each_mode_are_the_plain_ones(keys: dict[str, Any]) -> None:
    table, how = made(n=90), secureboost(**{"trees": 3, "bins": 6, **keys})
    plain, under = (trained(table, THREE, one, active=2) for one in (how, how._replace(key_bits=BITS)))
    assert under.trees == plain.trees
    assert under.outputs.tolist() == plain.outputs.tolist()


# ------------------------------------------------------------------------------------------------ GOSS


def sampled(tree: int, rest: Sequence[int], count: int) -> list[int]:
    """The draws of a simulation with seed 0."""
    return numpy_stream(0, "boosting", "goss", tree).choice(np.array(rest), count, replace=False).tolist()


@pytest.mark.parametrize("task", ["classes", "numbers"])
@pytest.mark.parametrize("keys", [{}, {"mode": "mix"}, {"mode": "layered"}, {"min_leaf": 5, "depth": 4}], ids=str)
def test_trees_on_large_gradients_are_those_of_the_booster_on_the_same_draws(keys: dict[str, Any], task: str) -> None:
    table, how = made(seed=4, task=task, weights=True), secureboost(**{"trees": 4, "goss": (0.2, 0.1), **keys})
    train = np.arange(200)
    found = trained(table, HALVES, how, train=train)
    assert_same(found, oracle(table, HALVES, how, train=train, sampled=sampled))
    assert found.trees[0][0].get("rows", 60) == 60


def test_all_rows_are_kept_if_all_are_large() -> None:
    """a = 1, b = 0 is no sampling, and nothing is said of draws."""
    table, (rows, weight) = made(seed=6), goss.kept(np.arange(5.0), (1.0, 0.0), np.random.default_rng(0))
    assert (rows.tolist(), weight.tolist()) == ([0, 1, 2, 3, 4], [1.0] * 5)
    assert not SECUREBOOST.warnings(secureboost(goss=(1.0, 0.0)))
    assert SECUREBOOST.warnings(secureboost(goss=(0.9, 0.1)))
    found = [trained(table, HALVES, secureboost(trees=3, goss=one)) for one in (None, (1.0, 0.0))]
    assert found[0].trees == found[1].trees
    assert found[0].outputs.tolist() == found[1].outputs.tolist()


def test_kept_rows_and_their_weights_by_hand() -> None:
    """Ten rows: the two largest, the first of equal ones, with weight 1; one of the others with 0.8 / 0.1 = 8."""
    size = np.array([1.0, 5, 1, 3, 3, 0, 0, 3, 1, 1])
    found = goss.kept(size, (0.2, 0.1), np.random.default_rng(0))
    large = found.rows[found.weight == 1]
    assert large.tolist() == [1, 3]
    assert sorted(found.weight.tolist()) == [1, 1, pytest.approx(8)]
    assert (np.diff(found.rows) > 0).all()
    assert len(goss.kept(np.ones(1), (0.2, 0.1), np.random.default_rng(0)).rows) == 1


@pytest.mark.timing
def test_sums_of_weighted_gradients_open_exactly_and_those_weighted_too_late_are_refused() -> None:
    """Forty rows, of which eight are kept and four drawn with weight 8, which outweighs the offset of the numbers before."""
    stream, how = np.random.default_rng(1), secureboost()._replace(key_bits=256)
    g, h = stream.normal(size=40), stream.random(40)
    kept = goss.kept(np.abs(g), (0.2, 0.1), stream)
    assert len(kept.rows) == 12
    keys, form = paillier.holder(paillier.generate(256, testing=True)), sealed.fields(12, how)
    right = gains.fixed(kept.weighted(g), kept.weighted(h), how.precision)
    cipher = sealed.Cipher(keys.public, sealed.sealed([right], form, keys, 1), form)
    grid = bins.grid([0], [np.array([0.5])], np.array([False]))
    plain = cipher.returned(
        cipher.histogram(np.arange(12), np.zeros((12, 1), np.int64), grid.width), grid, np.arange(1)
    )
    assert sealed.opened(keys, plain, form, 1, 1).tolist() == [[right.g.sum(), right.h.sum(), 12]]
    early = gains.fixed(g, h, how.precision)
    late = early._replace(g=kept.weighted(early.g).astype(np.int64), h=kept.weighted(early.h).astype(np.int64))
    with pytest.raises(PrivacyError, match="larger than its fixed point allows"):
        sealed.sealed([late], form, keys, 1)


def test_the_fixed_point_is_of_the_weighted_numbers() -> None:
    g, h, weight = np.array([0.9, -0.8, 0.7, -0.7]), np.full(4, 0.25), np.array([1, 1, 8.0, 8])
    found = gains.fixed(g * weight, h * weight, 24)
    assert np.abs(found.g).max() <= 1 << 24
    assert np.ldexp(found.g.astype(float), found.g_power - 24) == pytest.approx(
        g * weight, abs=2.0 ** (found.g_power - 24)
    )

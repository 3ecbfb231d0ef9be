"""The rules: by hand, beside byzfl's results, under magnitudes to 1e12, and what breaks them (B1 to B7)."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedatlas.aggregation import RULES
from fedatlas.aggregation.changes import Changes, finite, flat, rebuilt
from fedatlas.aggregation.reducers import Closing
from fedatlas.aggregation.rule_reducer import RuleReduction
from fedatlas.errors import ConfigError, ProtocolError
from fedatlas.tree import Tree

STORED: dict[str, Any] = json.loads((Path(__file__).parents[1] / "support" / "byzfl.json").read_text())
ROBUST = {"krum": 3, "multi_krum": 3, "trimmed_mean": 3, "median": 3}
"""Rule -> f of ten that it is tried with."""
LINE = (1.0, 2.0, 7.0)


def tree(*numbers: float) -> Tree:
    return Tree({"w": torch.tensor(numbers, dtype=torch.float64)})


def numbers(found: Any) -> list[float]:
    return [float(x) for x in found["w"]]


# ---------------------------------------------------------------------- by hand


def test_by_hand_on_a_line() -> None:
    """x = 0, 1, 2, 3, 100 with f = 1: each sums its n - f - 2 = 2 smallest squares to others.

    Scores: 0: 1 + 4 = 5;  1: 1 + 1 = 2;  2: 1 + 1 = 2;  3: 1 + 4 = 5;  100: 97^2 + 98^2. Krum takes 1, the first of the smallest;
    Multi-Krum with q = 2 takes 1 and 2, with q = 4 all but 100. The trimmed mean leaves 1, 2, 3, the median is 2.
    """
    line = [tree(x) for x in (0, 1, 2, 3, 100)]
    assert numbers(RULES["krum"](f=1).combine(line)) == [1.0]
    assert numbers(RULES["multi_krum"](f=1, q=2).combine(line)) == [1.5]
    assert numbers(RULES["multi_krum"](f=1).combine(line)) == [1.5]  # q = 4: 0, 1, 2, 3
    assert numbers(RULES["trimmed_mean"](f=1).combine(line)) == [2.0]
    assert numbers(RULES["median"]().combine(line)) == [2.0]
    assert numbers(RULES["median"]().combine(line[1:])) == [2.5]  # of an even number the mean of the middle two
    assert numbers(RULES["mean"]().combine(line)) == pytest.approx([21.2])


def test_norms_are_clipped_to_the_median_or_to_the_bound_and_weights_count() -> None:
    """Lengths 5, 1, 10: M = 5, so that (6, 8) becomes (3, 4). Weights 1, 1, 2 are shares of 4."""
    given = [tree(3, 4), tree(0, 1), tree(6, 8)]
    assert numbers(RULES["norm_clip"]().combine(given)) == pytest.approx([2.0, 3.0])
    weighted = RULES["norm_clip"]().combine(given, [1, 1, 2])
    assert numbers(weighted) == pytest.approx([(3 + 0 + 6) / 4, (4 + 1 + 8) / 4])
    short = RULES["norm_clip"](bound=1.0).combine(given)
    assert numbers(short) == pytest.approx([(0.6 + 0 + 0.6) / 3, (0.8 + 1 + 0.8) / 3])
    assert numbers(RULES["norm_clip"](bound=1e9).combine(given)) == pytest.approx(
        [3.0, 13 / 3]
    )  # M = infinity: the mean


@pytest.mark.parametrize("name", ROBUST)
def test_weights_are_ignored_where_a_client_would_choose_its_own(name: str) -> None:
    given = [tree(math.sin(k), k) for k in range(10)]
    rule = RULES[name](f=2)
    assert numbers(rule.combine(given)) == numbers(rule.combine(given, [1.0, *[100.0] * 9]))


def test_the_limits_of_the_family_are_its_members() -> None:
    """Multi-Krum with q = 1 is Krum, with q = n the mean; the trimmed mean at f = 0 the mean, at most the median."""
    given = [tree(math.sin(3 * k), math.cos(k)) for k in range(7)]
    same = lambda a, b: numbers(a) == pytest.approx(numbers(b), abs=1e-15)  # noqa: E731
    mean, median = RULES["mean"]().combine(given), RULES["median"]().combine(given)
    assert same(RULES["multi_krum"](f=2, q=1).combine(given), RULES["krum"](f=2).combine(given))
    assert same(RULES["multi_krum"](f=2, q=7).combine(given), mean)
    assert same(RULES["trimmed_mean"](f=0).combine(given), mean)
    assert same(RULES["trimmed_mean"](f=3).combine(given), median)


def test_the_geometric_median_of_three_points_on_a_line_is_the_middle_one() -> None:
    """Its objective never rises, and weights say which point has most."""
    line = [tree(x, 2 * x) for x in LINE]
    found = numbers(RULES["geometric_median"](iterations=200).combine(line))
    assert found == pytest.approx([2.0, 4.0], abs=1e-3)
    assert numbers(RULES["geometric_median"](iterations=200).combine(line, [1, 1, 8])) == pytest.approx([7, 14])
    away = []
    for steps in range(1, 12):
        z = numbers(RULES["geometric_median"](iterations=steps).combine(line))
        away.append(sum(math.dist(z, (x, 2 * x)) for x in LINE))
    assert all(b <= a + 1e-12 for a, b in itertools.pairwise(away))
    assert away[-1] < away[0] - 0.1


def test_the_geometric_median_turns_with_the_changes() -> None:
    turn = torch.linalg.qr(torch.randn(4, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)).Q
    given = torch.randn(6, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    rule = RULES["geometric_median"]()
    plain, turned = (rule.combine([Tree({"w": x}) for x in rows])["w"] for rows in (given, given @ turn))
    assert turned.tolist() == pytest.approx((plain @ turn).tolist(), abs=1e-12)


def test_four_steps_of_the_geometric_median_by_an_obvious_second_implementation() -> None:
    given = torch.randn(5, 3, generator=torch.Generator().manual_seed(4), dtype=torch.float64).numpy()
    p, z = [0.1, 0.2, 0.3, 0.3, 0.1], [0.0, 0.0, 0.0]
    for _ in range(4):
        beta = [w / max(1e-6, math.dist(z, x)) for w, x in zip(p, given, strict=True)]
        z = [sum(b * x[i] for b, x in zip(beta, given, strict=True)) / sum(beta) for i in range(3)]
    found = RULES["geometric_median"]().combine([tree(*x) for x in given], p)
    assert numbers(found) == pytest.approx(z, rel=1e-12)


def test_fltrust_by_hand() -> None:
    """g0 = (2, 0). (3, 3) has cosine 0.7071 and becomes (2, 2) / 1.4142; (1, 0) becomes (2, 0); (-1, 5) has weight 0."""
    trust = RULES["fltrust"]()
    root, c = tree(2, 0), math.sqrt(0.5)
    found = numbers(trust.combine([tree(3, 3), tree(1, 0), tree(-1, 5)], root=root))
    assert found == pytest.approx([(c * 2 * c + 2) / (c + 1), c * 2 * c / (c + 1)])
    more = [tree(3e9, 3e9), tree(1, 0), tree(-1e12, 5e12)]
    assert numbers(trust.combine(more, root=root)) == pytest.approx(found)  # how long a change is has no effect
    assert numbers(trust.combine([root], root=root)) == [2.0, 0.0]
    assert numbers(trust.combine([tree(-1, 0), tree(-9, 4), tree(0, 0)], root=root)) == [2.0, 0.0]  # nobody is trusted
    held = Changes(root=torch.tensor([2.0, 0.0], dtype=torch.float64))
    for x in ([3.0, 3.0], [-1.0, 5.0]):
        held.add(torch.tensor(x, dtype=torch.float64))
    judged = trust.judge(held, torch.ones(2) / 2, 0)
    assert judged.weights == (1.0, 0.0)
    assert judged.chosen == (0,)


def test_a_root_is_given_where_it_is_used_and_nowhere_else() -> None:
    with pytest.raises(ConfigError, match="'fltrust' needs root"):
        RULES["fltrust"]().combine([tree(1)])
    with pytest.raises(ConfigError, match="'median' takes no root"):
        RULES["median"]().combine([tree(1)], root=tree(1))
    with pytest.raises(ProtocolError, match="differ in their names or shapes"):
        RULES["fltrust"]().combine([tree(1)], root=tree(1, 2))
    with pytest.raises(ProtocolError, match="not finite"):
        RULES["fltrust"]().combine([tree(1)], root=tree(math.nan))


# ---------------------------------------------------------------------- beside another implementation


@pytest.mark.parametrize("case", STORED["cases"], ids=lambda case: f"{len(case['x'])} with f = {case['f']}")
def test_the_results_are_those_of_byzfl(case: dict[str, Any]) -> None:
    """tests/support/byzfl.json says which version, and how its f and q differ from the paper's."""
    given, f = [tree(*row) for row in case["x"]], case["f"]
    asked = {"krum": {"f": f}, "multi_krum": {"f": f, "q": len(given) - f - 1}, "trimmed_mean": {"f": f}}
    for name in ("krum", "multi_krum", "trimmed_mean", "median", "mean"):
        found = RULES[name](**asked.get(name, {})).combine(given)
        assert numbers(found) == pytest.approx(case[name], rel=1e-12), name
    near = RULES["geometric_median"](nu=0.1, iterations=3).combine(given)
    assert numbers(near) == pytest.approx(case["geometric_median"], rel=1e-9)


# ---------------------------------------------------------------------- laws


@pytest.mark.parametrize("name", RULES)
@given(seed=st.integers(0, 10**6), n=st.integers(7, 12))
def test_the_order_of_clients_does_not_matter_and_equal_changes_are_kept(name: str, seed: int, n: int) -> None:
    stream = torch.Generator().manual_seed(seed)
    given_ = [Tree({"w": torch.randn(4, generator=stream, dtype=torch.float64)}) for _ in range(n)]
    turned = [given_[i] for i in torch.randperm(n, generator=stream)]
    rule = RULES[name]()
    beside = {"root": given_[0]} if rule.rooted else {}
    assert numbers(rule.combine(given_, **beside)) == pytest.approx(numbers(rule.combine(turned, **beside)), abs=1e-12)
    assert numbers(rule.combine([given_[0]] * n, **beside)) == pytest.approx(numbers(given_[0]), abs=1e-12)


@pytest.mark.parametrize("name", ROBUST)
@pytest.mark.parametrize("magnitude", [1.0, 1e3, 1e6, 1e12])
def test_a_rule_holds_at_the_tolerated_number_of_hostile_changes(name: str, magnitude: float) -> None:
    """What comes out stays within the honest range, whatever the hostile ones hold, in float32 as well."""
    f = ROBUST[name]
    honest = [tree(1 + 0.1 * k, -1 + 0.1 * k) for k in range(10 - f)]
    for hostile in ([tree(magnitude, -magnitude)] * f, [tree(magnitude * (k + 1), 0) for k in range(f)]):
        both = [Tree(x).to(torch.float32) for x in (*hostile, *honest)]
        a, b = numbers(RULES[name](f=f).combine(both))
        assert 1 - 1e-6 <= a <= 1.6 + 1e-6
        assert -1 - 1e-6 <= b <= -0.4 + 1e-6


@pytest.mark.parametrize("name", ROBUST)
def test_a_rule_breaks_above_it(name: str) -> None:
    """With more hostile changes than half of all, what comes out goes wherever they want."""
    honest, hostile = [tree(0.1 * k) for k in range(4)], [tree(1e6)] * 6
    assert numbers(RULES[name](f=3).combine([*honest, *hostile]))[0] > 1e5


@pytest.mark.parametrize("magnitude", [1.0, 1e3, 1e6, 1e12])
def test_the_geometric_median_and_fltrust_are_bounded_whatever_the_hostile_ones_hold(magnitude: float) -> None:
    """Three of ten: after the first step z lies within 3 lengths of unit steps; FLTrust is never longer than the root's change."""
    honest = [tree(1 + 0.1 * k, -1 + 0.1 * k) for k in range(7)]
    for hostile in ([tree(magnitude, -magnitude)] * 3, [tree(-magnitude * (k + 1), 0) for k in range(3)]):
        for name, beside in (("geometric_median", {}), ("fltrust", {"root": tree(1.2, -0.8)})):
            found = numbers(RULES[name]().combine([*hostile, *honest], **beside))
            assert math.hypot(*found) < 2.5, name


def test_the_geometric_median_breaks_above_half_and_by_a_weight_that_is_a_lie() -> None:
    """With six of ten it goes where they want. So it does with one of ten that claims more rows than all others."""
    honest, far = [tree(0.1 * k) for k in range(4)], tree(1e6)
    rule = RULES["geometric_median"](iterations=300)
    assert numbers(rule.combine([*honest, *[far] * 6]))[0] > 1e5
    others = [tree(0.1 * k) for k in range(9)]
    assert numbers(rule.combine([*others, far]))[0] < 1
    assert numbers(rule.combine([*others, far], [*[1.0] * 9, 20.0]))[0] > 1e5


def test_the_mean_breaks_with_one_and_clipping_bounds_what_one_can_do() -> None:
    honest = [tree(0.1 * k) for k in range(9)]
    assert numbers(RULES["mean"]().combine([*honest, tree(1e12)]))[0] > 1e10
    assert numbers(RULES["norm_clip"]().combine([*honest, tree(1e12)]))[0] < 1


@pytest.mark.parametrize(
    ("name", "given", "n", "needs"),
    [
        ("krum", {"f": 4}, 10, "2 f \\+ 3"),
        ("multi_krum", {"f": 1}, 4, "2 f \\+ 3"),
        ("trimmed_mean", {"f": 5}, 10, "more than 2 f"),
        ("median", {"f": 2}, 4, "more than 2 f"),
        ("krum", {}, 2, "2 f \\+ 3"),
    ],
)
def test_too_large_an_f_is_refused(name: str, given: dict[str, int], n: int, needs: str) -> None:
    with pytest.raises(ConfigError, match=needs):
        RULES[name](**given).combine([tree(k) for k in range(n)])


def test_changes_that_are_none_are_refused() -> None:
    with pytest.raises(ProtocolError, match="differ in their names or shapes"):
        RULES["median"]().combine([tree(1, 2), tree(1)])
    with pytest.raises(ProtocolError, match="not finite"):
        RULES["median"]().combine([tree(1), tree(math.inf), tree(2)])
    with pytest.raises(ConfigError, match="as many weights, not 1"):
        RULES["mean"]().combine([tree(1), tree(2)], [1.0])


@pytest.mark.parametrize("weights", [[2, -1], [0, 0], [1, math.nan], [math.inf, 1]])
def test_weights_that_are_none_are_refused(weights: list[float]) -> None:
    with pytest.raises(ConfigError, match="weights are finite numbers of 0 or more, and at least one is above 0"):
        RULES["mean"]().combine([tree(1), tree(2)], weights)


def test_weights_by_name_go_with_changes_by_name() -> None:
    given = {"a": tree(1), "b": tree(5)}
    assert numbers(RULES["mean"]().combine(given, {"b": 3, "a": 1})) == pytest.approx([4.0])
    for changes, weights in ((given, {"a": 1, "c": 1}), ([tree(1), tree(5)], {0: 1, 1: 3})):
        with pytest.raises(ConfigError, match="weights by name need changes by the same names"):
            RULES["mean"]().combine(changes, weights)


@pytest.mark.parametrize(
    ("values", "all_finite"),
    [
        ([], True),
        ([1.0, -1.0], True),
        ([3e38, 3e38], True),  # whose sum is none
        ([math.inf, -math.inf], False),
        ([0.0, math.nan], False),
    ],
)
def test_numbers_are_finite_one_by_one_whatever_their_sum(values: list[float], all_finite: bool) -> None:
    assert finite(torch.tensor(values)) is all_finite


def test_parts_of_an_update_are_judged_under_one_selection() -> None:
    """A client whose controls alone are odd is left out with its model, and whole numbers are no part of a length."""

    def update(w: float, c: float, seen: int) -> dict[str, Any]:
        counter = Tree({"mean": torch.tensor([0.5]), "count": torch.tensor(seen)})
        return {"model": tree(w), "controls": tree(c), "buffers": counter}

    given = [update(0.1 * k, 0.0, k) for k in range(6)] + [update(0.25, 1e6, 10**9)]
    found = RULES["krum"](f=2).combine(given)
    assert numbers(found["controls"]) == [0.0]
    assert found["buffers"]["mean"].item() == 0.5


def test_spilled_changes_give_the_same_bits() -> None:
    stream = torch.Generator().manual_seed(3)
    vectors = [torch.randn(20_000, generator=stream, dtype=torch.float64) for _ in range(9)]
    held, spilled = Changes(root=vectors[0]), Changes(budget=200_000, root=vectors[0])
    for vector in vectors:
        held.add(vector)
        spilled.add(vector)
    for name in RULES:
        rule = RULES[name]()
        weights = torch.full((9,), 1 / 9, dtype=torch.float64)
        assert torch.equal(rule.judge(held, weights, 1).value, rule.judge(spilled, weights, 1).value)


# ---------------------------------------------------------------------- in the place of a mean


def closing(*clients: int, mixing: Any = None) -> Closing:
    return Closing(clients, lambda part: 1.0, mixing)


def test_a_rule_judges_changes_and_gives_back_a_model() -> None:
    base = {"model": tree(10.0)}
    judging = RuleReduction(RULES["median"](), lambda client, update: base, 1 << 30)
    reducer, held = judging.mean(), None
    for k, x in enumerate((11.0, 12.0, 1e9)):
        held = reducer.add(held, reducer.lift(k, {"model": tree(x)}, {"model": 1 / 3, "controls": 1 / 9}))
    value = reducer.close(held, closing(0, 1, 2)).value
    assert value is not None
    assert numbers(value["model"]) == pytest.approx([12.0])
    assert judging.weights == dict.fromkeys((0, 1, 2), 1 / 3)


def test_parts_with_coefficients_of_their_own_keep_their_sum() -> None:
    """SCAFFOLD's controls count 1/K each: of 3 of 9 clients the median counts 3/9."""
    judging = RuleReduction(RULES["median"](), lambda client, update: {}, 1 << 30)
    reducer, held = judging.mean(), None
    for k, x in enumerate((1.0, 2.0, 9.0)):
        update = {"model": tree(x), "controls": tree(x)}
        held = reducer.add(held, reducer.lift(k, update, {"model": 1 / 3, "controls": 1 / 9}))
    value = reducer.close(held, closing(0, 1, 2)).value
    assert value is not None
    assert numbers(value["model"]) == pytest.approx([2.0])
    assert numbers(value["controls"]) == pytest.approx([2.0 * 3 / 9])


def test_too_few_changes_change_nothing_and_say_so() -> None:
    judging = RuleReduction(RULES["krum"](f=1), lambda client, update: {}, 1 << 30)
    reducer, held = judging.mean(), None
    for k in range(4):
        held = reducer.add(held, reducer.lift(k, {"model": tree(k)}, 0.25))
    assert reducer.close(held, closing(0, 1, 2, 3)).value is None
    assert judging.refused == "'krum' with f = 1 needs 2 f + 3 changes or more, not 4"


def test_each_node_judges_what_it_hears() -> None:
    """A ring of four: nodes hear two neighbours and themselves, so that one hostile node moves nobody's median far."""
    mixing = lambda who: {k: dict.fromkeys(((k - 1) % 4, k, (k + 1) % 4), 1 / 3) for k in who}  # noqa: E731
    judging = RuleReduction(RULES["median"](), lambda client, update: {}, 1 << 30)
    reducer, held = judging.neighbours(), None
    for k, x in enumerate((1.0, 2.0, 3.0, 1e9)):
        held = reducer.add(held, reducer.lift(k, {"model": tree(x)}, 1.0))
    found = reducer.close(held, closing(0, 1, 2, 3, mixing=mixing)).each
    assert [numbers(found[k]["model"])[0] for k in range(4)] == pytest.approx([2.0, 2.0, 3.0, 3.0])


def test_vectors_are_updates_again() -> None:
    update = {"model": Tree({"a": torch.arange(6.0).reshape(2, 3)}), "n": 2.5, "buffers": Tree({"t": torch.tensor(4)})}
    vector = flat(update, {"model": Tree({"a": torch.ones(2, 3)})})
    assert vector.tolist() == [-1, 0, 1, 2, 3, 4, 2.5]
    again = rebuilt(vector, update)
    assert again["model"]["a"].tolist() == [[-1, 0, 1], [2, 3, 4]]
    assert again["n"] == 2.5
    assert again["buffers"]["t"].item() == 4


@pytest.mark.parametrize("sent", [0.0, 1e-4])
@pytest.mark.parametrize("n", [5, 10])
def test_one_client_that_sends_no_change_does_not_hold_the_geometric_median(n: int, sent: float) -> None:
    """The steps begin at no change: a point there would have all the weight."""
    stream = torch.Generator().manual_seed(1)
    way = torch.ones(100, dtype=torch.float64) / 10
    honest = [way + 0.03 * torch.randn(100, generator=stream, dtype=torch.float64) for _ in range(n - 1)]
    value = RULES["geometric_median"]().combine([Tree({"w": x}) for x in (*honest, -sent * way)])["w"]
    assert float(value @ way) > 0.85

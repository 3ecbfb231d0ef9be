"""What colluders agree on: by hand, beside byzfl's results, and how far an optimised factor moves a rule (B18)."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pytest
import torch
from torch import Tensor

from fedatlas.aggregation import RULES
from fedatlas.attacks.collusion import (
    Scene,
    alie_of,
    best_factor,
    damage,
    inner_product_of,
    optimised,
    stand_ins,
    z_max,
)
from fedatlas.attacks.malicious import Poisoning
from fedatlas.attacks.poisoning import POISONING
from fedatlas.setup.attackers import rule_as_known

STORED: dict[str, Any] = json.loads((Path(__file__).parents[1] / "support" / "byzfl_attacks.json").read_text())
ADAPTED = {"krum": {"f": 4}, "trimmed_mean": {"f": 4}, "median": {"f": 4}, "norm_clip": {}, "multi_krum": {"f": 4}}


def vector(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def scene(own: Any, others: Any = (), n: int = 0, rule: str = "mean", seed: int = 1, **keys: Any) -> Scene:
    mine = {k: vector(*x) for k, x in enumerate(own)}
    theirs = {k + len(mine): vector(*x) for k, x in enumerate(others)}
    stream = torch.Generator().manual_seed(seed)
    return Scene(mine, theirs, n or len(mine) + len(theirs), rule_as_known(RULES[rule](**keys)), stream)


def crafted(name: str, facts: Scene, **keys: Any) -> Tensor:
    attack: Poisoning = POISONING[name](share=0.2, **keys)
    assert attack.craft is not None
    found = attack.craft(facts)
    assert found is not None
    return found


# ---------------------------------------------------------------------- by hand


def test_by_hand_on_a_line() -> None:
    """Own changes 1 and 3: mu = 2, sigma = sqrt(2). Omniscient attackers use those of the others, 4, 6 and 8: mu = 6, sigma = 2."""
    facts = scene([[1], [3]], [[4], [6], [8]])
    assert crafted("inner_product", facts._replace(others={}), epsilon=0.5).tolist() == [-1.0]
    assert crafted("inner_product", facts, epsilon=10.0).tolist() == [-60.0]
    assert crafted("alie", facts._replace(others={}), z=1.0).tolist() == pytest.approx([2 - 2**0.5])
    assert crafted("alie", facts, z=1.5).tolist() == pytest.approx([3.0])
    assert crafted("mimic", facts).tolist() == [4.0]
    assert crafted("mimic", facts, client=3).tolist() == [6.0]
    absent = POISONING["mimic"](share=0.2, client=9).craft
    assert absent is not None
    assert absent(facts) is None


def test_one_attacker_knows_no_deviation() -> None:
    assert crafted("alie", scene([[1, -2]], n=5), z=3.0).tolist() == [1.0, -2.0]


def test_min_max_goes_as_far_as_no_distance_shows() -> None:
    """Of 0 and 2 on a line: to mu - gamma sigma = 0, as 2 is no further from it than 0 is. In the plane the bound is met, not passed."""
    facts = scene([[0], [2]], n=9)
    assert crafted("min_max", facts).tolist() == pytest.approx([0.0], abs=1e-12)
    assert crafted("min_max", facts._replace(n=3)).tolist() == crafted("min_max", facts).tolist()
    assert crafted("min_max", scene([[3, 4]])).tolist() == [3.0, 4.0]
    points = [[1, 5, 2], [3, 1, 0], [4, 4, 7], [0, 2, 2]]
    sent, x = crafted("min_max", scene([[9, 9, 9]], points), knows="all"), torch.tensor(points, dtype=torch.float64)
    apart = float(torch.cdist(x, x).max())
    assert float((sent - x).norm(dim=1).max()) == pytest.approx(apart)
    mu, sigma = x.mean(0), x.std(0)
    gamma = (mu - sent) / sigma
    assert gamma.tolist() == pytest.approx([float(gamma[0])] * 3)
    assert gamma[0] > 0


def test_z_max_is_the_specs_quantile() -> None:
    """n = 50, f = 10: s = 16 supporters are missing, so 24 of 40 honest changes may lie further in."""
    assert z_max(50, 10) == pytest.approx(NormalDist().inv_cdf(24 / 40))
    assert z_max(50, 24) == pytest.approx(NormalDist().inv_cdf(24 / 26))
    assert z_max(3, 2) == z_max(2, 2) == 0.0  # nobody honest is left to lie further in
    facts = scene([[1], [3]], n=7)
    assert crafted("alie", facts).tolist() == pytest.approx([2 - z_max(7, 2) * 2**0.5])


# ---------------------------------------------------------------------- byzfl


@pytest.mark.parametrize("case", STORED["cases"], ids=lambda case: f"{len(case['x'])} and {case['f']}")
def test_the_results_are_those_of_byzfl(case: dict[str, Any]) -> None:
    """byzfl's ALIE adds tau sigma where ours takes z sigma away: ours of x is minus byzfl's of -x."""
    f, x = case["f"], case["x"]
    against = {"krum": {"f": f}, "trimmed_mean": {"f": f}, "median": {"f": f}}
    facts = scene([[0.0] * len(x[0])] * f, x)
    mirrored = scene([[0.0] * len(x[0])] * f, [[-v for v in row] for row in x])
    assert crafted("inner_product", facts, epsilon=2.0, knows="all").tolist() == pytest.approx(case["inner_product"])
    assert crafted("alie", mirrored, z=1.5, knows="all").tolist() == pytest.approx([-v for v in case["alie"]])
    assert crafted("mimic", facts, client=f + 2).tolist() == case["mimic"]
    for rule, keys in against.items():
        known = rule_as_known(RULES[rule](**keys))
        for name, of, given, sign in (("inner_product", inner_product_of, facts, 1), ("alie", alie_of, mirrored, -1)):
            here = given._replace(aggregate=known)
            worth = damage(here, of(here))
            found = of(here)(best_factor(worth))
            assert (sign * found).tolist() == pytest.approx(case[f"{name} against {rule}"], rel=1e-9), (name, rule)
            assert worth(optimised(here, of(here))) >= worth(best_factor(worth))


# ---------------------------------------------------------------------- optimised


def test_the_line_search_by_hand() -> None:
    """To 30 in doubling steps, 10 and 20; of the steps from there, 40 x 0.8^k, the first that gains on 30 is 13.1 (k = 5)."""
    assert best_factor(lambda factor: -((factor - 37.0) ** 2)) == pytest.approx(30 + 40 * 0.8**5)
    assert best_factor(lambda factor: -factor) == 0.0
    assert best_factor(lambda factor: factor) == 10 * (2**19 - 1)


@pytest.mark.parametrize("rule", ADAPTED)
@pytest.mark.parametrize("attack", [alie_of, inner_product_of], ids=["alie", "inner_product"])
def test_the_factor_adapts_to_each_rule(rule: str, attack: Any) -> None:
    """It moves what the rule takes at least as far as any factor of a grid does."""
    drawn = torch.Generator().manual_seed(3)
    honest = (0.2 + torch.randn(16, 12, generator=drawn, dtype=torch.float64)).tolist()
    facts = scene([[0.0] * 12] * 4, honest, rule=rule, **ADAPTED[rule])
    mean = torch.tensor(honest, dtype=torch.float64).mean(dim=0)

    def moved(factor: float) -> float:
        changes = [*facts.others.values(), *[attack(facts)(factor)] * 4]
        return float((facts.aggregate(changes) - mean).norm())

    found = optimised(facts, attack(facts))
    assert moved(found) >= moved(0.0)
    assert moved(found) >= max(moved(factor) for factor in (0.25, 0.5, 1.0, 2.0, 5.0, 10.0))


def test_a_coalition_draws_stand_ins_for_what_it_does_not_see() -> None:
    """As many as honest clients take part, from its own changes' mean and deviation alone; the same stream, the same draw."""
    own = [[1.0, 0.0], [3.0, 0.0]]
    drawn = torch.stack(stand_ins(scene(own, n=4002)))
    assert len(drawn) == 4000
    assert drawn[:, 0].mean().item() == pytest.approx(2.0, abs=0.1)
    assert drawn[:, 0].std().item() == pytest.approx(2**0.5, abs=0.1)
    assert not drawn[:, 1].any()
    assert torch.equal(drawn, torch.stack(stand_ins(scene(own, n=4002))))
    assert len(stand_ins(scene(own, n=2))) == 1

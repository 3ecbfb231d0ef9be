"""Rules that go by length beside statistics of batch norm: what hostile clients can gain from numbers that are much longer than weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedatlas.aggregation import RULES, before
from fedatlas.aggregation.reducers import Closing
from fedatlas.aggregation.rule_reducer import RuleReduction
from fedatlas.aggregation.rules import Rule
from fedatlas.tree import Tree

N, F, LONG = 10, 2, 1000.0
HONEST = torch.linspace(1.0, 2.0, 20, dtype=torch.float64)
BY_LENGTH = {
    "krum": RULES["krum"](f=F),
    "multi_krum": RULES["multi_krum"](f=F),
    "geometric_median": RULES["geometric_median"](),
    "norm_clip": RULES["norm_clip"](),
    "nnm and median": before("nnm", RULES["median"](f=F), f=F),
    "arc and mean": before("arc", RULES["mean"](), f=F),
}


def update(model: torch.Tensor, statistics: torch.Tensor) -> dict[str, Any]:
    return {"model": Tree({"w": model}), "buffers": Tree({"mean": statistics, "count": torch.tensor(3)})}


def judged(rule: Rule, hostile: torch.Tensor, statistics: float) -> Any:
    """The value of a rule over eight honest changes and two hostile ones."""
    stream = torch.Generator().manual_seed(1)

    def near(scale: float) -> torch.Tensor:
        return scale * (HONEST + 0.3 * torch.randn(20, generator=stream, dtype=torch.float64))

    parts = {k: update(near(1.0), near(LONG)) for k in range(N - F)}
    parts |= {k: update(hostile, statistics * HONEST) for k in range(N - F, N)}
    value = RuleReduction(rule, lambda client, one: {}, 1 << 20).of(parts, dict.fromkeys(parts, 1.0), "a group")
    assert value is not None
    return value


@pytest.mark.parametrize("name", BY_LENGTH)
@pytest.mark.parametrize("statistics", [0.0, LONG, 1e12])
def test_a_reversed_model_beside_long_statistics_does_not_turn_the_result(name: str, statistics: float) -> None:
    """Ten times as long, in the other direction: the mean of all would be -1.2 of the honest one."""
    value = judged(BY_LENGTH[name], -10 * HONEST, statistics)
    along = float(value["model"]["w"] @ HONEST / (HONEST @ HONEST))
    assert 0.3 < along < 1.2
    held = float(value["buffers"]["mean"] @ HONEST / (HONEST @ HONEST)) / LONG
    assert 0.3 < held < 1.5


def test_numbers_without_statistics_keep_their_bits() -> None:
    stream = torch.Generator().manual_seed(2)
    models = [torch.randn(20, generator=stream, dtype=torch.float64) for _ in range(N)]
    parts = {k: {"model": Tree({"w": x})} for k, x in enumerate(models)}
    for rule in BY_LENGTH.values():
        value = RuleReduction(rule, lambda client, one: {}, 1 << 20).of(parts, dict.fromkeys(parts, 1.0), "a group")
        assert value is not None
        assert torch.equal(value["model"]["w"], rule.combine([Tree({"w": x}) for x in models])["w"])


def test_the_coordinates_of_a_median_are_not_scaled() -> None:
    """It takes each number alone, so factors would only cost bits."""
    value = judged(RULES["median"](f=F), -10 * HONEST, 0.0)
    every = torch.stack([value["model"]["w"], value["buffers"]["mean"] / LONG])
    assert bool(((every > 0.3) & (every < 2.8)).all())


@pytest.mark.parametrize("rule", [RULES["norm_clip"](), before("arc", RULES["mean"](), f=1)], ids=["norm_clip", "arc"])
@pytest.mark.parametrize("statistics", [0.0, 1e-6, LONG, 1e9])
def test_a_neighbour_on_a_ring_does_not_choose_how_long_statistics_are(rule: Rule, statistics: float) -> None:
    """A node, an honest neighbour and a hostile one with a model a million times as long: bounded by what the honest ones are."""
    start = update(0 * HONEST, 0 * HONEST)
    mine = update(HONEST, LONG * HONEST)
    other = update(1.5 * HONEST, 1.5 * LONG * HONEST)
    hostile = update(-1e6 * HONEST, (LONG + statistics) * HONEST)
    reduction = RuleReduction(rule, lambda client, one: start, 1 << 20)
    closing = Closing((0, 1, 2), lambda part: 1.0, lambda nodes: {0: dict.fromkeys(nodes, 1 / 3)})
    value = reduction._mixed({0: mine, 1: other, 2: hostile}, closing).each[0]
    along = float(value["model"]["w"] @ HONEST / (HONEST @ HONEST))
    assert 0.3 < along < 1.5

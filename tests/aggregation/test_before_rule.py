"""What comes before a rule: nearest-neighbour mixing, buckets and adaptive clipping, by hand and beside byzfl's results."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedatlas.aggregation.before_rule as module
from fedatlas.aggregation import PRE, RULES, before
from fedatlas.aggregation.before_rule import bucketed, nearest_mixed, shortened
from fedatlas.aggregation.changes import Changes, Mixed
from fedatlas.errors import ConfigError
from fedatlas.tree import Tree

STORED: dict[str, Any] = json.loads((Path(__file__).parents[1] / "support" / "byzfl.json").read_text())


class InOrder:
    """A draw that draws nothing."""

    def permutation(self, n: int) -> np.ndarray:
        return np.arange(n)


def held(rows: Any, seed: int = 0) -> Changes:
    out = Changes(seed=seed)
    for row in rows:
        out.add(torch.tensor(row, dtype=torch.float64))
    return out


def trees(rows: Any) -> list[Tree]:
    return [Tree({"w": torch.tensor(row, dtype=torch.float64)}) for row in rows]


def mixed(changes: Changes, matrix: torch.Tensor) -> torch.Tensor:
    return torch.cat(list(Mixed(changes, matrix).blocks()), dim=1)


# ---------------------------------------------------------------------- by hand and beside another implementation


def test_by_hand_on_a_line() -> None:
    """0, 1, 3, 100 with f = 2: each is the mean of itself and the nearest other. f = 1 of 4: floor(2 * 3 / 4) = 1 is shortened."""
    line = held([[0.0], [1.0], [3.0], [100.0]])
    assert mixed(line, nearest_mixed(line, 2)).flatten().tolist() == [0.5, 0.5, 2.0, 51.5]
    assert mixed(line, shortened(line, 1)).flatten().tolist() == [0.0, 1.0, 3.0, 3.0]
    assert mixed(line, shortened(line, 0)).flatten().tolist() == [0.0, 1.0, 3.0, 100.0]


@pytest.mark.parametrize("case", STORED["cases"], ids=lambda case: f"{len(case['x'])} with f = {case['f']}")
def test_the_results_are_those_of_byzfl(case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Buckets are compared in the order of the changes, on both sides without a draw."""
    changes, f = held(case["x"]), case["f"]
    monkeypatch.setattr(module, "numpy_stream", lambda *key: InOrder())
    stored = (("nnm", nearest_mixed(changes, f)), ("arc", shortened(changes, f)), ("bucketing", bucketed(changes, 2)))
    for name, matrix in stored:
        found = mixed(changes, matrix)
        assert found.tolist() == [pytest.approx(row, rel=1e-9) for row in case[name]], name


@pytest.mark.parametrize("pre", PRE)
def test_mixed_vectors_are_what_their_matrix_says(pre: str) -> None:
    """Rows, inner products, lengths, distances and sums, each by its own shorter way, as of vectors that are held."""
    rows = torch.randn(9, 9_000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    changes = held(rows.tolist(), seed=5)
    lazy = Mixed(changes, PRE[pre]()(changes, 2))
    plain = torch.cat(list(lazy.blocks()), dim=1)
    assert len(lazy) == len(plain)
    assert torch.allclose(torch.stack([lazy.row(i) for i in range(len(lazy))]), plain)
    assert torch.allclose(lazy.gram(), plain @ plain.T)
    assert torch.allclose(lazy.norms(), plain.norm(dim=1))
    assert torch.allclose(lazy.products(rows[0]), plain @ rows[0])
    assert torch.allclose(lazy.distances(rows[1]), (plain - rows[1]).norm(dim=1))
    weights = torch.rand(len(lazy), dtype=torch.float64)
    assert torch.allclose(lazy.combined(weights), weights @ plain)


# ---------------------------------------------------------------------- laws


@pytest.mark.parametrize("pre", PRE)
@pytest.mark.parametrize("name", [name for name in RULES if name != "fltrust"])
@pytest.mark.parametrize("magnitude", [1.0, 1e6, 1e12])
def test_every_rule_holds_after_it_at_the_tolerated_number(pre: str, name: str, magnitude: float) -> None:
    """Two of fifteen. Clipping bounds even the mean; of the others the next test has the mean."""
    honest = [[1 + 0.01 * k, -1 + 0.01 * k] for k in range(13)]
    rule = before(pre, RULES[name](), f=2)
    if (pre, name) in {("bucketing", "mean"), ("nnm", "mean")}:
        return
    for hostile in ([[magnitude, -magnitude]] * 2, [[-magnitude, 0.0], [2 * magnitude, 0.0]]):
        found = rule.combine(trees([*hostile, *honest]))["w"].tolist()
        assert math.hypot(*found) < 2.5, (pre, name, found)


def test_the_mean_is_no_defence_after_buckets_or_mixing_and_too_many_break_each() -> None:
    honest = [[0.1 * k] for k in range(7)]
    for pre in ("bucketing", "nnm"):
        assert before(pre, RULES["mean"](), f=2).combine(trees([[1e12], [1e12], *honest]))["w"].item() > 1e10
    for pre in PRE:
        many = [[1e9]] * 9
        assert before(pre, RULES["median"](), f=3).combine(trees([*many, *honest]))["w"].item() > 1e6


def test_without_hostile_clients_to_assume_nothing_is_mixed_and_equal_changes_stay() -> None:
    given = trees([[math.sin(k), k] for k in range(10)])
    for name in ("mean", "median", "krum"):
        plain = RULES[name](**({"f": 0} if name != "mean" else {})).combine(given)["w"]
        assert before("arc", RULES[name](), f=0).combine(given)["w"].tolist() == pytest.approx(plain.tolist())
        assert before("bucketing", RULES[name](), f=0, s=1).combine(given)["w"].tolist() == pytest.approx(
            plain.tolist()
        )
        for pre in PRE:
            same = before(pre, RULES[name](), f=1).combine([given[3]] * 10)["w"]
            assert same.tolist() == pytest.approx(given[3]["w"].tolist())
    mean = before("nnm", RULES["mean"](), f=0).combine(given)["w"]
    assert mean.tolist() == pytest.approx(RULES["mean"]().combine(given)["w"].tolist())


def test_buckets_are_drawn_from_the_seed_and_hold_everybody_once() -> None:
    rows = [[float(k)] for k in range(11)]
    one, again, other = (bucketed(held(rows, seed), 3) for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert one.shape == (4, 11)
    assert (one > 0).sum(dim=1).tolist() == [3, 3, 3, 2]
    assert (one > 0).sum(dim=0).tolist() == [1] * 11
    assert one.sum(dim=1).tolist() == pytest.approx([1.0] * 4)


def test_weights_count_after_clipping_only_and_it_is_said_whom_a_rule_left_out() -> None:
    rows = [[0.0], [0.1], [0.2], [0.3], [50.0]]
    weights = torch.tensor([0.6, 0.1, 0.1, 0.1, 0.1], dtype=torch.float64)
    found = before("arc", RULES["mean"](), f=1).judge(held(rows), weights, 1)
    assert found.weights == pytest.approx(weights.tolist())
    assert not before("nnm", RULES["mean"]()).weighted
    assert before("arc", RULES["mean"]()).weighted
    near = before("nnm", RULES["krum"](f=1), f=1).judge(held(rows), weights, 1)
    assert near.chosen == (0, 1, 2, 3)
    assert sum(near.weights) == pytest.approx(1)
    pairs = before("bucketing", RULES["krum"](f=1), s=1).judge(held(rows), weights, 1)
    assert pairs.chosen is not None
    assert len(pairs.chosen) == 1


def test_buckets_may_be_too_few() -> None:
    rule = before("bucketing", RULES["krum"](f=2))
    assert rule.refusal(14) == ""
    assert (
        rule.refusal(12) == "'bucketing and krum' with f = 2 needs 2 f + 3 changes or more, not 6, in buckets of 2: 12"
    )
    with pytest.raises(ConfigError, match="more than 2 f changes, not 4"):
        before("nnm", RULES["mean"](), f=2).combine(trees([[1.0]] * 4))

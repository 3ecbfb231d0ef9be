"""LiRA and RMIA beside an oracle written apart, and on signals whose truth is known."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
import torch

from fedatlas.attacks.likelihood import confidence, halves, lira, rmia
from fedatlas.metrics.quality import auc

# ---------------------------------------------------------------------- the oracle: loops over rows, from the papers' formulas


def lira_by_rows(target: np.ndarray, shadow: np.ndarray, inside: np.ndarray) -> list[float]:
    """Log-likelihood ratio of normal distributions, one deviation for all rows; offline log-odds-free: the z-score outside."""

    def fitted(which: np.ndarray) -> tuple[list[float], float]:
        means, squares, freedom = [], 0.0, 0
        for i in range(shadow.shape[1]):
            values = [float(shadow[s, i]) for s in range(len(shadow)) if which[s, i]]
            means.append(math.fsum(values) / len(values))
            squares += math.fsum((v - means[-1]) ** 2 for v in values)
            freedom += len(values) - 1
        return means, math.sqrt(squares / freedom)

    outer, apart = fitted(~inside)
    if not inside.any():
        return [(float(t) - m) / apart for t, m in zip(target, outer, strict=True)]
    inner, within = fitted(inside)
    return [
        math.log(NormalDist(m, within).pdf(t)) - math.log(NormalDist(o, apart).pdf(t))
        for t, m, o in zip(target.tolist(), inner, outer, strict=True)
    ]


def rmia_by_pairs(
    target: np.ndarray, shadow: np.ndarray, inside: np.ndarray, z: np.ndarray, shadow_z: np.ndarray, among: np.ndarray
) -> list[float]:
    """The share of pairs (x, z) whose likelihood ratio is at least 1; offline without the models that have a row."""
    online = bool(inside.any())

    def ratio(own: float, others: np.ndarray, has: np.ndarray) -> float:
        p = [1 / (1 + math.exp(-v)) for v in others]
        outside = [v for v, one in zip(p, has, strict=True) if not one]
        within = [v for v, one in zip(p, has, strict=True) if one]
        p_out = sum(outside) / len(outside)
        p_x = (p_out + sum(within) / len(within)) / 2 if online else 0.5 * ((1 + 0.3) * p_out + (1 - 0.3))
        return 1 / (1 + math.exp(-own)) / p_x

    ratios = [ratio(float(target[i]), shadow[:, i], inside[:, i]) for i in range(len(target))]
    others = [ratio(float(z[j]), shadow_z[:, j], among[:, j]) for j in range(len(z))]
    return [sum(one / other >= 1 for other in others) / len(others) for one in ratios]


@pytest.mark.parametrize("online", [True, False])
def test_the_scores_are_the_oracles(online: bool):
    stream = np.random.default_rng(5)
    target, z = 2 * stream.normal(size=30), 2 * stream.normal(size=20)
    shadow, shadow_z = 2 * stream.normal(size=(6, 30)), 2 * stream.normal(size=(6, 20))
    inside, among = halves(6, 30, stream), halves(6, 20, stream)
    inside &= online
    assert lira(target, shadow, inside) == pytest.approx(lira_by_rows(target, shadow, inside), abs=1e-10)
    found = rmia(target, shadow, inside, z, shadow_z, among)
    assert found == pytest.approx(rmia_by_pairs(target, shadow, inside, z, shadow_z, among), abs=1e-12)
    assert len(set(found)) > 8


def test_confidence_is_the_logit_of_the_labels_probability():
    outputs, y = torch.tensor([[1.0, 2.0, 0.5], [80.0, 0.0, 0.0]]), torch.tensor([1, 0])
    p = math.exp(2.0) / (math.exp(1.0) + math.exp(2.0) + math.exp(0.5))
    assert confidence(outputs, y) == pytest.approx([math.log(p / (1 - p)), 80 - math.log(2)], abs=1e-12)


def test_each_row_is_in_exactly_half_of_the_models():
    inside = halves(16, 500, np.random.default_rng(1))
    assert (inside.sum(0) == 8).all()
    assert 200 < inside.sum(1).min() < inside.sum(1).max() < 300


# ---------------------------------------------------------------------- signals whose truth is known


def signals(gap: float, rows: int, shadows: int, seed: int, online: bool) -> tuple[np.ndarray, ...]:
    """Rows of very different difficulty; a model that has a row is more confident in it by ``gap`` deviations."""
    stream = np.random.default_rng(seed)
    hard = 5 * stream.normal(size=rows)
    member = np.arange(rows) % 2 == 0
    inside = halves(shadows, rows, stream) if online else np.zeros((shadows, rows), bool)
    return member, *(hard + gap * which + stream.normal(size=which.shape) for which in (member, inside)), inside


@pytest.mark.parametrize("online", [True, False])
def test_a_planted_leak_is_found_where_the_loss_finds_little(online: bool):
    """With known parameters the best AUC is that of two normal distributions one ``gap`` apart."""
    member, target, shadow, inside = signals(1.0, 4000, 16, 3, online)
    best = NormalDist().cdf(1 / math.sqrt(2))
    apart = signals(0.0, 4000, 16, 4, False)[1:]
    found = auc(lira(target, shadow, inside), member)
    also = auc(rmia(target, shadow, inside, *((target, shadow, inside) if online else apart)), member)
    by_loss = auc(target, member)
    assert found is not None
    assert also is not None
    assert by_loss is not None
    assert best - 0.05 < found < best + 0.02
    assert found > also > by_loss
    assert by_loss < 0.58


@pytest.mark.parametrize("online", [True, False])
def test_where_nothing_leaks_members_score_as_others_do(online: bool):
    """Over 40 games the mean AUC is 0.5; its deviation is about 0.018 / sqrt(40)."""
    found = []
    for seed in range(40):
        member, target, shadow, inside = signals(0.0, 1000, 16, seed, online)
        found.append(auc(lira(target, shadow, inside), member))
    assert np.mean(found) == pytest.approx(0.5, abs=0.012)

"""Gradient matching: the derivative behind it by hand and by finite differences, and what it finds (A8, A10)."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import vmap

from fedatlas.attacks.gradient_matching import (
    Problem,
    cosine_distance,
    deep_leakage,
    inferred_labels,
    invert,
    lbfgs,
    squared_distance,
    total_variation,
    unfolded,
)
from fedatlas.models import MODELS, init_model
from fedatlas.tree import Tree

SIDE = 8


def network(seed: int = 1) -> nn.Module:
    return init_model(MODELS["lenet_sigmoid"], (1, SIDE, SIDE), 4, seed)


def problem(seed: int = 1) -> Problem:
    module = unfolded(network(seed))
    params = Tree({name: x.detach() for name, x in module.named_parameters()})
    return Problem(module, F.cross_entropy, params, {}, torch.zeros(1, SIDE, SIDE), torch.ones(1, SIDE, SIDE))


def pictures(n: int, seed: int = 3) -> tuple[Tensor, Tensor]:
    """Smooth blobs of different places."""
    rng = torch.Generator().manual_seed(seed)
    centre = torch.rand(n, 2, generator=rng) * SIDE
    grid = torch.stack(torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij"), -1).float()
    x = torch.exp(-((grid - centre[:, None, None]) ** 2).sum(-1) / 6)
    return x[:, None], torch.arange(n) % 4


@pytest.mark.slow
def test_the_label_fixed_needs_no_more_steps_than_the_label_sought():
    """A9 beside A8: the same starts of the rows, the median over ten pictures; and the label it returns is the one given."""
    made, (x, y) = problem(), pictures(10)
    g = Tree(vmap(made.gradient)(x, y))
    needed = {}
    for name, labels in {"sought": None, "fixed": inferred_labels(list(g.values())[-1])}.items():
        steps = torch.full((10,), 1000)
        for many in (80, 40, 20, 10, 5):
            rng = torch.Generator().manual_seed(5)
            found = deep_leakage(made, g, 4, rng, iterations=many, labels=labels)
            steps[((found.x - x) ** 2).flatten(1).mean(1) < 1e-3] = many
            assert labels is None or torch.equal(found.labels, y)
        needed[name] = steps
    assert needed["fixed"].median() <= needed["sought"].median()
    assert needed["fixed"].median() < 1000


def test_convolutions_as_products_are_the_same_network():
    x = torch.rand(3, 1, SIDE, SIDE)
    torch.testing.assert_close(unfolded(network())(x), network().eval()(x), rtol=1e-5, atol=1e-6)
    for other in (nn.Conv2d(2, 4, 3, groups=2), nn.Conv2d(2, 4, 3, padding="same"), nn.Conv2d(2, 4, 3, dilation=2)):
        kept = nn.Sequential(other)
        assert unfolded(kept)[0] is other


def test_the_gradient_of_a_problem_is_that_of_plain_autograd():
    x, y = pictures(2)
    g = vmap(problem().gradient)(x, y)
    plain = network()
    for i in range(2):
        loss = F.cross_entropy(plain(x[i : i + 1]), y[i : i + 1])
        want = dict(zip(g, torch.autograd.grad(loss, list(plain.parameters())), strict=True))
        assert all(torch.allclose(g[name][i], want[name], rtol=1e-4, atol=1e-7) for name in g)


def test_distances_and_total_variation_by_hand():
    a, b = {"w": torch.tensor([3.0, 4.0])}, {"w": torch.tensor([4.0, 3.0])}
    assert float(cosine_distance(a, b)) == pytest.approx(1 - 24 / 25)
    assert float(cosine_distance(a, {"w": 7 * a["w"]})) == pytest.approx(0, abs=1e-6)  # blind to scale
    assert float(squared_distance(a, b)) == pytest.approx(2)
    x = torch.tensor([[[0.0, 1.0], [1.0, 3.0]]])  # down: 1, 2; across: 1, 2
    assert float(total_variation(x)) == pytest.approx(1.5 + 1.5)


def test_the_true_row_costs_the_total_variation_only_and_is_stationary():
    made, (x, y) = problem(), pictures(1)
    g = {name: one[0] for name, one in vmap(made.gradient)(x, y).items()}
    row = x[0].clone().requires_grad_(True)
    cost = squared_distance(made.gradient(row, y[0]), g)
    assert float(cost.detach()) == pytest.approx(0, abs=1e-12)
    assert float(torch.autograd.grad(cost, row)[0].abs().max()) < 1e-5


def test_the_label_of_one_row_is_the_negative_entry_of_the_last_bias():
    x, y = pictures(8)
    for seed in range(3):
        assert torch.equal(inferred_labels(vmap(problem(seed).gradient)(x, y)["head.bias"]), y)


def test_each_row_of_a_stack_is_minimised_by_itself():
    """Of (z - c)' A (z - c) the least is c; a row of another scale has no say in it."""
    c = torch.tensor([[1.0, -2.0, 3.0], [100.0, 50.0, -7.0]], dtype=torch.float64)
    A = torch.diag(torch.tensor([1.0, 10.0, 100.0], dtype=torch.float64))

    def f(z: Tensor) -> tuple[Tensor, Tensor]:
        d = z - c
        return 2 * d @ A, ((d @ A) * d).sum(1)

    z, cost = lbfgs(f, torch.zeros_like(c), 40)
    torch.testing.assert_close(z, c, rtol=1e-6, atol=1e-6)
    alone, _ = lbfgs(
        lambda z: tuple(x[:1] for x in f(torch.cat([z, c[1:]]))), torch.zeros(1, 3, dtype=torch.float64), 40
    )
    torch.testing.assert_close(alone, z[:1])
    assert float(cost.max()) < 1e-9


def test_both_attacks_find_small_pictures_and_noise_defeats_them():
    made, (x, y) = problem(), pictures(4)
    g = vmap(made.gradient)(x, y)
    rng = torch.Generator().manual_seed(1)
    found = invert(made, g, inferred_labels(g["head.bias"]), rng, iterations=120)
    assert (((found.x - x) ** 2).flatten(1).mean(1) < 1e-2).sum() >= 3  # above 20 dB
    leaked = deep_leakage(made, g, 4, rng, iterations=60, restarts=2)
    assert (((leaked.x - x) ** 2).flatten(1).mean(1) < 1e-3).sum() >= 3
    assert torch.equal(leaked.labels, y)
    noisy = {name: v + 0.1 * torch.randn(v.shape, generator=rng) for name, v in g.items()}
    lost = deep_leakage(made, noisy, 4, rng, iterations=30)
    assert bool((((lost.x - x) ** 2).flatten(1).mean(1) > 1e-2).all())


def test_the_best_restart_counts():
    made, (x, y) = problem(), pictures(1)
    g = vmap(made.gradient)(x, y)
    one = invert(made, g, y, torch.Generator().manual_seed(2), iterations=40)
    three = invert(made, g, y, torch.Generator().manual_seed(2), iterations=40, restarts=3)
    assert float(three.cost) <= float(one.cost) + 1e-6

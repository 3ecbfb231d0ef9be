"""DP-SGD: what one record can change in a step, who is drawn and the noise."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from fedatlas import secret
from fedatlas.algorithm import Batch, Budget
from fedatlas.algorithms import ALGORITHMS
from fedatlas.data.batches import Draw, batches
from fedatlas.engine.gradient import gradient, with_grad
from fedatlas.engine.model import Network
from fedatlas.engine.row_gradients import by_layers, by_rows, clipped_sum, dense_layers
from fedatlas.models.dense import mlp1
from fedatlas.models.dropout import Dropout
from fedatlas.models.losses import make_loss
from fedatlas.privacy.dp_sgd.noisy_gradient import noisy_gradient
from fedatlas.privacy.dp_sgd.poisson import NOISE, Poisson
from fedatlas.privacy.dp_sgd.schedule import schedule
from fedatlas.privacy.mechanism import Noise
from fedatlas.privacy.mechanisms import dp_sgd
from fedatlas.privacy.noise import gaussian32
from fedatlas.privacy.protocol import Doing
from fedatlas.tree import Tree
from federation import (
    Convolved,
    Normed,
    Recurrent,
    Smooth,
    brief,
    cross_entropy,
    module,
    rows_of,
)
from protected import length_of

ADMITTED = sorted(name for name in ALGORITHMS if not dp_sgd(clip=1.0).limits.why_not(brief(name)))
S = 0.3


def chain() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


def without_bias() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6, bias=False), nn.Sigmoid(), nn.Linear(6, 3))


DENSE = {"chain": chain, "no bias": without_bias}
OTHER = {"own class": Smooth, "convolutions": Convolved, "recurrent": Recurrent}
ANY = {**DENSE, **OTHER}


def objective_of(network: Network) -> Callable[[Tree, Batch], Tensor]:
    return network.loss


def problem(make: Callable[[], nn.Module], n: int = 9) -> tuple[Network, Tree, Batch]:
    network = Network(module(make), cross_entropy)
    network.module.train()
    held = rows_of(3, n)
    weight = torch.ones(n, dtype=torch.float64)
    weight[-2:] = 0.0  # padding
    return network, network.initial()[0], Batch(held.x, held.y, weight)


def brute_force(network: Network, params: Tree, batch: Batch, clip: float) -> tuple[Tree, list[float]]:
    """The same sum by the definition, one row after another, and the lengths before clipping."""
    total, lengths = params.zeros(), []
    for i in range(len(batch.x)):
        if batch.weight is not None and batch.weight[i] == 0:
            continue
        _, g = gradient(objective_of(network), with_grad(params), Batch(batch.x[i : i + 1], batch.y[i : i + 1]))
        length = math.sqrt(sum(float((x * x).sum()) for x in g.values()))
        lengths.append(length)
        if math.isfinite(length):
            total = total + g * min(1.0, clip / length)
    return total, lengths


# ---------------------------------------------------------------------- the sum of clipped gradients


@pytest.mark.parametrize("clip", [S, 1e6])
@pytest.mark.parametrize("make", ANY.values(), ids=ANY)
def test_the_sum_is_that_of_the_definition(make: Callable[[], nn.Module], clip: float) -> None:
    network, params, batch = problem(make)
    loss, total = clipped_sum(dense_layers(network.module), objective_of(network), params, batch, clip)
    expected, lengths = brute_force(network, params, batch, clip)
    assert min(lengths) > S  # every row is clipped by the smaller bound, and none by the larger
    assert [*total] == [*params]
    assert length_of(total - expected) <= 1e-3 * length_of(expected)  # the bound is kept with a margin
    kept = Batch(batch.x[:-2], batch.y[:-2])
    assert float(loss) == pytest.approx(float(network.loss(params, kept)), rel=1e-9)


@pytest.mark.parametrize("make", ANY.values(), ids=ANY)
def test_a_rows_weight_multiplies_its_gradient_before_it_is_shortened(make: Callable[[], nn.Module]) -> None:
    network, params, batch = problem(make)
    weight = torch.linspace(0.1, 2.0, 9, dtype=torch.float64)
    _, total = clipped_sum(
        dense_layers(network.module), objective_of(network), params, batch._replace(weight=weight), S
    )
    expected = params.zeros()
    for i in range(9):
        _, g = gradient(objective_of(network), with_grad(params), Batch(batch.x[i : i + 1], batch.y[i : i + 1]))
        expected = expected + g * (float(weight[i]) * min(1.0, S / (float(weight[i]) * length_of(g))))
    assert length_of(total - expected) <= 1e-3 * length_of(expected)


@pytest.mark.parametrize("make", DENSE.values(), ids=DENSE)
def test_both_ways_agree_on_dense_networks(make: Callable[[], nn.Module]) -> None:
    network, params, batch = problem(make)
    layers = dense_layers(network.module)
    assert layers is not None
    fast = by_layers(layers, objective_of(network), params, batch, S)
    assert fast is not None
    assert length_of(fast[1] - by_rows(objective_of(network), params, batch, S)[1]) < 1e-12


def test_only_known_networks_are_taken_as_chains() -> None:
    class Mixing(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x - x.mean(0))

    shared = nn.Linear(4, 4)
    for one in (
        Mixing(nn.Linear(4, 3)),
        nn.Sequential(nn.Flatten(0), nn.Linear(4, 3)),
        nn.Sequential(shared, nn.ReLU(), shared),
        nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 3)),
        nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 3)),
        nn.Sequential(nn.Tanh()),
        Smooth(),
        Normed(),
    ):
        assert dense_layers(one) is None
    found = dense_layers(mlp1((28, 28), 10))
    assert found is not None
    assert [layer.weight.shape[0] for layer in found.values()] == [200, 10]


def test_a_network_that_mixes_rows_is_taken_row_by_row() -> None:
    """A row's gradient is that of the row by itself, so that no other row can grow with it."""

    class Mixing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x + x.mean(0))

    network, params, batch = problem(Mixing)
    for r in range(3):
        other = batch._replace(x=batch.x.index_fill(0, torch.tensor([r]), torch.nan))
        pair = [clipped_sum(dense_layers(network.module), objective_of(network), params, b, S) for b in (batch, other)]
        assert length_of(pair[0][1] - pair[1][1]) <= S


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("make", ANY.values(), ids=ANY)
def test_one_record_moves_the_sum_by_the_bound_at_most(make: Callable[[], nn.Module], dtype: torch.dtype) -> None:
    network, params, batch = problem(make)
    network.module.to(dtype)
    params, batch = params.to(dtype), batch._replace(x=40 * batch.x.to(dtype), weight=torch.ones(9, dtype=dtype))
    layers, moved = dense_layers(network.module), []
    _, whole = clipped_sum(layers, objective_of(network), params, batch, S)
    for r in range(len(batch.x)):
        left = torch.ones(9, dtype=dtype).index_fill(0, torch.tensor([r]), 0.0)
        gone = batch._replace(x=batch.x.index_fill(0, torch.tensor([r]), torch.nan))
        _, padded = clipped_sum(layers, objective_of(network), params, batch._replace(weight=left), S)
        _, nan = clipped_sum(layers, objective_of(network), params, gone, S)
        moved.append(length_of(whole - padded))
        assert length_of(padded - nan) <= 1e-6 * S  # a gradient that is not finite counts as zero
        assert moved[-1] <= S
    assert max(moved) > 0.9 * S


def test_masks_stay_with_their_rows() -> None:
    network, params, batch = problem(lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), Dropout(0.5), nn.Linear(6, 3)))
    mask = 2.0 * (torch.arange(54).reshape(9, 6) % 3 > 0)
    batch = batch._replace(extra={"2.mask": mask.double()})
    layers = dense_layers(network.module)
    assert layers is not None
    fast = by_layers(layers, objective_of(network), params, batch, S)
    assert fast is not None
    assert length_of(fast[1] - by_rows(objective_of(network), params, batch, S)[1]) < 1e-12


# ---------------------------------------------------------------------- who is drawn


def poisson(
    n: int, size: int, *, step_noise: float = 0.0, source: Any = "seed", seed: int = 3, **given: Any
) -> Poisson:
    doing = Doing(given.get("client", 0), given.get("round", 1), "train", given.get("visit", 0), n)
    params = Tree({"w": torch.zeros(given.get("numbers", 1), dtype=torch.float64)})
    return Poisson(doing, given.get("budget", Budget(epochs=1)), size, params, step_noise, Noise(source, seed))


@pytest.mark.parametrize(
    ("budget", "n", "batch_size", "expected"),
    [
        (Budget(epochs=2), 100, 32, (8, 32, 0.32)),
        (Budget(epochs=1), 96, 32, (3, 32, 1 / 3)),
        (Budget(epochs=3), 100, 0, (3, 100, 1.0)),
        (Budget(epochs=3), 20, 32, (3, 20, 1.0)),
        (Budget(steps=7), 100, 32, (7, 32, 0.32)),
        (Budget(epochs=1, steps=7), 100, 32, (4, 32, 0.32)),
        (Budget(examples=100), 100, 32, (4, 32, 0.32)),
        (Budget(epochs=1), 0, 32, (0, 0, 1.0)),
        (Budget(), 10, 2, (0, 2, 0.2)),
    ],
)
def test_steps_follow_from_public_numbers(budget: Budget, n: int, batch_size: int, expected: tuple[Any, ...]) -> None:
    assert schedule(budget, n, batch_size) == expected


def test_each_row_is_drawn_by_itself() -> None:
    """10,000 draws of 12 rows at q = 1/3: counts of rows, of pairs, and of batch sizes, by chi-square at one in a million."""
    one = poisson(12, 4, budget=Budget(steps=10_000))
    drawn = np.zeros((one.steps, 12))
    for step in range(one.steps):
        drawn[step, one.chosen(step).numpy()] = 1
    q, n = 1 / 3, one.steps
    z = (drawn.sum(0) - n * q) / math.sqrt(n * q * (1 - q))
    assert stats.chi2.sf((z**2).sum(), 12) > 1e-6
    pairs = (drawn.T @ drawn)[np.triu_indices(12, 1)]
    assert abs((pairs - n * q**2) / math.sqrt(n * q**2 * (1 - q**2))).max() < 5.5
    counts = np.bincount(drawn.sum(1).astype(int), minlength=13)
    expected = n * stats.binom.pmf(np.arange(13), 12, q)
    low, high = slice(0, 9), slice(9, None)  # the rare sizes together
    seen, due = [*counts[low], counts[high].sum()], [*expected[low], expected[high].sum()]
    assert stats.chisquare(seen, due).pvalue > 1e-6


def test_draws_differ_by_all_that_names_them() -> None:
    base = poisson(64, 16)
    found = [base.chosen(0), base.chosen(1)]
    others: list[dict[str, Any]] = [{"client": 1}, {"round": 2}, {"visit": 1}, {"seed": 4}]
    found += [poisson(64, 16, **more).chosen(0) for more in others]
    assert len({tuple(x.tolist()) for x in found}) == len(found)
    assert torch.equal(poisson(64, 16).chosen(0), base.chosen(0))


def test_without_a_seed_the_operating_system_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under "os" rows and noise come from a fresh secret key each, and from nothing else."""
    asked: list[int] = []

    def key() -> bytes:
        asked.append(1)
        return bytes(32)

    one = poisson(64, 16, source="os", step_noise=1.0, numbers=5)
    assert not torch.equal(one.chosen(0), one.chosen(0))
    assert not torch.equal(one.beside(0)[NOISE], one.beside(0)[NOISE])
    monkeypatch.setattr(secret, "key", key)
    assert torch.equal(one.chosen(0), one.chosen(1))  # the same key, the same draw: nothing else enters
    assert torch.equal(one.beside(0)[NOISE], one.beside(1)[NOISE])
    assert len(asked) == 4


def test_batches_are_padded_to_whole_passes() -> None:
    held, n = rows_of(2, 50), 50
    sampling = poisson(n, 8, budget=Budget(steps=400))
    found = list(batches(held, Budget(steps=400), Draw(1, 1, 0, 8, sampling=sampling)))
    sizes = {len(b.x) for b in found}
    assert sizes == {sampling.room, 2 * sampling.room}  # a long batch takes two passes
    for step, batch in enumerate(found):
        index = sampling.chosen(step)
        assert batch.weight is not None
        assert int(batch.weight.sum()) == len(index) == int((batch.weight > 0).sum())
        assert torch.equal(batch.x[: len(index)], held.x[index])
        assert not batch.x[len(index) :].any()


def test_every_row_is_in_each_batch_where_batches_are_whole() -> None:
    held = rows_of(2, 50)
    sampling = poisson(50, 0, budget=Budget(steps=2))
    for batch in batches(held, Budget(steps=2), Draw(1, 1, 0, 0, sampling=sampling)):
        assert torch.equal(batch.x, held.x)
        assert batch.weight is not None
        assert batch.weight.all()


# ---------------------------------------------------------------------- the noise, and the mean


@pytest.mark.parametrize("source", ["os", "seed"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_noise_of_a_step_by_chi_square(dtype: torch.dtype, source: Any) -> None:
    """20,001 numbers of a step whose rows add nothing: mean, variance and cells of N(0, (z S / B)^2), and the grid of releases."""
    std, size, d = 1.3 * S, 16, 20_001
    params = Tree({"w": torch.zeros(d - 1, dtype=dtype), "b": torch.zeros(1, dtype=dtype)})
    one = Poisson(Doing(0, 1, "train", 0, 64), Budget(epochs=1), size, params, std, Noise(source, 3))
    batch = Batch(torch.zeros(0), torch.zeros(0), None, one.beside(0))
    loss, g = noisy_gradient(lambda b, c: (torch.zeros(()), params.zeros()), params, batch, clip=S, std=std)
    assert not loss
    x = torch.cat([g["w"], g["b"]]).double().numpy() * size / std
    assert abs(x.mean()) < 5.5 / math.sqrt(d)
    assert 1e-6 < stats.chi2.sf((x**2).sum(), d) < 1 - 1e-6
    edges = stats.norm.ppf(np.arange(1, 40) / 40)
    assert stats.chisquare(np.bincount(np.searchsorted(edges, x), minlength=40)).pvalue > 1e-6
    assert 3.5 < abs(x).max() < 7.0
    half = d // 2
    assert abs(np.corrcoef(x[:half], x[half : 2 * half])[0, 1]) < 5.5 / math.sqrt(half)  # the two of a pair
    grid = math.ldexp(1.0, math.floor(math.log2(std)) - 20) / size
    assert np.abs(g["w"].double().numpy() / grid - np.round(g["w"].double().numpy() / grid)).max() < 1e-3


def test_the_fast_noise_has_the_tails_of_the_slow() -> None:
    """Two million draws: beyond 3, 4 and 5 standard deviations as many as there should be, on both sides."""
    x = gaussian32(2_000_001, 1.0, Noise("seed", 11), "tails")
    assert x.dtype == torch.float32
    assert x.isfinite().all()
    for far in (3.0, 4.0, 5.0):
        due = len(x) * stats.norm.sf(far)
        for seen in (int((x > far).sum()), int((x < -far).sum())):
            assert abs(seen - due) < 5.5 * math.sqrt(due) + 1
    for n in (0, 1, 2, 3, 4, 5, 7):
        assert len(gaussian32(n, 1.0, Noise("os"))) == n


def test_the_gradient_is_unbiased_without_clipping() -> None:
    """Over 1,200 batches the mean gradient is that of all rows: the denominator is B, not the number drawn."""
    network, params, _ = problem(chain, 9)
    held = rows_of(3, 9)
    layers, steps = dense_layers(network.module), 1200
    sampling = poisson(9, 3, budget=Budget(steps=steps), numbers=sum(x.numel() for x in params.values()))
    found = []
    for batch in batches(held, Budget(steps=steps), Draw(1, 1, 0, 3, sampling=sampling)):
        _, g = noisy_gradient(
            lambda b, c: clipped_sum(layers, objective_of(network), params, b, c), params, batch, clip=1e9, std=0.0
        )
        found.append(torch.cat([x.flatten() for x in g.values()]))
    _, whole = gradient(objective_of(network), with_grad(params), Batch(held.x, held.y))
    each = torch.stack(found)
    error = each.mean(0) - torch.cat([x.flatten() for x in whole.values()])
    assert (error.abs() <= 5.5 * each.std(0) / math.sqrt(steps) + 1e-9).all()


def test_a_loss_with_weights_and_one_row_of_zeros() -> None:
    """The library's own loss on a batch that only pads: nothing, and no NaN."""
    network = Network(module(chain), make_loss("cross_entropy", "classes", 3).mean)
    params = network.initial()[0]
    batch = Batch(torch.zeros(4, 4, dtype=torch.float64), torch.zeros(4, dtype=torch.long), torch.zeros(4).double())
    for layers in (dense_layers(network.module), None):
        loss, total = clipped_sum(layers, objective_of(network), params, batch, S)
        assert float(loss) == 0.0
        assert length_of(total) == 0.0

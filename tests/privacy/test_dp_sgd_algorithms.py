"""DP-SGD for every algorithm that it admits: nothing but noised gradients of the rows leaves a client, and engines agree."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from fedatlas.algorithm import Batch
from fedatlas.algorithms import ALGORITHMS
from fedatlas.data.batches import Rows
from fedatlas.engine import loop, private_steps
from fedatlas.engine.fast import FastRunner
from fedatlas.engine.gradient import gradient, with_grad
from fedatlas.engine.job import Bench
from fedatlas.engine.loop import SerialExecutor
from fedatlas.privacy.dp_sgd.poisson import Poisson
from fedatlas.privacy.mechanism import Noise
from fedatlas.privacy.mechanisms import dp_sgd
from fedatlas.privacy.protocol import Doing
from fedatlas.tree import Tree
from federation import (
    brief,
    federation,
    play,
    rows,
)
from protected import DRAWN, length_of, protected

ADMITTED = sorted(name for name in ALGORITHMS if not dp_sgd(clip=1.0).limits.why_not(brief(name)))
S = 0.3


Calls = list[tuple[str, Tree]]


def played(name: str, held: Mapping[int, Rows], executor: Any = SerialExecutor, **keys: Any) -> tuple[Any, list[Any]]:
    """The server after three rounds, and all that clients sent."""
    mechanism = dp_sgd(**{"clip": S, "noise_multiplier": 0.0, "noise": "seed", **keys})
    fed, host = protected(name, mechanism, held=dict(held), executor=executor)
    sent: list[Any] = []

    def note(request: Any, update: Any) -> Any:
        sent.append((request.client, request.what, update))
        return update

    host.alter = note
    return play(fed, DRAWN, host=host)[0], sent


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(same, a, b))
    return torch.equal(a, b) if isinstance(a, Tensor) else bool(a == b)


@pytest.mark.parametrize("name", ADMITTED)
def test_rows_reach_others_through_the_noised_gradient_only(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With gradients that say nothing of rows, all that clients send is the same to the bit, whatever rows they hold."""

    def blind(objective: Any, params: Tree, batch: Batch) -> tuple[Tensor, Tree]:
        return objective(params, batch._replace(extra={})).detach(), params.map(lambda x: 0.1 * torch.cos(x.detach()))

    monkeypatch.setattr(loop, "gradient_of", lambda how, word, *rest: gradient if word is None else blind)
    held = rows()
    other = {k: Rows(7.0 - 3.0 * r.x.flip(0), (r.y + 1) % 3) for k, r in held.items()}
    one, two = played(name, held), played(name, other)
    assert one[1]
    assert same(one[1], two[1])
    assert same(one[0], two[0])


@pytest.mark.parametrize("name", ADMITTED)
def test_one_record_moves_a_step_by_the_bound_at_most(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same draws, one record's gradients counting as zero: the first sum that it is part of moves by S at most, nothing before."""
    sums: list[Tree] = []
    plain = private_steps.clipped_sum
    gone: list[Tensor] = []

    def noting(layers: Any, objective: Any, params: Tree, batch: Batch, clip: float) -> Any:
        assert batch.weight is not None
        for one in gone:
            batch = batch._replace(weight=torch.where((batch.x == one).all(1), 0.0, batch.weight))
        found = plain(layers, objective, params, batch, clip)
        sums.append(found[1].clone())  # the noise is added in place
        return found

    monkeypatch.setattr(private_steps, "clipped_sum", noting)
    held, moved = rows(), []
    played(name, held)
    before = list(sums)
    for one in held[0].x[:4]:
        gone[:] = [one]
        sums.clear()
        played(name, held)
        apart = [length_of(a - b) for a, b in zip(before, sums, strict=True)]
        first = next((d for d in apart if d), 0.0)
        assert first <= S
        moved.append(first)
    assert max(moved) > 0.3 * S


@pytest.mark.parametrize("name", ADMITTED)
def test_engines_agree(name: str) -> None:
    def fast(step: str) -> Callable[[Bench], SerialExecutor]:
        return lambda bench: SerialExecutor(bench, FastRunner(bench, [5, 12, 9, 21, 7], step, "float32"))

    keys = {"noise_multiplier": 0.5}
    expected = played(name, rows(), **keys)[0]["model"]
    for step in ("tuned", "program"):
        found = played(name, rows(), fast(step), **keys)[0]["model"]
        assert length_of(found - expected) <= 1e-9 * length_of(expected)


def test_without_noise_and_clipping_it_is_sgd_on_the_same_batches() -> None:
    """Plain SGD by hand on the batches that were drawn, the sum over B: the same model."""
    held = rows()
    found = played("fedavg", held, clip=1e9)[0]["model"]
    fed, _ = protected("fedavg", dp_sgd(clip=1e9, noise="seed"), held=dict(held))
    local, model = fed.bench.local, fed.params
    for number, cohort in enumerate(DRAWN, 1):
        ends = {}
        for k in cohort:
            params, n = model, held[k].n
            doing = Doing(k, number, "train", 0, n)
            sampling = Poisson(doing, local.budget, local.batch_size, params, 0.0, Noise("seed", 5))
            for step in range(sampling.steps):
                index = sampling.chosen(step)
                if len(index):
                    batch = Batch(held[k].x[index], held[k].y[index])
                    _, g = gradient(fed.bench.network.loss, with_grad(params), batch)
                    params = params - 0.1 * (len(index) / sampling.size) * g
            ends[k] = params
        n = sum(held[k].n for k in cohort)
        model = Tree({name: sum(held[k].n / n * ends[k][name] for k in cohort) for name in model})
    assert length_of(found - model) <= 1e-9 * length_of(model)


@pytest.mark.parametrize("name", ADMITTED)
def test_whole_batches_without_noise_and_clipping_are_the_algorithm(name: str) -> None:
    """With all rows in every step, a bound that nothing reaches and no noise, a run is the one without protection, state by state."""
    whole: dict[str, Any] = {"held": rows(), "batch_size": 0}
    fed, host = protected(name, dp_sgd(clip=1e9, noise_multiplier=0.0, noise="seed"), **whole)
    found = play(fed, DRAWN, host=host)[0]
    expected = play(federation(brief(name), **whole), DRAWN)[0]
    for part, tree in expected.items():
        if isinstance(tree, Tree):
            assert length_of(found[part] - tree) <= 1e-9 * max(length_of(tree), 1.0), part


# ---------------------------------------------------------------------- a trap in an objective

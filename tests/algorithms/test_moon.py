"""MOON where its mathematics says what must hold (H12), and the frozen networks it compares with."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import nn

from configured import set_up
from fedatlas.algorithm import Batch
from fedatlas.algorithms import ALGORITHMS
from fedatlas.algorithms.moon import contrast
from fedatlas.config import parse
from fedatlas.engine.fast import FastRunner
from fedatlas.engine.gradient import with_grad
from fedatlas.engine.job import Bench
from fedatlas.engine.loop import SerialExecutor
from fedatlas.engine.model import Network
from fedatlas.engine.program import StepProgram
from fedatlas.errors import ConfigError
from fedatlas.models import MODELS
from fedatlas.models.dropout import Dropout
from federation import SIZES, cohorts, cross_entropy, everyone, federation, gap, module, play, rows, same, sgd

HEADED = partial(MODELS["mlp"], (4,), 3, hidden=(6,), projection=5)
"""A network with a projection head: z has 5 numbers."""


def random(*shape: int, key: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(key))


@pytest.mark.parametrize("optimizer", [sgd(), sgd(momentum=0.9)])
def test_without_mu_it_is_fedavg(optimizer: object) -> None:
    """On the same network with its projection head, bit for bit."""
    a, _ = play(federation(ALGORITHMS["moon"](mu=0.0), make=HEADED, optimizer=optimizer), 5)
    b, _ = play(federation(ALGORITHMS["fedavg"](), make=HEADED, optimizer=optimizer), 5)
    assert same(a["model"], b["model"])


def test_the_first_participation_has_no_term() -> None:
    """Clients that were never drawn before do FedAvg's work, bit for bit, training loss included; the second time they do not."""
    moon, fedavg = (federation(ALGORITHMS[name](), make=HEADED) for name in ("moon", "fedavg"))
    (a, ha), (b, hb) = (play(f, [(0, 1), (2, 3), (4,)]) for f in (moon, fedavg))
    assert same(a["model"], b["model"])
    assert ha.view.work == hb.view.work
    assert not same(play(moon, [(0, 1), (0, 1)])[0]["model"], play(fedavg, [(0, 1), (0, 1)])[0]["model"])


def test_a_client_keeps_the_model_it_returned() -> None:
    fed = federation(ALGORITHMS["moon"](), make=HEADED)
    server, host = play(fed, [(3,)])
    state = host.states.get(3) or {}
    assert same(state["previous"], server["model"])  # the mean of one model
    assert float(state["seen"]) == 1


@pytest.mark.parametrize("tau", [0.5, 1e12])
def test_the_term_is_log_two_where_it_cannot_tell(tau: float) -> None:
    """w_prev = w_t: log 2 for every row and no gradient, wherever w is. tau to infinity: log 2 again."""
    z, z_g = random(7, 5).requires_grad_(), random(7, 5, key=1)
    z_p = z_g if tau < 1 else random(7, 5, key=2)
    loss = contrast(z, z_g, z_p, tau)
    assert loss.tolist() == pytest.approx([math.log(2)] * 7, abs=1e-11)
    (gradient,) = torch.autograd.grad(loss.sum(), z)
    assert float(gradient.abs().max()) < 1e-11


def test_the_term_pulls_to_the_global_features_and_from_the_previous_ones() -> None:
    z, z_g, z_p = random(7, 5).requires_grad_(), random(7, 5, key=1), random(7, 5, key=2)
    (gradient,) = torch.autograd.grad(contrast(z, z_g, z_p, 0.5).sum(), z)
    moved = z.detach() - 0.01 * gradient
    cosine = partial(torch.nn.functional.cosine_similarity, dim=1)
    assert bool((cosine(moved, z_g) - cosine(moved, z_p) > cosine(z, z_g) - cosine(z, z_p)).all())


def test_features_of_nothing_do_not_divide_by_zero() -> None:
    """A row whose ReLUs are all off (C15)."""
    z = torch.zeros(2, 5, dtype=torch.float64, requires_grad=True)
    loss = contrast(z, random(2, 5), random(2, 5, key=1), 0.5)
    (gradient,) = torch.autograd.grad(loss.sum(), z)
    assert bool(torch.isfinite(loss).all())
    assert bool(torch.isfinite(gradient).all())


class Fickle(nn.Module):
    """Dropout and batch norm: what evaluation mode is about."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), Dropout(0.5))
        self.head = nn.Linear(6, 3)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x))


def test_frozen_features_are_those_of_evaluation() -> None:
    """No dropout, the running statistics of the batch's buffers, which stay as they are, no gradient; then training goes on."""
    network = Network(module(Fickle), cross_entropy)
    network.module.train()
    params, buffers = network.initial()
    buffers["body.1.running_mean"] += 0.5
    mask = 2 * (random(8, 6) > 0).double()
    batch = Batch(
        random(8, 4, key=3), torch.zeros(8, dtype=torch.int64), None, {**buffers.clone(), "body.3.mask": mask}
    )
    leaves = with_grad(params)
    z = network.features(leaves, batch, frozen=True)
    x = batch.x @ params["body.0.weight"].T + params["body.0.bias"]
    normal = (x - buffers["body.1.running_mean"]) / (buffers["body.1.running_var"] + 1e-5).sqrt()
    assert gap(z, torch.tanh(normal * params["body.1.weight"] + params["body.1.bias"])) < 1e-14
    assert not z.requires_grad
    assert all(torch.equal(batch.extra[name], x) for name, x in buffers.items())
    assert all(part.training for part in network.module.modules())
    assert gap(network.features(leaves, batch).detach(), z) > 0.1


def test_loss_and_features_are_one_pass() -> None:
    network = Network(module(HEADED), cross_entropy)
    params, _ = network.initial()
    batch = Batch(random(8, 4), torch.arange(8) % 3)
    loss, z = network.loss_and_features(params, batch)
    assert torch.equal(loss, network.loss(params, batch))
    assert torch.equal(z, network.features(params, batch))
    assert z.shape == (8, 5)


@pytest.mark.parametrize("step", ["program", "tuned"])
def test_engines_agree_with_batch_norm(step: str) -> None:
    """Who reads the running statistics when is the same in the loop and in the derived step."""
    make = partial(MODELS["mlp"], (4,), 3, hidden=(6,), norm="batch", projection=5)
    held = {k: r for k, r in rows().items() if r.n % 6 != 1}  # batch norm has no variance of one row
    fed = federation(ALGORITHMS["moon"](), held, make=make, batch_size=6)
    plan = [(0, 1, 2), (1, 2, 3), (0, 2, 3)]
    oracle, _ = play(fed, plan, lr=0.05)
    quick, _ = play(
        fed, plan, lr=0.05, make=lambda bench: SerialExecutor(bench, FastRunner(bench, SIZES, step, "float64"))
    )
    assert gap(oracle, quick) < 1e-9


@pytest.mark.parametrize("optimizer", [sgd(), sgd(momentum=0.9)])
def test_the_step_of_a_convolutional_network_is_derived_and_agrees(optimizer: object) -> None:
    """Also where the client has been seen before, which the check of a derived step does not know."""
    make = partial(MODELS["cnn1"], (1, 12, 12), 3, projection=5)
    held = {k: r._replace(x=random(r.n, 1, 12, 12, key=k)) for k, r in rows().items()}
    fed = federation(ALGORITHMS["moon"](mu=5.0), held, make=make, optimizer=optimizer)
    runners = []

    def quick(bench: Bench) -> SerialExecutor:
        runners.append(FastRunner(bench, SIZES, "program", "float64"))
        return SerialExecutor(bench, runners[-1])

    oracle, _ = play(fed, lr=0.05)
    program, _ = play(fed, make=quick, lr=0.05)
    assert gap(oracle, program) < 1e-10
    assert isinstance(runners[0].steps["train", 4], StepProgram)


def test_a_step_costs_three_forward_passes_and_one_backward() -> None:
    """Five forward passes an example where FedAvg has three (C13)."""
    for name, passes in (("moon", 5), ("fedavg", 3)):
        fed = federation(ALGORITHMS[name]())
        _, host = play(fed, everyone(fed, 1))
        assert host.view.passes == passes * 2 * sum(SIZES)


def test_up_and_down_go_models_alone() -> None:
    """1M down and 1M up, like FedAvg; the previous model stays where it is."""
    costs = [play(federation(ALGORITHMS[name]()), cohorts(2))[1].cost for name in ("moon", "fedavg")]
    assert costs[0].bytes_up == costs[1].bytes_up
    assert 0 <= costs[0].bytes_down - costs[1].bytes_down <= 3 * 128  # mu and temperature


def test_a_network_without_features_is_refused() -> None:
    plain = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    config = parse({"algorithm": {"name": "moon"}})
    with pytest.raises(
        ConfigError, match=r"'moon' works on features, but the model Sequential needs a method 'features'"
    ):
        set_up(config, 1, plain)
    network = Network(plain, cross_entropy)
    with pytest.raises(ConfigError, match="add both"):
        network.features(network.initial()[0], Batch(random(2, 64).float(), torch.zeros(2)))

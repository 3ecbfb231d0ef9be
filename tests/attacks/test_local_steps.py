"""The gradients behind an update: those of autograd, for every setting of the local optimizer, of one step and of several (A7, A8, A10)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from configured import set_up
from fedatlas import Experiment, run
from fedatlas.attacks.local_steps import Parts, parts_in, parts_of, steps_of
from fedatlas.attacks.property_inference import change, local_training
from fedatlas.attacks.roles import ViewRole
from fedatlas.attacks.shadow_models import trained
from fedatlas.config.experiment import LocalConfig
from fedatlas.leakage.view_gradients import read_gradients
from fedatlas.models import make_model
from fedatlas.record.observed import RoleView
from fedatlas.setup.truth import truth_of
from fedatlas.tree import Tree

OPTIMIZERS: list[dict[str, Any]] = [
    {},
    {"momentum": 0.9},
    {"momentum": 0.9, "nesterov": True},
    {"weight_decay": 0.1},
    {"momentum": 0.5, "weight_decay": 0.1},
    {"momentum": 0.5, "nesterov": True, "weight_decay": 0.1},
]
ONE_STEP: dict[str, Any] = {
    "rounds": 2,
    "data": {"name": "digits", "limit": 12, "scale": "federated"},
    "partition": {"name": "iid", "clients": 4},
    "model": {"hidden": [6]},
    "algorithm": {"name": "fedavg", "weights": "uniform"},
    "observe": {"roles": ["server", "outsider"]},
}
named = pytest.mark.parametrize("local", OPTIMIZERS, ids=["-".join(one) or "plain" for one in OPTIMIZERS])


def of_rows(config: Any, start: Tree, truth: Any, client: int) -> dict[str, Tensor]:
    """Return the gradient of a client's rows at a model, by autograd."""
    module, rows = make_model(config.model, (1, 8, 8), 10, 1), truth.rows(client)
    module.load_state_dict(start)
    loss = F.cross_entropy(module(rows.x), rows.y)
    found = torch.autograd.grad(loss, list(module.parameters()))
    return {name: g for (name, _), g in zip(module.named_parameters(), found, strict=True)}


@named
@pytest.mark.parametrize("algorithm", ["fedavg", "fedavgm"])
def test_the_gradient_of_one_step_is_that_of_autograd(tmp_path: Path, local: dict[str, Any], algorithm: str) -> None:
    """Of each client from the server's view, and their mean from an outsider's, also under a server's rate other than 1."""
    tables = {**ONE_STEP, "local": {"steps": 1, "batch_size": 0, "lr": 1.0, **local}}
    if algorithm == "fedavgm":
        tables["algorithm"] = {"name": "fedavgm", "server_lr": 0.5, "weights": "uniform"}
    experiment = Experiment.of(**tables)
    run(experiment, out=tmp_path / "run", baselines=False)
    config, truth = experiment.config, truth_of(set_up(experiment.config, 1))
    seen = read_gradients(RoleView(tmp_path / "run", ViewRole("server")), config, 0)
    (mean,) = [read_gradients(RoleView(tmp_path / "run", ViewRole("outsider")), config, 0)]
    wanted = [of_rows(config, seen.params, truth, k) for k in seen.clients]
    for name, g in seen.gradients.items():
        want = torch.stack([one[name] for one in wanted])
        torch.testing.assert_close(g, want, rtol=0, atol=1e-6)
        torch.testing.assert_close(mean.gradients[name][0], want.mean(0), rtol=0, atol=1e-6)


@named
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_the_weights_of_gradients_and_of_the_first_model_are_those_of_torch(local: dict[str, Any], steps: int) -> None:
    """With one gradient g in each step, whatever the model, torch's change is lr (a w + b g) exactly."""
    rng = torch.Generator().manual_seed(1)
    start, g = torch.randn(2, 5, dtype=torch.float64, generator=rng)
    w = start.clone().requires_grad_()
    optimizer = torch.optim.SGD([w], lr=0.3, **local)
    for _ in range(steps):
        w.grad = g.clone()
        optimizer.step()
    how = LocalConfig(steps=steps, lr=0.3, **local)
    made = parts_in(how, 0.3, [4])
    assert made == parts_of(steps, 0.3, how.momentum, how.weight_decay, how.nesterov)
    found = made.gradient(Tree(w=(start - w.detach()) / 0.3), Tree(w=start))
    torch.testing.assert_close(found["w"], g, rtol=1e-12, atol=1e-12)


def test_the_mean_of_a_round_weighs_clients_by_their_rows() -> None:
    """Two rows take one step, and six take three: (2 x 1 + 6 x 3) / 8 gradients; without rows it is one step."""
    local = LocalConfig(epochs=1, batch_size=2)
    assert parts_in(local, 0.1, [2, 6]) == Parts(0.0, 2.5)
    assert parts_in(local, 0.1) == Parts(0.0, 1.0)


def test_a_short_last_batch_counts_unless_it_joins_the_one_before() -> None:
    assert steps_of(LocalConfig(epochs=2, batch_size=2), 5) == 6
    assert steps_of(LocalConfig(epochs=2, batch_size=2, last_batch="merge"), 5) == 4
    assert steps_of(LocalConfig(epochs=2, batch_size=0), 5) == 2


@named
def test_a_simulated_update_is_read_as_the_view_reads_a_real_one(local: dict[str, Any]) -> None:
    """Property inference trains as a client would, on one batch: its update is the gradient, by the same optimizer."""
    how = LocalConfig(steps=1, batch_size=0, lr=1.0, **local)
    before, rng = torch.nn.Linear(5, 3), torch.Generator().manual_seed(1)
    x, y = torch.randn(8, 5, generator=rng), torch.randint(3, (8,), generator=rng)
    used, training = local_training(how, 8)
    found = change(before, trained(before, x[:used], y[:used], training, rng), how)
    wanted = torch.autograd.grad(F.cross_entropy(before(x), y), list(before.parameters()))
    for (name, _), g in zip(before.named_parameters(), wanted, strict=True):
        torch.testing.assert_close(found[name], g, rtol=0, atol=1e-6)

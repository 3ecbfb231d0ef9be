"""A client's whole epoch inverted (A10's multi-step form): its steps unrolled, its rows matched, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from configured import set_up
from fedatlas import Experiment, attack, run
from fedatlas.algorithm import Task, plain_loss, return_model, start_from_model
from fedatlas.algorithms import ALGORITHMS
from fedatlas.attacks.gradient_matching import LocalSteps, Problem, cosine_distance, unfolded
from fedatlas.attacks.inversion import _chance, assigned, psnr
from fedatlas.attacks.inverting_gradients import MOST, PLAIN, inverting_gradients, places_of
from fedatlas.attacks.local_steps import parts_of
from fedatlas.attacks.roles import ViewRole
from fedatlas.attacks.view_attack import Truth
from fedatlas.data.batches import Rows
from fedatlas.errors import ConfigError
from fedatlas.leakage.attacker_process import carry_out
from fedatlas.leakage.view_gradients import read_gradients
from fedatlas.models import MODELS, init_model
from fedatlas.record.observed import RoleView
from fedatlas.setup.truth import truth_of
from fedatlas.tree import Tree

SIDE = 8
EPOCH: dict[str, Any] = {
    "rounds": 1,
    "data": {"name": "digits", "limit": 8, "scale": "federated"},
    "partition": {"name": "iid", "clients": 4},
    "model": {"name": "lenet_sigmoid"},
    "local": {"epochs": 1, "batch_size": 1, "lr": 0.1},
    "observe": {"roles": ["server"]},
}


@pytest.fixture(autouse=True)
def _same_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedatlas.leakage.attacker_folder.work_apart", carry_out)


def network() -> nn.Module:
    return init_model(MODELS["lenet_sigmoid"], (1, SIDE, SIDE), 10, 1)


def problem(module: nn.Module, low: Tensor, high: Tensor) -> Problem:
    params = Tree({name: x.detach().clone() for name, x in module.named_parameters()})
    return Problem(unfolded(module), F.cross_entropy, params, {}, low, high)


def test_unrolled_steps_are_those_of_plain_sgd():
    """torch.optim.SGD on the same batches, with momentum and weight decay, from the same start."""
    rng = torch.Generator().manual_seed(1)
    x, y = torch.rand(3, 1, SIDE, SIDE, generator=rng), torch.tensor([1, 4, 4])
    places = [torch.tensor([0, 2]), torch.tensor([1]), torch.tensor([2, 1])]
    made = problem(network(), torch.zeros(1, SIDE, SIDE), torch.ones(1, SIDE, SIDE))
    work = LocalSteps(tuple(one[None] for one in places), 0.1, 0.9, 0.01)
    found = work.change(made, x, y, places)
    plain = network()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    for rows in places:
        optimizer.zero_grad()
        F.cross_entropy(plain(x[rows]), y[rows]).backward()
        optimizer.step()
    parts = parts_of(3, 0.1, 0.9, 0.01)
    for name, w in plain.named_parameters():
        start = made.params[name]
        want = ((start - w.detach()) / 0.1 - parts.start * start) / parts.gradients
        torch.testing.assert_close(found[name], want, rtol=1e-4, atol=2e-5)
    assert work.rows == 3


def test_the_true_rows_cost_nothing_where_batches_are_known(tmp_path: Path):
    """Three passes over five rows in batches of two, as a run made them; rows taken in turn explain its update worse."""
    local = {"epochs": 3, "batch_size": 2, "lr": 0.1, "momentum": 0.5, "weight_decay": 0.01}
    experiment = Experiment.of(**{**EPOCH, "data": {**EPOCH["data"], "limit": 20}, "local": local})
    run(experiment, out=tmp_path / "run", baselines=False)
    config = experiment.config
    truth = truth_of(set_up(config, 1))
    seen = read_gradients(RoleView(tmp_path / "run", ViewRole("server")), config, 0, rows=truth.sizes)
    made = problem(network(), *truth.box())._replace(params=seen.params)
    for place, client in enumerate(seen.clients):
        rows, cost = truth.rows(client), {}
        pixels = (rows.x - made.low) / (made.high - made.low)
        for drawn in ((config.seed, client), None):
            steps = places_of(config.local, rows.n, drawn)
            assert [len(one) for one in steps] == [2, 2, 1] * 3
            work = LocalSteps((), 0.1, 0.5, 0.01)
            change = work.change(made, pixels, rows.y, steps)
            cost[drawn] = float(cosine_distance(change, {name: x[place] for name, x in seen.gradients.items()}))
        assert abs(cost[config.seed, client]) < 1e-5
        assert cost[None] > 1e-4


@pytest.mark.parametrize("tables", [{}, {"privacy": [{"name": "secagg"}]}], ids=["plain", "secagg"])
def test_two_steps_on_one_row_each_are_inverted_and_masks_leave_the_placebo(tmp_path: Path, tables: dict[str, Any]):
    run(Experiment.of(**{**EPOCH, **tables}), out=tmp_path / "run", baselines=False)
    keys = {"iterations": 5 if tables else 120, "labels": "known", "batches": "known"}
    found = attack(tmp_path / "run", "inverting_gradients", **keys)
    assert found["targets"] == 4
    leak = found["leaks"]["psnr"]
    if tables:
        assert leak["value"] <= 1
        return
    assert found["metrics"]["psnr"]["low"] > 30 > found["metrics"]["psnr"]["placebo"]
    assert leak["low"] > 20
    with np.load(tmp_path / "run" / "attacks" / "inverting_gradients" / "found.npz") as arrays:
        assert arrays["found"].shape == arrays["original"].shape == (8, 1, SIDE, SIDE)
        assert arrays["client"].tolist() == [k for k in dict.fromkeys(arrays["client"].tolist()) for _ in range(2)]
        assert (arrays["said"] == arrays["label"]).all()
        assert np.array_equal(arrays["psnr"] > 20, ((arrays["found"] - arrays["original"]) ** 2).mean((1, 2, 3)) < 0.01)


def test_one_step_on_several_rows_with_the_labels_counted(tmp_path: Path):
    local = {"steps": 1, "batch_size": 0, "lr": 0.1}
    experiment = Experiment.of(**{**EPOCH, "data": {**EPOCH["data"], "limit": 16}, "local": local})
    run(experiment, out=tmp_path / "run", baselines=False)
    found = attack(tmp_path / "run", "inverting_gradients", iterations=100, targets=2)
    assert found["metrics"]["label"]["value"] == 1
    assert found["leaks"]["psnr"]["value"] > 5  # two targets have no useful interval


def test_rows_are_matched_to_the_largest_sum_and_none_twice():
    rows = torch.linspace(0, 1, 4).view(4, 1, 1, 1).expand(4, 1, 2, 2)
    found = torch.stack([rows[2] + 0.01, rows[0] + 0.02, rows[2] - 0.2])
    score, place = assigned(found, rows)
    assert place.tolist() == [2, 0, 1]  # the third is nearer to row 2, which the first takes
    torch.testing.assert_close(score, psnr(found, rows[place]))


def test_the_placebo_of_several_rows_is_matched_too():
    """Pictures of the same labels in another order score what they would at best; labels that nobody else has give no figure."""
    white, black, grey = (torch.full((1, 2, 2), value) for value in (1.0, 0.0, 0.5))
    held = {
        0: Rows(torch.stack([grey, grey]), torch.tensor([3, 7])),
        1: Rows(torch.stack([white, black]), torch.tensor([3, 7])),
    }
    box = (torch.tensor(0.0), torch.tensor(1.0))
    truth = Truth(
        1, 10, {0: 2, 1: 2}, {}, held.__getitem__, held.__getitem__, lambda label: grey[None][:0], lambda: box
    )
    found = torch.stack([black, white])
    assert float(_chance(found, 0, torch.tensor([3, 7]), truth).mean()) == pytest.approx(100.0)
    assert torch.isnan(_chance(found, 0, torch.tensor([3, 5]), truth))


@pytest.mark.parametrize(
    ("tables", "rows", "role", "words"),
    [
        ({}, [2], "outsider", 'set role = "server"'),
        ({}, [2], "successor:1", 'set role = "server"'),
        ({"local": {"steps": 1, "optimizer": "adam"}}, [1], "server", 'set optimizer = "sgd" under'),
        ({"algorithm": {"name": "fedprox", "mu": 0.1}}, [2], "server", "'fedprox' trains in another way: use one of fedsgd"),
        ({"local": {"epochs": 2, "optimizer": "adam"}}, (), "server", "remove optimizer, nesterov and clip"),
        ({"local": {"epochs": 1, "clip": 1.0}}, [2], "server", "remove optimizer, nesterov and clip"),
        ({"local": {"epochs": 17}}, (), "server", "unrolls at most 16 steps, and a client here takes 17"),
        ({"local": {"epochs": 2, "batch_size": 1}}, [3, 9], "server", "a client here takes 18"),
        ({"local": {"epochs": 1, "batch_size": 0}}, [MOST, MOST + 1], "server", "at most 16 rows of a client, and one here has 17"),
        ({"local": {"epochs": 1, "batch_size": 0}}, [MOST], "server", ""),
        ({"algorithm": {"name": "fedprox", "mu": 0.1}, "local": {"steps": 1}}, [1], "outsider", ""),  # a gradient
    ],
)  # fmt: skip
def test_what_cannot_be_unrolled_is_refused_in_a_sentence(
    tables: dict[str, Any], rows: Any, role: str, words: str
) -> None:
    config = Experiment.of(**{**EPOCH, "rounds": 2, **tables}).config
    said = inverting_gradients(role=role).refuses_run(config, rows)
    assert words in said
    assert bool(said) == bool(words)
    assert said.count(". ") == 0


def test_batch_norm_is_not_unrolled(tmp_path: Path):
    model = {"name": "lenet_sigmoid", "norm": "batch"}
    run(
        Experiment.of(**{**EPOCH, "local": {"epochs": 1, "batch_size": 2}, "model": model}),
        out=tmp_path / "r",
        baselines=False,
    )
    with pytest.raises(ConfigError, match=r"unrolls no batch norm.*choose another model.norm"):
        attack(tmp_path / "r", "inverting_gradients")


def test_plain_algorithms_are_those_whose_clients_only_train():
    """From the message's model, by the plain loss; chains, graphs and personal models have no such update."""
    for name in PLAIN:
        made = ALGORITHMS[name]()
        task: Task = made.tasks["train"]
        assert (task.objective, task.direction, task.survey) == (plain_loss, None, None), name
        assert (task.start, task.finish) == (start_from_model, return_model), name
        assert made.groups is None, name
        assert not made.serverless, name

"""Label inference: exact where it must be, on whole runs beside its placebo, and refused where an update is no gradient (A7)."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedatlas
from fedatlas import Experiment, attack, run
from fedatlas.attacks.label_inference import last_gradients, scored, scored_alone, whole_counts
from fedatlas.attacks.local_steps import parts_in
from fedatlas.config.experiment import LocalConfig
from fedatlas.errors import ConfigError, DataError
from fedatlas.leakage.attacker_process import carry_out
from fedatlas.tree import Tree
from reports import Page

CLASSES, WIDE = 5, 12


def network(seed: int, bias: bool) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(WIDE, 16), nn.ReLU(), nn.Linear(16, CLASSES, bias=bias)).double()


def drawn(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(rows, WIDE, generator=rng).double(), torch.randint(CLASSES, (rows,), generator=rng)


def weights(model: nn.Module) -> Tree:
    return Tree({name: x.detach().clone() for name, x in model.named_parameters()})


def gradients(model: nn.Module, x: Tensor, y: Tensor) -> Tree:
    found = torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))
    return Tree({name: g[None] for (name, _), g in zip(model.named_parameters(), found, strict=True)})


def counted(model: nn.Module, g: Tree, x: Tensor, rows: int) -> np.ndarray:
    (one,), p = last_gradients(model, weights(model), Tree(), g, CLASSES, x)
    return whole_counts(rows * (p - one).numpy(), one.numpy(), rows)


@pytest.mark.parametrize("bias", [True, False])
def test_the_label_of_one_row_is_found_for_every_random_network(bias: bool) -> None:
    noise = drawn(50, 0)[0]
    for seed in range(100):
        model, (x, y) = network(seed, bias), drawn(1, seed + 1)
        found = counted(model, gradients(model, 5 * x, y), noise, 1)
        assert found.argmax() == int(y)
        assert found.sum() == 1


def test_with_known_probabilities_counts_are_exact() -> None:
    for seed in range(20):
        model, (x, y) = network(seed, True), drawn(32, seed)
        found = counted(model, gradients(model, x, y), x, 32)
        assert found.tolist() == np.bincount(y, minlength=CLASSES).tolist()


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_several_small_steps_count_the_same(momentum: float) -> None:
    """-change / (rate steps) is the gradient as the rate goes to 0; momentum counts each gradient again in later steps."""
    model, (x, y) = network(3, True), drawn(30, 3)
    end, rate = copy.deepcopy(model), 1e-6
    optimizer = torch.optim.SGD(end.parameters(), lr=rate, momentum=momentum)
    for _ in range(2):
        for part in torch.split(torch.arange(30), 10):
            optimizer.zero_grad()
            F.cross_entropy(end(x[part]), y[part]).backward()
            optimizer.step()
    steps = parts_in(LocalConfig(epochs=2, batch_size=10, momentum=momentum), rate, [30]).gradients
    assert (steps == 6) == (momentum == 0)
    change = {name: ((weights(model)[name] - w) / (rate * steps))[None] for name, w in weights(end).items()}
    if momentum:  # later batches are repeated less often, so only the whole is nearly right
        assert np.abs(counted(model, Tree(change), x, 30) - np.bincount(y, minlength=CLASSES)).max() <= 1
    else:
        assert counted(model, Tree(change), x, 30).tolist() == np.bincount(y, minlength=CLASSES).tolist()


@pytest.mark.parametrize("steps", [1, 4])
def test_nesterov_counts_each_gradient_once_more_by_its_momentum(steps: int) -> None:
    model, (x, y) = network(3, True), drawn(30, 3)
    end, rate, how = copy.deepcopy(model), 1e-6, {"momentum": 0.9, "nesterov": True}
    optimizer = torch.optim.SGD(end.parameters(), lr=rate, **how)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(end(x), y).backward()
        optimizer.step()
    many = parts_in(LocalConfig(steps=steps, batch_size=0, **how), rate, [30]).gradients
    change = {name: ((weights(model)[name] - w) / (rate * many))[None] for name, w in weights(end).items()}
    assert counted(model, Tree(change), x, 30).tolist() == np.bincount(y, minlength=CLASSES).tolist()


def test_counts_are_whole_and_sum_to_the_rows() -> None:
    assert whole_counts(np.array([2.4, 2.4, 0.2]), np.array([0.1, 0.2, -0.1]), 5).tolist() == [2, 2, 1]
    assert whole_counts(np.array([np.nan, 1e9, -1e9]), np.array([0.0, -1.0, 1.0]), 3).tolist() == [0, 3, 0]


def test_what_all_clients_have_in_common_is_no_leak() -> None:
    held = np.array([[4, 0], [2, 2], [0, 4]])
    same = scored(np.full((3, 2), 2), held, [0, 1, 2], 1)
    assert same.metrics["overlap"]["value"] == pytest.approx(2 / 3)
    assert same.leaks["overlap"]["value"] == pytest.approx(0)
    right = scored(held, held, [0, 1, 2], 1)
    assert right.metrics["overlap"]["value"] == 1
    assert right.metrics["overlap"]["placebo"] == pytest.approx((0.25 + 0.5 + 0.25) / 3)
    assert right.metrics["error"] == {"value": 0, "low": 0, "high": 0, "placebo": pytest.approx((3 + 2 + 3) / 3)}
    with pytest.raises(DataError, match="at least two must have trained"):
        scored(held[:1], held[:1], [0], 1)


UNEQUAL = [5] * 20 + [200] * 20


def of_nothing(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Counts said of noise, and counts held, of clients of unequal sizes and with alike classes."""
    rng = np.random.default_rng(seed)
    held, even = np.stack([rng.multinomial(n, np.full(10, 0.1)) for n in UNEQUAL]), np.full(10, 0.1)
    noise = 0.05 * rng.standard_normal((len(UNEQUAL), 10))
    return np.stack([whole_counts(n * (even - g), g, n) for n, g in zip(UNEQUAL, noise, strict=True)]), held


def test_clients_of_unequal_sizes_whose_updates_tell_nothing_show_no_leak() -> None:
    """The counts of many rows agree more with any guess than those of few: that is no leak, of one client or of all."""
    claims = leaks = alone = 0
    for seed in range(20):
        said, held = of_nothing(seed)
        leak = scored(said, held, [*range(len(UNEQUAL))], seed).leaks["overlap"]
        claims, leaks = claims + ((leak["low"] or 0) > 0), leaks + (leak["value"] or 0)
        last = scored_alone(said[-1], held[::-1], len(UNEQUAL) - 1, seed).leaks["overlap"]
        assert last["others"] == 39
        alone += (last["low"] or 0) > 0
    assert claims <= 2
    assert abs(leaks / 20) < 0.02
    assert alone <= 2


def test_counts_that_are_right_leak_at_any_size() -> None:
    held = of_nothing(1)[1]
    leak = scored(held, held, [*range(len(UNEQUAL))], 1).leaks["overlap"]
    assert leak["low"] is not None
    assert leak["low"] > 0.1


LIKE: dict[str, Any] = {
    "rounds": 2,
    "data": {"name": "digits", "limit": 400},
    "partition": {"name": "dirichlet", "clients": 10, "alpha": 0.5},
    "model": {"hidden": [16]},
    "local": {"steps": 1, "batch_size": 0, "lr": 0.1},
    "observe": {"roles": ["server", "client:0", "outsider"]},
}


@pytest.fixture(autouse=True)
def _same_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedatlas.leakage.attacker_folder.work_apart", carry_out)


def test_a_server_counts_labels_and_an_audit_says_so_where_others_learn_nothing(tmp_path: Path) -> None:
    path = run(Experiment.of(**LIKE), out=tmp_path / "run", baselines=False).path
    found = attack(path, "label_inference")
    assert found["targets"] == 10
    assert found["metrics"]["overlap"]["value"] > 0.85 > found["metrics"]["overlap"]["placebo"]
    assert found["leaks"]["overlap"]["low"] > 0.1
    for role in ("client:0", "outsider"):
        assert attack(path, "label_inference", role=role)["leaks"]["overlap"]["value"] == pytest.approx(0, abs=1e-9)
    audited = fedatlas.audit(path).record["attacks"]
    said = {one["role"]: one for one in audited if one["attack"] == "label_inference"}
    assert set(said) == {"server", "client:0", "outsider"}
    assert said["server"]["p"] < 0.05 < said["outsider"]["p"]


def test_counts_from_several_steps_are_called_approximate(tmp_path: Path) -> None:
    """Twelve rows in batches of five, twice: six steps; of a single step nothing is said."""
    local = {"epochs": 2, "batch_size": 5, "lr": 0.01}
    given = {**LIKE, "rounds": 1, "data": {"name": "digits", "limit": 48}, "partition": {"name": "iid", "clients": 4}}
    path = run(Experiment.of(**{**given, "local": local}), out=tmp_path / "run", baselines=False).path
    (note,) = attack(path, "label_inference")["notes"]
    assert note.startswith("A client took up to 6 local steps. Its update reveals the mean of their gradients")
    one = run(Experiment.of(**given), out=tmp_path / "one", baselines=False).path
    assert "notes" not in attack(one, "label_inference")


def test_masks_leave_about_the_placebos_figure(tmp_path: Path) -> None:
    """Masks are secret numbers, different in every run, so chance may put the interval on either side of 0."""
    masked = {**LIKE, "privacy": [{"name": "secagg"}], "attack": [{"name": "label_inference"}]}
    path = run(Experiment.of(**masked), out=tmp_path / "run", baselines=False).path
    leak = json.loads((path / "attacks/label_inference/attack.json").read_text())["leaks"]["overlap"]
    assert abs(leak["value"]) < 0.25
    page = Page(path / "report.html")
    assert "label_inference, from the view of the server, 10 clients: " in page.text()
    assert len(page.table("run-label_inference-counted")) == 10


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"local": {"optimizer": "adam"}}, 'optimizer = "sgd" under'),
        ({"local": {"clip": 0.5}}, "which clip shortens: set clip = 0"),
        ({"model": {"hidden": [4], "loss": "multiclass_hinge"}}, "requires model.loss = 'cross_entropy'"),
        ({"rounds": 1, "attack": [{"name": "label_inference", "role": "client:0"}]}, "set rounds = 2"),
    ],
)
def test_updates_that_are_no_gradients_are_refused(tmp_path: Path, tables: dict[str, Any], words: str) -> None:
    given = {**LIKE, "attack": [{"name": "label_inference"}], **tables}
    with pytest.raises(ConfigError, match=words):
        run(Experiment.of(**given), out=tmp_path / "run", baselines=False)

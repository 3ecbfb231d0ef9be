"""The active GAN attack: its class fake is never predicted, and its generator stays over rounds, resumes and engines (A2)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn

from fedatlas import Experiment, resume, run
from fedatlas.attacks.fake_class import FakeClass
from fedatlas.attacks.gan import KINDS, GanAttacker, GanPlan, nearest
from fedatlas.attacks.generator import LATENT, Drawer, Sought
from fedatlas.attacks.shadow_models import Training, trained
from fedatlas.config import parse
from fedatlas.data.batches import Rows
from fedatlas.engine.fake_rows import with_fakes
from fedatlas.errors import ConfigError
from fedatlas.leakage.attacker_process import carry_out
from fedatlas.models import make_loss
from fedatlas.models.losses import LossConfig
from fedatlas.rng import torch_stream
from fedatlas.setup.assembly import set_up
from fedatlas.setup.pixels import pixel_range
from fedatlas.setup.refusals import checked
from fedatlas.setup.truth import truth_of

FAKE = {"name": "cross_entropy", "fake": True}
TABLES: dict[str, Any] = {
    "rounds": 3,
    "data": {"name": "digits", "limit": 400},
    "partition": {"name": "shards", "clients": 5},
    "model": {"hidden": [16], "loss": FAKE},
    "local": {"epochs": 1, "batch_size": 16, "lr": 0.05},
}
UNIT = torch.zeros(1, 1, 1), torch.ones(1, 1, 1)


@pytest.fixture(autouse=True)
def _same_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedatlas.leakage.attacker_folder.work_apart", carry_out)


def lacking(**given: Any) -> int:
    """Return the first class of which client 0 has no row."""
    setup = set_up(checked(parse({**TABLES, **given})))
    return min(set(range(10)) - set(setup.rows(0).y.tolist()))


def hostile(**keys: Any) -> dict[str, Any]:
    return {"name": "gan_active", "clients": [0], "steps": 4, "added": 8, "target": lacking(), **keys}


def stream(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_class_fake_is_an_output_that_is_never_predicted() -> None:
    loss = make_loss(LossConfig(**FAKE), "classes", 10)
    outputs = torch.randn((50, 11), generator=stream())
    outputs[:, 10] += 100
    assert loss.width() == 11
    assert torch.equal(loss.predicting(outputs).argmax(1), outputs[:, :10].argmax(1))
    assert torch.equal(make_loss("auto", "classes", 10).predicting(outputs), outputs)
    setup = set_up(checked(parse(TABLES)))
    params = {name: x.clone() for name, x in setup.first.params.items()}
    bias = next(x for x in params.values() if x.shape == (11,))
    x, y = (getattr(setup.rows.common("test"), part) for part in ("x", "y"))
    honest = setup.models()(params, setup.first.buffers)
    before, shares = honest.scores(x, y).predicted, honest.predict(x)
    bias[10] += 100
    certain = setup.models()(params, setup.first.buffers)
    assert torch.equal(certain.scores(x, y).predicted, before)
    assert torch.equal(certain.predict(x), shares)
    assert shares.shape[1] == 10


def test_pictures_are_added_as_fake_and_the_model_stays() -> None:
    rows = Rows(torch.zeros(3, 1, 8, 8), torch.tensor([1, 2, 1]))
    made = with_fakes(rows, torch.ones(2, 1, 8, 8), 10)
    assert made.y.tolist() == [1, 2, 1, 10, 10]
    assert torch.equal(made.x[:3], rows.x)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 11)).requires_grad_(False)
    before, fakes = model[1].weight.clone(), FakeClass(3, 2, 5, (1, 8, 8), UNIT, 10)
    first = fakes.first(1)
    pictures, then = fakes.drawn(model, first, stream())
    assert pictures.shape == (5, 1, 8, 8)
    assert torch.equal(model[1].weight, before)
    twice = fakes._replace(steps=4).drawn(model, first, stream())[1]
    again = fakes.drawn(model, then, stream())[1]
    assert all(torch.equal(x, twice[name]) for name, x in again.items()), "two rounds of two steps are four steps"
    assert again["0 step"] == 4


class Bayes(nn.Module):
    """The classifier of two normal laws with the mean pictures 0.1 and 0.9, and a class fake that it never names."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        near = [-((x - mean) ** 2).flatten(1).sum(1) / 2 for mean in (0.1, 0.9)]
        return torch.stack([*near, torch.full((len(x),), -1e4)], 1)


@pytest.mark.parametrize("wanted", [0, 1])
def test_a_generator_finds_the_class_that_a_perfect_classifier_names(wanted: int) -> None:
    one = Drawer((1, 8, 8), UNIT, stream())
    one.seek(Sought((Bayes(),), wanted), 40)
    drawn = one.draw(torch.randn((100, LATENT), generator=stream()))
    assert float((Bayes()(drawn).argmax(1) == wanted).double().mean()) > 0.95


def done(path: Path, *attacks: dict[str, Any], **given: Any) -> Path:
    return run(Experiment.of(**{**TABLES, "attack": list(attacks), **given}), out=path, baselines=False).path


def model(path: Path) -> bytes:
    return (path / "model.safetensors").read_bytes()


def test_attacked_runs_agree_across_workers_engines_and_resume(tmp_path: Path) -> None:
    fast, one = {"name": "fast", "plan": "program"}, hostile()
    whole = done(tmp_path / "whole", one, engine=fast)
    assert model(done(tmp_path / "honest", engine=fast)) != model(whole)
    assert model(done(tmp_path / "workers", one, engine={**fast, "workers": 2, "chunk": 3})) == model(whole)
    begun = done(tmp_path / "begun", one, engine=fast, rounds=1)
    assert model(resume(begun, ["rounds=3"], baselines=False).path) == model(whole)
    plans = {"loop": {"name": "loop"}, "stacked": {"name": "fast", "plan": "stacked"}}
    others = [done(tmp_path / name, one, engine=engine) for name, engine in plans.items()]
    last = [json.loads((path / "metrics.jsonl").read_text().splitlines()[-1])["loss"] for path in (whole, *others)]
    assert last[1:] == pytest.approx([last[0]] * 2, rel=1e-4)


def test_the_recorded_view_gives_the_generator_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first generator of `gan` draws the same pictures as the one that the attacker trained during the run."""
    states, draw = [], FakeClass.drawn

    def noted(one: FakeClass, module: nn.Module, state: Mapping[str, Any], stream: torch.Generator) -> Any:
        made = draw(one, module, state, stream)
        states.append(made[1])
        return made

    monkeypatch.setattr(FakeClass, "drawn", noted)
    seen = {"name": "gan", "mode": "hitaj", "steps": 4, "selections": 0, "generators": 2, "pictures": 20}
    path = done(tmp_path / "run", hostile(), {**seen, "target": lacking()})
    setup = set_up(checked(parse(TABLES)))
    z = torch.randn((20, LATENT), generator=torch_stream(setup.seed, "attack", "gan", "pictures"))
    with np.load(path / "attacks/gan/found.npz") as found:
        assert found["round"].tolist() == [1, 2, 3]
        for state, tile in zip(states, found["drawn_tile"], strict=True):
            one = Drawer((1, 8, 8), pixel_range(setup.held.preprocess, "digits"), torch.Generator())
            one.resume(state)
            assert np.array_equal((one.draw(z) * 255).round().to(torch.uint8)[:4].numpy(), tile)


def network(seed: int) -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 11))
    with torch.no_grad():
        for x in model.parameters():
            x.uniform_(-0.1, 0.1, generator=stream(seed))
    return model.eval()


@pytest.mark.slow
@pytest.mark.parametrize("held", [True, False])
def test_a_class_that_others_hold_leaks_and_one_of_nobody_does_not(held: bool) -> None:
    """Two rounds on digits; before the second the model learns the pictures of the first as fake. In dB beyond the placebo."""
    truth = truth_of(set_up(checked(parse({"data": {"name": "digits"}, "partition": {"name": "iid", "clients": 1}}))))
    rows, (low, high) = truth.rows(0), truth.box()
    x, y = (rows.x - low) / (high - low), rows.y
    known = Rows(x, y) if held else Rows(x[y != 3], y[y != 3])
    one = GanAttacker(
        network(3), lambda pair: network(4 + pair), x[y == 5], UNIT, GanPlan(3, False, 60, 0, 2, 100, "hitaj"), 1
    )
    for _ in range(2):
        one.told(trained(network(3), known.x, known.y, Training(0.1, 16, 6), stream()).state_dict(), 3)
        drawn = one.drawn()
        known = with_fakes(known, torch.from_numpy(drawn["drawn"][0]).float() / 255, 10)
    real, placebo = (
        [float(nearest(torch.from_numpy(z) / 255, x[y == 3])[1].mean()) for z in drawn[kind]] for kind in KINDS
    )
    assert (min(real) > max(placebo) + 2) == held


@pytest.mark.parametrize(
    ("tables", "keys", "words"),
    [
        ({"model": {"hidden": [16]}}, {}, "every network needs the class fake: set model.loss"),
        ({}, {"clients": [], "share": 0.2}, "name the attackers, who must lack the target"),
        ({}, {"target": 12}, "the classes are 0 to 9"),
        ({"partition": {"name": "iid", "clients": 5}}, {"target": 3}, "client 0 has rows of this class"),
        ({"algorithm": {"name": "scaffold"}}, {}, "fake: not with 'scaffold' in this version; use one of fedavg"),
        ({"algorithm": {"name": "local_only"}}, {}, "whose clients send no updates"),
        ({"model": {"loss": {"name": "kl", "fake": True}}}, {}, "goes only with name = 'cross_entropy'"),
        (
            {"data": {"name": "breast_cancer_wdbc"}, "partition": {"name": "iid", "clients": 5}},
            {"target": 1},
            "has rows of this class",
        ),
    ],
)
def test_what_cannot_be_carried_out_is_refused_before_the_first_round(
    tmp_path: Path, tables: Any, keys: Any, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        done(tmp_path / "run", {**hostile(), **keys}, **tables)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_other_attacks_and_algorithms_are_refused_under_the_class_fake(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'label_inference' does not go with model"):
        done(tmp_path / "run", {"name": "label_inference"})
    with pytest.raises(ConfigError, match="fake: not with 'scaffold'"):
        done(tmp_path / "run", algorithm={"name": "scaffold"})
    with pytest.raises(ConfigError, match="mode = 'hitaj' needs a target"):
        done(tmp_path / "run", {"name": "gan", "mode": "hitaj"})


def test_an_attacker_draws_its_own_batches_under_a_mechanism_that_samples_rows(tmp_path: Path) -> None:
    """It skips the mechanism: the names of the mechanism's values mean nothing to a plain step."""
    noisy = [{"name": "dp_sgd", "clip": 1.0, "noise_multiplier": 1.0, "noise": "seed"}]
    for attack in (hostile(), {"name": "property_head", "clients": [0], "classes": [3]}):
        plain = {} if attack["name"] == "gan_active" else {"model": {"hidden": [16]}}
        path = done(tmp_path / attack["name"], attack, privacy=noisy, **plain)
        assert len((path / "metrics.jsonl").read_text().splitlines()) == 4


class ByHand:
    """The attacker of `hostile` in plain torch: a DCGAN of pictures of 8 x 8, trained on through the rounds."""

    def __init__(self, seed: int, low: torch.Tensor, high: torch.Tensor) -> None:
        self.stream, self.low, self.high = torch_stream(seed, "attack", "gan", 0), low, high
        first, last = nn.ConvTranspose2d(100, 128, 4, bias=False), nn.ConvTranspose2d(128, 1, 4, 2, 1, bias=False)
        self.net = nn.Sequential(first, norm := nn.BatchNorm2d(128), nn.ReLU(), last, nn.Tanh())
        for layer, mean in ((first, 0.0), (norm, 1.0), (last, 0.0)):
            with torch.no_grad():
                layer.weight.copy_(mean + 0.02 * torch.randn(layer.weight.shape, generator=self.stream))
        self.adam = torch.optim.Adam(self.net.parameters(), 2e-4, betas=(0.5, 0.999))

    def drawn(self, weights: list[torch.Tensor], steps: int, target: int, z: torch.Tensor) -> torch.Tensor:
        """Train to be taken for the target, and return the pictures of ``z`` as the network reads them."""
        for _ in range(steps):
            x = self.pixels(torch.randn((64, 100), generator=self.stream))
            self.adam.zero_grad()
            F.cross_entropy(mlp(weights, x), torch.full((64,), target)).backward()
            self.adam.step()
        with torch.no_grad():
            found = self.pixels(z) if self.net.eval() else z
        self.net.train()
        return found

    def pixels(self, z: torch.Tensor) -> torch.Tensor:
        return self.low + (self.net(z[:, :, None, None]) + 1) / 2 * (self.high - self.low)


def mlp(weights: list[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    return F.linear(F.relu(F.linear(x.flatten(1), *weights[:2])), *weights[2:])


def test_a_federation_with_an_attacker_equals_one_computed_by_hand(tmp_path: Path) -> None:
    whole, epochs, steps, added, lr = {"batch_size": 0, "epochs": 2, "lr": 0.1}, 2, 4, 8, 0.1
    target = lacking(local=whole)
    path = done(tmp_path / "run", hostile(target=target), local=whole)
    setup = set_up(checked(parse({**TABLES, "local": whole})))
    attacker = ByHand(setup.seed, *pixel_range(setup.held.preprocess, "digits"))
    clients = [setup.rows(k) for k in range(5)]
    told = [w.clone() for w in setup.first.params.values()]
    for number in (1, 2, 3):
        sent = []
        for k, (x, y, *_) in enumerate(clients):
            if k == 0:
                stream = torch_stream(setup.seed, "attack", number, 0, "train", 0)
                z = torch.randn((added, 100), generator=stream)
                x = torch.cat([x, attacker.drawn(told, steps, target, z)])
                y = torch.cat([y, torch.full((added,), 10)])
            own = [w.clone().requires_grad_() for w in told]
            for _ in range(epochs):
                grads = torch.autograd.grad(F.cross_entropy(mlp(own, x), y), own)
                own = [(w - lr * g).detach().requires_grad_() for w, g in zip(own, grads, strict=True)]
            sent.append([w.detach() for w in own])
        share = torch.tensor([float(len(rows.y)) for rows in clients])
        told = [sum(a * w for a, w in zip(share / share.sum(), each, strict=True)) for each in zip(*sent, strict=True)]
    found = load_file(path / "model.safetensors")
    assert all(
        torch.allclose(w, found[name], rtol=0, atol=1e-5) for w, name in zip(told, setup.first.params, strict=True)
    )
    honest = load_file(done(tmp_path / "honest", local=whole) / "model.safetensors")
    assert max(float((w - honest[name]).abs().max()) for name, w in found.items()) > 1e-3

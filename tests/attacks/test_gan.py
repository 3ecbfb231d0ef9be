"""The GAN attack: it only observes, draws what it has learnt, finds nothing in a class of nobody, and refuses what it cannot draw (A2)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import fedatlas
from fedatlas import Experiment, run
from fedatlas.attacks.gan import GanAttacker, GanPlan, Mode, figures_of, nearest, seed_of_nobody
from fedatlas.attacks.generator import LATENT, Drawer, Generator, Sought, layers_of
from fedatlas.attacks.shadow_models import Training, trained
from fedatlas.attacks.view_attack import is_leak
from fedatlas.auditing.verdict import tried_of
from fedatlas.cli import app
from fedatlas.config import parse
from fedatlas.errors import ConfigError
from fedatlas.federation.link import Observer
from fedatlas.leakage.attacker_process import carry_out
from fedatlas.leakage.knowledge import common_knowledge
from fedatlas.models import make_model
from fedatlas.setup.assembly import set_up
from fedatlas.setup.pixels import pixel_range
from fedatlas.setup.refusals import checked
from fedatlas.setup.truth import truth_of
from reports import Page

TABLES: dict[str, Any] = {
    "rounds": 3,
    "data": {"name": "digits", "limit": 400},
    "partition": {"name": "shards", "clients": 5},
    "model": {"hidden": [16]},
    "local": {"epochs": 1, "batch_size": 16, "lr": 0.05},
}
SMALL: dict[str, Any] = {"name": "gan", "steps": 4, "selections": 0, "generators": 2, "pictures": 20}
UNIT = torch.zeros(1, 1, 1), torch.ones(1, 1, 1)


@pytest.fixture(autouse=True)
def _same_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedatlas.leakage.attacker_folder.work_apart", carry_out)


@pytest.fixture(scope="module")
def digits() -> tuple[Tensor, Tensor]:
    """All training rows as pixels, with their classes."""
    truth = truth_of(set_up(checked(parse({"data": {"name": "digits"}, "partition": {"name": "iid", "clients": 1}}))))
    rows, (low, high) = truth.rows(0), truth.box()
    return (rows.x - low) / (high - low), rows.y


def stream(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def network(seed: int) -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    with torch.no_grad():
        for x in model.parameters():
            x.uniform_(-0.1, 0.1, generator=stream(seed))
    return model.eval()


def nobody(pair: int) -> nn.Module:
    return network(4 + pair)


def likeness(one: Drawer, real: Tensor) -> float:
    return float(nearest(one.draw(torch.randn((100, LATENT), generator=stream())), real)[1].mean())


@pytest.mark.parametrize(("shape", "size"), [((3, 32, 32), 3_448_576), ((1, 28, 28), 600_512)])
def test_generators_have_their_published_sizes(shape: tuple[int, ...], size: int) -> None:
    made = Generator(shape, stream())
    assert sum(x.numel() for x in made.parameters()) == size
    drawn = made(torch.randn((2, LATENT), generator=stream()))
    assert drawn.shape == (2, *shape)
    assert float(drawn.detach().abs().max()) <= 1


@pytest.mark.parametrize("side", [8, 16, 64])
def test_other_sides_are_drawn_too(side: int) -> None:
    assert Generator((1, side, side), stream())(torch.zeros(2, LATENT)).shape == (2, 1, side, side)


@pytest.mark.parametrize("shape", [(1, 30, 30), (1, 28, 32), (64,), (80,)])
def test_other_rows_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="draws pictures of 28 x 28, or with a side of 8"):
        layers_of(shape)


@pytest.mark.parametrize("head_only", [False, True])
def test_the_model_stays_as_it_is_and_the_generator_goes_on(head_only: bool) -> None:
    model, own = network(1), torch.rand((30, 1, 8, 8), generator=stream())
    before = {name: x.clone() for name, x in model.state_dict().items()}
    once, twice = (Drawer((1, 8, 8), UNIT, stream()) for _ in range(2))
    for one, times in ((once, 1), (twice, 2)):
        for _ in range(times):
            one.train(model, own, 3, head_only=head_only, sought=Sought((model,), 3))
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    steps = [next(iter(one.optimizer.state.values()))["step"].item() for one in (once, twice)]
    assert steps == [3, 6], "the optimizer stays, too"


def test_only_the_head_of_the_copy_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    copies, take = [], torch.optim.Adam
    monkeypatch.setattr(torch.optim, "Adam", lambda given, *how: copies.append(given := [*given]) or take(given, *how))
    own = torch.rand((30, 1, 8, 8), generator=stream())
    for head_only in (True, False):
        Drawer((1, 8, 8), UNIT, stream()).train(network(1), own, 1, head_only=head_only)
    sizes = [sum(x.numel() for x in given) for given in copies[1::2]]
    assert sizes == [11, 11 + 64 * 32 + 32 + 320 + 10]


class Bayes(nn.Module):
    """The classifier of two normal laws with mean pictures a and b."""

    def __init__(self, a: Tensor, b: Tensor) -> None:
        super().__init__()
        self.means = torch.stack([a, b])

    def forward(self, x: Tensor) -> Tensor:
        return -((x[:, None] - self.means) ** 2).flatten(2).sum(2) / 2


@pytest.mark.parametrize("wanted", [0, 1])
def test_a_generator_finds_the_class_that_a_perfect_classifier_names(wanted: int) -> None:
    a, b = torch.full((1, 8, 8), 0.1), torch.full((1, 8, 8), 0.9)
    oracle, one = Bayes(a, b), Drawer((1, 8, 8), UNIT, stream())
    own = (torch.stack([a, b]).repeat(32, 1, 1, 1) + 0.05 * torch.randn((64, 1, 8, 8), generator=stream())).clamp(0, 1)
    one.train(oracle, own, 40, head_only=True, sought=Sought((oracle,), wanted))
    drawn = one.draw(torch.randn((100, LATENT), generator=stream()))
    assert float((oracle(drawn).argmax(1) == wanted).double().mean()) > 0.95


def test_a_generator_that_has_the_rows_draws_them(digits: tuple[Tensor, Tensor]) -> None:
    """One whose real rows are zeros draws zeros; the same one with other digits as real rows does not."""
    x, y = digits
    zeros = x[y == 0]
    held, others = zeros[::2], x[torch.isin(y, torch.tensor([5, 6, 7]))]
    found = []
    for own in (held, others):
        one = Drawer((1, 8, 8), UNIT, stream())
        one.train(network(2), own, 200)
        found.append(likeness(one, zeros[1::2]))
    assert found[0] > found[1] + 1.5, "in dB, against zeros that neither had"


@pytest.mark.slow
@pytest.mark.parametrize("held", [True, False])
def test_a_class_that_others_hold_leaks_and_one_of_nobody_does_not(digits: tuple[Tensor, Tensor], held: bool) -> None:
    x, y = digits
    own = x[torch.isin(y, torch.tensor([5, 6, 7]))]
    known = torch.ones_like(y, dtype=torch.bool) if held else y != 3
    model = trained(network(3), x[known], y[known], Training(0.1, 16, 10), stream())
    one = GanAttacker(network(3), nobody, own, UNIT, GanPlan(3, False, 300, 0, 6, 100), 1)
    one.told(model.state_dict(), 3)
    found = [
        [(float(nearest(torch.from_numpy(z) / 255, x[y == 3])[1].mean()), 0, 0) for z in side]
        for side in one.drawn().values()
    ]
    leak = figures_of(*map(np.array, found))[1]["psnr"]
    assert is_leak(leak) == held


def test_networks_that_know_nothing_are_taken_for_a_leak_in_few_cases() -> None:
    """The model's chance is common to all pairs: an interval over pairs alone would claim a leak in over a third of these cases."""
    draw, many, pairs, networks = np.random.default_rng(1), 2000, 4, 0.5
    claims = audited = 0
    for _ in range(many):
        figures = 12 + 0.2 * draw.standard_normal((2, pairs, 3))
        figures[0] += networks * draw.standard_normal(3)  # the model
        figures[1] += networks * draw.standard_normal((pairs, 3))  # the placebos' networks
        leak = figures_of(*figures)[1]["psnr"]
        record = {"name": "gan", "role": "client:0", "targets": pairs, "metrics": {}, "leaks": {"psnr": leak}}
        claims += is_leak(leak)
        audited += tried_of(record, "psnr", "PSNR").p < 0.025
    assert max(claims, audited) < 0.03 * many


def test_each_placebo_has_a_network_of_its_own() -> None:
    own = torch.rand((30, 1, 8, 8), generator=stream())
    asked: list[int] = []
    one = GanAttacker(
        network(3), lambda i: asked.append(i) or network(4 + i), own, UNIT, GanPlan(3, False, 1, 0, 3, 5), 1
    )
    assert asked == [0, 1, 2]
    assert not torch.equal(*(made.state_dict()["1.weight"] for made in one.nobody[:2]))
    assert len({seed_of_nobody(1, pair) for pair in range(3)}) == 3


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["thesis", "hitaj"])
def test_an_untrained_model_is_taken_for_a_leak_in_few_cases(digits: tuple[Tensor, Tensor], mode: Mode) -> None:
    x, y = digits
    claims = 0
    for seed in range(20):
        plan = GanPlan(3, False, 15, 0, 3, 50, mode)
        one = GanAttacker(network(1000 + seed), lambda i: network(2000 + 10 * seed + i), x[y == 5], UNIT, plan, seed)  # noqa: B023
        one.told(network(1000 + seed).state_dict(), 3)
        found = [
            [(float(nearest(torch.from_numpy(z) / 255, x[y == 3])[1].mean()), 0, 0) for z in side]
            for side in one.drawn().values()
        ]
        claims += is_leak(figures_of(*map(np.array, found))[1]["psnr"])
    assert claims <= 2


class Live(Observer):
    """The same attacker, told the models of client 0 as they come."""

    def __init__(self, one: GanAttacker, target: int) -> None:
        self.one, self.target = one, target

    def asked(self, request: Any) -> None:
        if request.client == 0:
            self.one.told(request.message["model"], self.target)


def test_a_recorded_view_gives_the_same_generators_and_the_run_is_that_of_an_honest_client(tmp_path: Path) -> None:
    plain = run(Experiment.of(**TABLES, seed=1), out=tmp_path / "plain", baselines=False).path
    path = run(
        Experiment.of(**TABLES, attack=[{**SMALL, "target": "absent"}]), out=tmp_path / "run", baselines=False
    ).path
    assert (path / "model.safetensors").read_bytes() == (plain / "model.safetensors").read_bytes()
    config, done, _ = common_knowledge(path)

    def made(seed: int) -> nn.Module:
        return make_model(config.model, done.shape, 10, seed).eval()

    with np.load(path / "attacks/gan/client-0.npz") as own:
        x, target = torch.from_numpy(own["x"]), int(own["target"])
    plan, box = GanPlan("absent", False, 4, 0, 2, 20), pixel_range(done, "digits")
    one = GanAttacker(made(1), lambda pair: made(seed_of_nobody(1, pair)), x, box, plan, 1)
    run(Experiment.of(**TABLES, seed=1), out=tmp_path / "live", baselines=False, observers=[Live(one, target)])
    with np.load(path / "attacks/gan/found.npz") as found:
        assert found["round"].tolist() == [1, 2, 3]
        for kind, drawn in one.drawn().items():
            assert np.array_equal(found[f"{kind}_tile"][-1], drawn[0, :4])
        assert not np.array_equal(found["drawn_tile"], found["placebo_tile"])


def test_result_report_and_audit(tmp_path: Path) -> None:
    path = run(Experiment.of(**TABLES, attack=[{**SMALL, "selections": 2}]), out=tmp_path / "run", baselines=False).path
    found = json.loads((path / "attacks/gan/attack.json").read_text())
    assert set(found["metrics"]) == {"psnr", "fid", "kid"}
    assert found["targets"] == 2
    psnr, leak = found["metrics"]["psnr"], found["leaks"]["psnr"]
    assert psnr["placebo_high"] - psnr["placebo"] == pytest.approx(leak["beyond"])
    assert "SHA-256" in found["notes"][0]
    page = Page(path / "report.html")
    assert "Pictures by round" in page.text()
    assert found["notes"][0] in page.text()
    with np.load(path / "attacks/gan/found.npz") as arrays:
        assert arrays["round"].tolist() == [1, 3], "spread evenly, the last among them"
    (said,) = [one for one in fedatlas.audit(path).record["attacks"] if one["attack"] == "gan"]
    assert (said["role"], said["targets"]) == ("client:0", 2)


def test_a_view_that_was_recorded_can_be_attacked_afterwards_and_an_audit_asks_for_the_declaration(
    tmp_path: Path,
) -> None:
    tables = {**TABLES, "algorithm": {"name": "fedseq", "group_size": 2}, "observe": {"roles": ["client:1"]}}
    path = run(Experiment.of(**tables), out=tmp_path / "run", baselines=False).path
    record = fedatlas.audit(path).record
    (why,) = [one for one in record["not_tried"] if one["attack"] == "gan"]
    assert "only where the file declares it" in why["reason"]
    assert why["add"] == '[[attack]]\nname = "gan"'
    words = [
        "attack",
        str(path),
        "--name",
        "gan",
        "role=client:1",
        *(f"{key}={SMALL[key]}" for key in SMALL if key != "name"),
    ]
    told = CliRunner().invoke(app, words)
    assert told.exit_code == 0, told.output
    assert "gan from the view of client:1, 2 generators" in told.output


@pytest.mark.parametrize(
    ("tables", "keys", "words"),
    [
        ({}, {"target": 12}, "there is no class 12; they are 0 to 9"),
        ({"partition": {"name": "iid", "clients": 5}}, {"target": 3}, "client:0 has rows of class 3; name a class"),
        (
            {"partition": {"name": "iid", "clients": 5}},
            {"target": "absent"},
            "has rows of every class; leave target out",
        ),
        ({}, {"role": "server"}, "cannot work with this view; name one of client"),
        ({}, {"role": "client:9"}, "the clients are 0 to 4"),
        ({"data": {"name": "digits", "scale": "client"}}, {}, "needs one range of pixels for all clients"),
        (
            {"data": {"name": "breast_cancer_wdbc"}, "partition": {"name": "iid", "clients": 5}},
            {},
            "draws pictures of 28 x 28",
        ),
        (
            {"model": {"hidden": [4], "loss": "multiclass_hinge"}},
            {"target": 3},
            "requires model.loss = 'cross_entropy'",
        ),
        (
            {
                "privacy": [{"name": "paillier", "reveal": "clients"}],
                "evaluation": {"on": "validation", "validation": 0.2},
            },
            {},
            "no message holds a model that could be read",
        ),
        ({}, {"features": "nowhere.pth"}, "'nowhere.pth' cannot be read"),
        ({"algorithm": {"name": "centralised"}}, {}, "is a baseline that sends no models"),
    ],
)
def test_what_cannot_be_drawn_is_refused_before_the_first_round(
    tmp_path: Path, tables: Any, keys: Any, words: str
) -> None:
    given = {**TABLES, "attack": [{**SMALL, **keys}], **tables}
    with pytest.raises(ConfigError, match=words):
        run(Experiment.of(**given), out=tmp_path / "run", baselines=False)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()

"""Property inference over rounds: a client takes its own part from a mean, columns of tables, and the active form (A6)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from fedatlas import Experiment, attack, run
from fedatlas.algorithm import Batch
from fedatlas.attacks.membership import scored, shuffled_spread
from fedatlas.attacks.properties import Property
from fedatlas.attacks.property_head import PropertyHead
from fedatlas.attacks.property_inference import above, game, shares, shuffled
from fedatlas.attacks.roles import ViewRole
from fedatlas.attacks.view_attack import is_leak
from fedatlas.config.experiment import ModelConfig
from fedatlas.engine.model import Network
from fedatlas.errors import ConfigError
from fedatlas.leakage.attack_text import attack_lines
from fedatlas.leakage.attacker_process import carry_out
from fedatlas.leakage.view_gradients import Cohort, read_gradients, read_rounds
from fedatlas.models import make_loss, make_model
from fedatlas.record.observed import RoleView, ViewFrame
from fedatlas.record.run_folder import RunFolder
from fedatlas.tree import Tree

TURNS: dict[str, Any] = {
    "rounds": 30,
    "data": {"name": "digits"},
    "partition": {"name": "dirichlet", "clients": 16, "alpha": 1.0},
    "cohort": {"fraction": 0.75},
    "model": {"hidden": [16]},
    "local": {"steps": 1, "batch_size": 0, "lr": 0.1},
    "evaluation": {"clients": 0.5, "every": 30},
    "attack": [{"name": "property", "role": "outsider", "classes": [3]}],
}


@pytest.fixture(autouse=True)
def _same_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedatlas.leakage.attacker_folder.work_apart", carry_out)


def found_in(path: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((path / "attacks/property/attack.json").read_text())
    return record


@pytest.mark.parametrize("hiding", [(), pytest.param(("secagg",), marks=pytest.mark.slow)])
def test_rounds_rich_in_a_class_are_told_from_their_mean_also_under_masks(tmp_path: Path, hiding: Any) -> None:
    given = {**TURNS, "privacy": [{"name": name} for name in hiding]}
    found = found_in(run(Experiment.of(**given), out=tmp_path / "run", baselines=False).path)
    assert found["targets"] == 30
    assert found["leaks"]["auc"]["low"] > found["leaks"]["auc"]["beyond"]
    assert "a round is rich in rows of classes [3]" in found["declaration"]["why"]


def test_noise_on_each_update_leaves_the_placebos_figure(tmp_path: Path) -> None:
    noise = [{"name": "local_dp", "epsilon": 1.0, "clip": 0.1, "noise": "seed"}]
    given = {**TURNS, "algorithm": {"name": "fedavg", "weights": "uniform"}, "privacy": noise}
    found = found_in(run(Experiment.of(**given), out=tmp_path / "run", baselines=False).path)
    assert found["leaks"]["auc"]["value"] < found["leaks"]["auc"]["beyond"]
    assert 0.5 < found["leaks"]["auc"]["smallest"] < 1


def test_a_client_takes_its_own_part_away_and_may_attack_actively(tmp_path: Path) -> None:
    """The mean without its own equals that of the others' updates as the server sees them."""
    hostile = [
        {"name": "property", "role": "client:0", "classes": [3]},
        {"name": "property_head", "clients": [0], "classes": [3]},
    ]
    given = {**TURNS, "attack": hostile, "observe": {"roles": ["server", "client:0"]}}
    path = run(Experiment.of(**given), out=tmp_path / "run", baselines=False).path
    found = found_in(path)
    assert found["leaks"]["auc"]["low"] > found["leaks"]["auc"]["beyond"]
    assert json.loads((path / "summary.json").read_text())["attacks"][0]["clients"] == [0]
    assert "no round has a share above 0.99" in attack(path, "property", share=0.99, shadows=5)["unscored"]
    config, held = RunFolder.open(path).config(), RunFolder.open(path).read_json("partition.json")["clients"]
    sizes = {int(k): len(rows) for k, rows in held.items()}
    server = RoleView(path, ViewRole("server"))
    clients = {n: read_gradients(server, config, 0, n).clients for n in range(1, 30)}
    told = {n: Cohort(len(ids), sum(sizes[k] for k in ids)) for n, ids in clients.items()}
    seen = list(read_rounds(RoleView(path, ViewRole("client", 0)), config, 0, told, sizes[0]))
    assert len(seen) == found["targets"]
    number, one = seen[0]
    every = read_gradients(server, config, 0, number)
    share = np.array([0.0 if k == 0 else sizes[k] for k in every.clients])
    for name, x in every.gradients.items():
        mean = np.tensordot(share / share.sum(), x.double().numpy(), 1)
        np.testing.assert_allclose(one.gradients[name][0].numpy(), mean, atol=2e-5)


class OwnView(NamedTuple):
    """The view of a client that is told a model in each round, and sends or is sent something else."""

    besides: ViewFrame
    role: ViewRole = ViewRole("client", 0)
    rounds: tuple[int, ...] = (1, 2)

    def frames(self, number: int) -> list[ViewFrame]:
        told = ViewFrame(0, "down", None, ("", number, 0, 0), "train", 0, {"message": {"model": Tree(w=torch.ones(2))}})
        return [told, self.besides._replace(ask=("", number, 0, 0))]


@pytest.mark.parametrize(
    ("direction", "body", "words"),
    [
        ("up", {"masked": {}, "form": {}}, "holds its own update under masks: attack that of 'outsider'"),
        ("peer", {"message": {"model": Tree(w=torch.ones(2))}}, "is that of a chain.*: attack that of 'outsider'"),
    ],
)
def test_a_client_who_cannot_leave_its_own_part_out_is_told_why(direction: Any, body: Any, words: str) -> None:
    config, besides = Experiment.of(**TURNS).config, ViewFrame(0, direction, None, ("", 1, 0, 0), "train", 0, body)
    with pytest.raises(ConfigError, match=words):
        list(read_rounds(OwnView(besides), config, 0, {1: Cohort(4, 40)}, 10))  # type: ignore[arg-type]


def households(path: Path) -> str:
    """Write owners of unlike shares of women, which have nothing to do with the label; return the file's name."""
    stream, lines = np.random.default_rng(1), ["owner,age,a,sex,ill"]
    for k in range(16):
        for i in range(60):
            age, a = stream.normal(size=2)
            sex = "female" if i < (51 if k % 2 else 9) else "male"
            lines.append(f"o{k:02d},{age:.3f},{a:.3f},{sex},{'yes' if age + a > 0 else 'no'}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"value": "female"}, ""),
        ({"value": "femal"}, "did you mean 'female'"),
        ({"column": "age", "value": "1"}, "column 'age' holds numbers"),
        ({"column": "sxe", "value": "female"}, "did you mean 'sex'"),
    ],
)
def test_a_property_by_a_column_is_found_and_wrong_names_are_refused(tmp_path: Path, keys: Any, words: str) -> None:
    given = {
        "rounds": 3,
        "data": {"name": "file", "path": households(tmp_path / "table.csv"), "label": "ill", "client": "owner"},
        "partition": {"name": "natural"},
        "model": {"hidden": [16]},
        "local": {"epochs": 1, "batch_size": 10, "lr": 0.05},
        "evaluation": {"clients": 0.5},
        "attack": [{"name": "property", "column": "sex", "rounds": 3, **keys}],
    }
    if words:
        with pytest.raises(ConfigError, match=words):
            run(Experiment.of(**given), out=tmp_path / "run", baselines=False)
        return
    path = run(Experiment.of(**given), out=tmp_path / "run", baselines=False).path
    found = found_in(path)
    assert found["metrics"]["auc"]["value"] > 0.9
    assert found["leaks"]["auc"]["low"] > found["leaks"]["auc"]["beyond"]
    assert attack(path, "property", shadows=10)["keys"] == {
        "column": "sex",
        "value": "female",
        "share": None,
        "rounds": 3,
        "shadows": 10,
    }


def test_the_second_task_teaches_the_features_the_property_and_without_weight_nothing() -> None:
    """Features of a property unrelated to the label: a linear reader tells it better after the second task."""
    rng = torch.Generator().manual_seed(1)
    x = torch.randn(400, 6, generator=rng)
    x[:, 3] = (x[:, 3] > 0).float()
    y = (x[:, 0] > 0).long()
    inputs = ("a", "b", "c", "sex=f", "d", "e")
    network = Network(make_model(ModelConfig(name="mlp", hidden=[8]), (6,), 2, 1), make_loss("auto", "classes", 2).mean)
    start, batch = network.initial()[0], Batch(x, y)

    def told(weight: float) -> tuple[float, Tree]:
        head = PropertyHead(Property("property_head", (), "sex", "f"), weight, inputs)
        stream = torch.Generator().manual_seed(2)
        end = head.trained(start, [batch] * 200, network.loss_and_features, 0.2, 0.0, stream)
        z = torch.cat([network.features(end, batch).detach(), torch.ones(400, 1)], 1).double()
        rest = x[:, 3:4].double() - z @ torch.linalg.lstsq(z, x[:, 3:4].double()).solution
        return float(rest.square().mean()), end

    plain = start
    for _ in range(200):
        free = {name: w.detach().requires_grad_() for name, w in plain.items()}
        slope = torch.autograd.grad(network.loss(Tree(free), batch), list(free.values()))
        plain = Tree({name: w.detach() - 0.2 * g for (name, w), g in zip(free.items(), slope, strict=True)})
    (without, idle), (taught, _) = told(1e-30), told(1.0)
    for name, w in plain.items():
        torch.testing.assert_close(idle[name], w)
    assert taught < 0.5 * without


def test_a_shuffled_property_reaches_what_chance_does() -> None:
    """The AUC of 20 against 20 by chance has the deviation 0.093, so 95% lie within 0.18."""
    stream = np.random.default_rng(1)
    rows = {k: (k % 2, 1) for k in range(40)}
    spread = shuffled_spread(stream.normal(size=40), shuffled(0.5, [[k] for k in rows], rows, 1))
    assert spread == pytest.approx(0.18, abs=0.04)


@pytest.mark.parametrize("clients", [4, 8])
def test_rounds_of_the_same_clients_are_not_taken_for_independent(clients: int) -> None:
    """Scores that follow what clients have in common except the property: at most 5% lie beyond the placebo."""
    stream, beyond = np.random.default_rng(2), []
    for trial in range(40):
        quirk = stream.normal(size=clients)
        rows = {k: (int(has), 1) for k, has in enumerate(stream.permutation(clients) < clients // 2)}
        rounds = [stream.choice(clients, clients // 2, replace=False).tolist() for _ in range(40)]
        score, held = np.array([quirk[one].mean() for one in rounds]), above(0.5, rounds, rows)
        found = scored(held, score, trial, shuffled_spread(score, shuffled(0.5, rounds, rows, trial)))
        beyond.append(abs(found.metrics["auc"]["value"] - 0.5) > found.leaks["auc"]["beyond"])
    assert sum(beyond) <= 5


@pytest.mark.parametrize(("clients", "power"), [(4, False), (6, False), (8, True), (16, True)])
def test_few_clients_have_no_power_over_rounds_and_a_note_says_so(clients: int, power: bool) -> None:
    """Of six clients three have the property: 2 of the 20 ways are the real one and its opposite, too many at 5%; of eight, 2 of 70."""
    stream = np.random.default_rng(3)
    rows = {k: (int(k % 2), 1) for k in range(clients)}
    rounds = [stream.choice(clients, clients // 2, replace=False).tolist() for _ in range(60)]
    held, share, games = above(0.5, rounds, rows), shares(rounds, rows), [*shuffled(0.5, rounds, rows, 1)]
    perfect, guess = (game(held, share, score, games, 1, clients) for score in (share, stream.normal(size=60)))
    assert is_leak(perfect.leaks["auc"]) == power
    assert not is_leak(guess.leaks["auc"])
    for found in (perfect, guess):
        assert (found.leaks["auc"]["beyond"] == 0.5) == (not power)
        if clients != 8:  # of eight only a nearly perfect attack is told from chance
            assert (found.leaks["auc"]["smallest"] is not None) == power
        assert len(found.notes) == (not power)
        assert all("not even a perfect attack" in note and f"of {clients} clients" in note for note in found.notes)


def test_a_run_with_few_clients_says_that_it_could_show_nothing(tmp_path: Path) -> None:
    few = {**TURNS, "rounds": 12, "partition": {"name": "dirichlet", "clients": 5, "alpha": 0.3}, "cohort": {"size": 2}}
    given = {**few, "evaluation": {"clients": 0.5, "every": 12}}
    given["attack"] = [{"name": "property", "role": "outsider", "classes": [3], "shadows": 5, "share": 0.1}]
    found = found_in(run(Experiment.of(**given), out=tmp_path / "run", baselines=False).path)
    assert found["leaks"]["auc"]["smallest"] is None
    (note,) = found["notes"]
    assert note.startswith("The rows of 5 clients can be shuffled in too few ways")
    assert note in attack_lines(found)

"""An attack on views is one record: registered by a test, it runs, is scored, and stands in the terminal and in the report."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from fedatlas import Experiment, attack, run
from fedatlas.attacks import VIEW_ATTACKS
from fedatlas.attacks.declaration import Declaration
from fedatlas.attacks.inversion import OTHERS, _chance, dlg, idlg, psnr
from fedatlas.attacks.roles import ViewRole
from fedatlas.attacks.view_attack import Arrays, Knowledge, Picture, Score, Truth, ViewAttack, is_leak, leak_of
from fedatlas.catalogue import rows
from fedatlas.cli import app
from fedatlas.data.batches import Rows
from fedatlas.errors import ConfigError
from fedatlas.leakage.attacker_process import carry_out
from fedatlas.registry import Whole
from reports import Page

TABLES: dict[str, Any] = {
    "rounds": 3,
    "data": {"name": "digits", "limit": 300},
    "partition": {"name": "iid", "clients": 3},
    "model": {"hidden": [8]},
    "attack": [{"name": "frequent_class", "guesses": 2}],
}


def frequent_class(*, role: str = "outsider", guesses: Whole = 1) -> ViewAttack:
    """Which class do most training rows have? The one with the largest bias in the last layer.

    role: whose view is attacked: "server" or "outsider".
    guesses: how many classes are named.
    """
    declares = Declaration(
        "outsider", "passive", "inference", "the model", "a property of all rows", "the network", "one look"
    )

    def answer(known: Knowledge) -> Arrays:
        bias = [x for x in known.model().values() if x.dim() == 1][-1]
        return {"guess": bias.argsort(descending=True)[:guesses].numpy(), "drawn": known.arrays("labels.npz")["y"]}

    def score(truth: Truth, found: Arrays) -> Score:
        labels = np.concatenate([truth.rows(k).y.numpy() for k in truth.sizes])
        hit = float(np.bincount(labels, minlength=truth.classes).argmax() in found["guess"])
        chance = guesses / truth.classes
        metrics = {"hit": {"value": hit, "low": None, "high": None, "placebo": chance}}
        return Score(metrics, {"hit": {"value": hit - chance, "low": None, "high": None}}, 1, found)

    def pictures(arrays: Arrays) -> list[Picture]:
        points = [(0.1, 0.2), (1.0, 1.0)]
        return [
            Picture("curve", "line", "A curve", "The curve", "How to read it.", ("x", "y"), points, ("x", "y"), points)
        ]

    return ViewAttack(
        "frequent_class",
        "property",
        ViewRole.parse(role, "attack.role"),
        {"guesses": guesses},
        declares,
        answer,
        score,
        figures={"hit": "most frequent class found"},
        leak="hit",
        pictures=pictures,
        thing="federation",
        roles=("server", "outsider"),
        rounds=None if role == "outsider" else (2, 0),
        refuses=lambda config: "" if config.rounds > 1 else "attack 'frequent_class' needs two rounds.",
        files=("labels.npz",),
        draws=lambda truth: {"labels.npz": {"y": np.arange(truth.classes)}},
        undrawn="declare the attack.",
    )


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(VIEW_ATTACKS, "frequent_class", frequent_class)
    monkeypatch.setattr("fedatlas.leakage.attacker_folder.work_apart", carry_out)  # a new process would not know it


def test_a_registered_attack_runs_and_is_scored_and_shown(tmp_path: Path) -> None:
    path = run(Experiment.of(**TABLES), out=tmp_path / "run", baselines=False).path
    found = json.loads((path / "attacks" / "frequent_class" / "attack.json").read_text())
    assert found["metrics"]["hit"]["value"] in {0, 1}
    assert found["metrics"]["hit"]["placebo"] == 0.2
    assert found["keys"] == {"guesses": 2}
    page = Page(path / "report.html")
    assert "What a party could have learnt" in [text for _, text in page.of("h2")]
    assert "frequent_class, from the view of the outsider, 1 federation" in page.text()
    assert page.table("run-frequent_class")[0]["figure"] == "hit"
    assert len(page.table("run-frequent_class-line")) == 2
    shown = CliRunner().invoke(app, ["attack", str(path), "--name", "frequent_class", "guesses=10"])
    assert "most frequent class found: 1.000; placebo 1.000" in shown.output
    assert next(row for row in rows("attacks") if row["name"] == "frequent_class")["aim"] == "finds out"


def test_its_view_is_kept_and_what_it_refuses_is_refused(tmp_path: Path) -> None:
    seen = {**TABLES, "attack": [{"name": "frequent_class", "role": "server"}]}
    path = run(Experiment.of(**seen), out=tmp_path / "run", baselines=False).path
    assert [file.name for file in sorted((path / "observed" / "server").iterdir())] == [
        "round-000002.frames",
        "round-000003.frames",
    ]
    assert attack(path, "frequent_class")["role"] == "server"
    for tables, words in (
        ({"rounds": 1}, "needs two rounds"),
        (
            {"attack": [{"name": "frequent_class", "role": "client:1"}]},
            "cannot work with this view; name one of server, outsider",
        ),
    ):
        with pytest.raises(ConfigError, match=words):
            run(Experiment.of(**{**TABLES, **tables}), out=tmp_path / "refused", baselines=False)
    plain = {key: value for key, value in TABLES.items() if key != "attack"}
    path = run(Experiment.of(**plain), out=tmp_path / "plain", baselines=False).path
    with pytest.raises(ConfigError, match=r"labels.npz' is missing: declare the attack"):
        attack(path, "frequent_class")


def test_the_pictures_of_a_placebo_have_the_label_of_the_target() -> None:
    """Of other clients, else of the test set; other labels never, whatever they would score."""
    white, grey, black = (torch.full((1, 1, 2, 2), value) for value in (1.0, 0.5, 0.0))
    held = {
        0: Rows(white, torch.tensor([3])),
        1: Rows(torch.cat([grey, black]), torch.tensor([3, 7])),
        2: Rows(black, torch.tensor([7])),
    }
    sizes = {k: rows.n for k, rows in held.items()}
    box = (torch.tensor(0.0), torch.tensor(1.0))
    truth = Truth(
        1,
        10,
        sizes,
        {},
        held.__getitem__,
        held.__getitem__,
        lambda label: white if int(label) == 9 else white[:0],
        lambda: box,
    )
    of_grey = psnr(white, grey)
    assert float(_chance(white, 0, torch.tensor([3]), truth).mean()) == pytest.approx(float(of_grey))
    assert float(_chance(white, 0, torch.tensor([9]), truth).mean()) == pytest.approx(100.0)  # itself, a test row
    assert math.isnan(float(_chance(white, 0, torch.tensor([5]), truth).mean()))


def test_the_test_pictures_of_a_placebo_are_drawn_from_the_whole_file() -> None:
    """A file whose first half is white and whose second is black: a placebo holds both."""
    black, white = torch.zeros(1, 1, 2, 2), torch.ones(1, 1, 2, 2)
    test = torch.cat([white.expand(150, -1, -1, -1), black.expand(150, -1, -1, -1)])
    held, box = Rows(white / 2, torch.tensor([3])), (torch.tensor(0.0), torch.tensor(1.0))
    truth = Truth(1, 10, {0: 1}, {}, lambda k: held, lambda k: held, lambda label: test, lambda: box)
    of_test = _chance(white, 0, torch.tensor([3]), truth, least=OTHERS)
    assert len(of_test) == OTHERS
    assert set(of_test.tolist()) == {0.0, 100.0}
    assert 0.3 < float((of_test > 50).double().mean()) < 0.7


@pytest.mark.parametrize("targets", [2, 3, 5, 20])
def test_a_leak_over_few_targets_is_claimed_as_seldom_as_stated(targets: int) -> None:
    """2.5% of intervals lie above 0 where there is no leak, with two targets as with twenty; a clear one is seen with three."""
    rng = np.random.default_rng(targets)
    claims = [is_leak(leak_of(*rng.standard_normal((2, targets)))) for _ in range(4000)]
    assert 0.015 < np.mean(claims) < 0.035
    assert is_leak(leak_of(40 + rng.standard_normal(3), 12 + rng.standard_normal(3)))
    assert leak_of(np.ones(1), np.zeros(1))["low"] is None


def test_dlg_and_idlg_take_the_same_keys_from_one_list() -> None:
    assert dlg.__code__ is idlg.__code__
    assert (dlg.__name__, idlg.__name__) == ("dlg", "idlg")
    for one in (dlg, idlg):
        assert (one.__doc__ or "").endswith("the one of least cost counts.")
    assert "Zhu et al." in (dlg.__doc__ or "")
    assert "Zhao et al." in (idlg.__doc__ or "")

"""Property inference: chance without a signal, found where one is planted or real, refused where only sums are seen (A6)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedatlas
from fedatlas import Experiment, run
from fedatlas.attacks import VIEW_ATTACKS
from fedatlas.attacks.membership import scored
from fedatlas.attacks.property_inference import drawn_rows, judged, local_training, pooled
from fedatlas.config.experiment import LocalConfig
from fedatlas.errors import ConfigError, DataError
from fedatlas.leakage.attacker_process import carry_out
from fedatlas.tree import Tree
from reports import Page

PLANTED: dict[str, Any] = {
    "rounds": 1,
    "data": {"name": "digits"},
    "partition": {"name": "dirichlet", "clients": 30, "alpha": 3.0},
    "model": {"hidden": [16]},
    "local": {"epochs": 1, "batch_size": 10, "lr": 0.05},
    "evaluation": {"clients": 0.5},
    "attack": [{"name": "property", "classes": [3], "shadows": 60}],
}


@pytest.fixture(autouse=True)
def _same_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedatlas.leakage.attacker_folder.work_apart", carry_out)


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_chance_without_a_signal_and_more_than_nine_tenths_with_a_mean_shift(shift: float) -> None:
    stream = np.random.default_rng(4)
    has, held = np.arange(200) % 2 == 1, np.arange(1000) % 2 == 1
    simulated, updates = (stream.normal(size=(len(one), 12)) + shift * one[:, None] for one in (has, held))
    found = scored(held, judged(simulated, updates, has, 1), 1)
    auc = found.metrics["auc"]["value"]
    assert auc is not None
    if shift:
        assert auc > 0.9
    else:
        assert auc == pytest.approx(0.5, abs=0.05)


def test_simulated_rows_have_the_property_or_lack_it() -> None:
    y, stream = np.repeat(np.arange(5), 8), np.random.default_rng(1)
    marks = np.isin(y, (1, 3))
    for has in (True, False):
        for near, most in ((False, 1.0), (True, 0.8)):
            drawn = [drawn_rows(y, marks, 10, 0.4, has, stream, near) for _ in range(200)]
            shares = [marks[rows].mean() for rows in drawn]
            assert (min(shares), max(shares)) == ((0.5, most) if has else (0.0, 0.4))
    assert len(drawn_rows(y, marks, 1, 0.2, False, stream)) == 1


def test_a_simulated_client_uses_as_many_rows_in_as_many_steps() -> None:
    for local, rows, want in (
        (LocalConfig(epochs=3, batch_size=10), 25, (25, 10, 3)),
        (LocalConfig(steps=1, batch_size=10), 25, (10, 10, 1)),
        (LocalConfig(steps=4, batch_size=0), 25, (25, 25, 4)),
    ):
        used, how = local_training(local, rows)
        assert (used, how.batch_size, how.epochs) == want


def test_an_update_is_pooled_by_output() -> None:
    tree = Tree({"b": torch.tensor([[7.0, 8.0]]), "w": torch.tensor([[[1.0, 3.0], [5.0, 6.0]]])})
    assert pooled(tree).tolist() == [[7, 8, 2, 5.5]]
    assert pooled(tree, place=1, inputs=2).tolist() == [[7, 8, 2, 5.5, 3, 6]]


def test_clients_that_hold_many_of_a_class_are_found_and_an_audit_says_so(tmp_path: Path) -> None:
    path = run(Experiment.of(**PLANTED), out=tmp_path / "run", baselines=False).path
    found = json.loads((path / "attacks/property/attack.json").read_text())
    assert found["metrics"]["auc"]["value"] > 0.9
    assert found["leaks"]["auc"]["low"] > found["leaks"]["auc"]["beyond"] > 0
    assert 0.5 < found["leaks"]["auc"]["smallest"] < 1
    page = Page(path / "report.html")
    assert len(page.table("run-property-scores")) == 30
    assert [row["game"] for row in page.table("run-property-auc")] == ["attack", "placebo"]
    with np.load(path / "attacks/property/auxiliary.npz") as kept:
        assert set(kept.files) == {"x", "y"}
    (said,) = [one for one in fedatlas.audit(path).record["attacks"] if one["attack"] == "property"]
    assert said["role"] == "server"
    assert said["p"] < 0.05


@pytest.mark.parametrize(
    ("tables", "keys", "words"),
    [
        ({"evaluation": {}}, {}, "set clients = 0.5 under"),
        ({"privacy": [{"name": "secagg"}]}, {}, "the server sees only their sum"),
        ({"model": {"hidden": [4], "loss": "multiclass_hinge"}}, {}, "requires model.loss = 'cross_entropy'"),
        ({}, {"classes": [12]}, "there is no class 12; they are 0 to 9"),
        ({}, {"classes": [3, 3]}, "name each class once"),
        ({}, {"role": "successor:1"}, "cannot work with this view; name one of server, client, outsider"),
        ({}, {"role": "outsider"}, "every round has the same clients: set fraction = 0.5"),
        ({}, {"classes": [3], "column": "sex", "value": "f"}, "a property is given by classes, as in"),
        ({}, {"column": "sex"}, "a property is given by classes, as in"),
        ({}, {"column": "sex", "value": "f"}, "these rows have no columns; give the property by classes"),
    ],
)
def test_what_cannot_be_carried_out_is_refused(tmp_path: Path, tables: Any, keys: Any, words: str) -> None:
    given = {**PLANTED, "attack": [{"name": "property", **keys}], **tables}
    with pytest.raises(ConfigError, match=words):
        run(Experiment.of(**given), out=tmp_path / "run", baselines=False)


def test_a_property_of_nobody_is_refused_before_the_run(tmp_path: Path) -> None:
    given = {**PLANTED, "attack": [{"name": "property", "share": 0.99999}]}
    with pytest.raises(DataError, match=r"no client has a share above 1 of rows of classes \[0\]; set another share"):
        run(Experiment.of(**given), out=tmp_path / "run", baselines=False)


def test_its_first_class_is_tried_by_default() -> None:
    assert VIEW_ATTACKS["property"]().keys == {"classes": [0], "share": None, "rounds": None, "shadows": 100}

"""A backdoor: the patch, the rows that get it, the model that follows, and its success (B18)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from attacked import FAST, TABLES, Sent, done, model, rows, summary
from configured import set_up
from fedatlas.algorithm import Budget
from fedatlas.attacks.backdoor import Backdoor
from fedatlas.config import parse
from fedatlas.data.batches import Draw, Rows, batches
from fedatlas.errors import ConfigError
from federation import gap

DOOR = Backdoor(0, 0.3125, 3, white=torch.full((1, 8, 8), 1.0))


def test_twenty_of_each_batch_of_64_get_patch_and_class() -> None:
    """After augmentation; the other rows, and the client's own, stay what they are. A short batch gets its share of its rows."""
    x, y = torch.zeros(150, 1, 8, 8), torch.ones(150, dtype=torch.long)
    clean = list(batches(Rows(x, y), Budget(epochs=1), Draw(1, 1, 0, 64, augment="crop_flip", fill=(0.0,))))
    draw = Draw(1, 1, 0, 64, augment="crop_flip", fill=(0.0,), taint=DOOR.poisoned_rows)
    found = list(batches(Rows(x, y), Budget(epochs=1), draw))
    assert [len(batch.x) for batch in found] == [64, 64, 22]
    assert [int((batch.y == 0).sum()) for batch in found] == [20, 20, 7]
    for batch, plain in zip(found, clean, strict=True):
        struck = batch.y == 0
        patch = torch.zeros(8, 8)
        patch[5:, 5:] = 1.0
        assert torch.equal(batch.x[struck], patch.expand(int(struck.sum()), 1, 8, 8))
        assert torch.equal(batch.x[~struck], plain.x[~struck])
    assert not x.any()
    assert bool((y == 1).all())


def test_white_is_white_as_the_network_reads_it() -> None:
    attack = {"name": "backdoor", "clients": [1]}
    setup = set_up(parse({**TABLES, "attack": [attack]}), 1)
    (found,) = setup.checked.poisonings
    assert found.backdoor is not None
    assert found.backdoor.white is not None
    brightest = setup.dataset.inputs(setup.dataset.train.x, torch.float32).max()
    assert float(found.backdoor.white.max()) == pytest.approx(float(brightest))


def test_success_is_the_share_of_triggered_rows_of_other_classes_that_become_the_target(tmp_path: Path) -> None:
    attack = {"name": "backdoor", "share": 0.5, "poisoned": 0.5, "target": 2}
    local = {"lr": 0.1, "epochs": 3, "batch_size": 10}
    path = done(tmp_path / "run", attack, rounds=4, local=local, model={"name": "logistic"})
    assert rows(path)[-1]["accuracy"] > 0.5
    setup = set_up(parse({**TABLES, "attack": [attack]}), 1)
    door = setup.checked.poisonings[0].backdoor
    assert door is not None
    test = setup.rows.common("test")
    others = test.y != 2
    found, last = summary(path), rows(path)[-1]
    trained = load_file(path / "model.safetensors")
    scores = door.patched(test.x[others]).flatten(1) @ trained["head.weight"].T + trained["head.bias"]
    expected = float((scores.argmax(1) == 2).double().mean())
    assert last["attack_success"] == pytest.approx(expected) == found["attacks"][0]["attack_success"]
    assert last["attack_success"] > 0.5
    assert "swapped_accuracy" not in last
    assert found["attacks"][0]["target"] == "2"
    assert "attack success" in (path / "report.html").read_text()


def test_a_replacing_backdoor_scales_the_change_of_one_that_does_not(tmp_path: Path) -> None:
    def sent(**keys: Any) -> Any:
        seen = Sent()
        done(tmp_path / f"run-{keys}", {"name": "backdoor", "clients": [2], **keys}, observers=[seen], rounds=1)
        return seen.models[1, 2] - seen.told[1, 2]

    plain = sent()
    assert gap(sent(replace=True), 6.0 * plain) < 1e-4  # one of six alike, eta_g = 1
    assert gap(sent(replace=True, scale=2.0), 2.0 * plain) < 1e-5


def test_engines_agree(tmp_path: Path) -> None:
    attack = {"name": "backdoor", "share": 0.34}
    one = done(tmp_path / "one", attack, engine=FAST)
    assert model(one) == model(done(tmp_path / "chunk", attack, engine={**FAST, "chunk": 2}))
    for name, engine in (("loop", {"name": "loop"}), ("stacked", {"name": "fast", "plan": "stacked"})):
        other = done(tmp_path / name, attack, engine=engine)
        assert rows(other)[-1]["loss"] == pytest.approx(rows(one)[-1]["loss"], rel=1e-4), name


@pytest.mark.parametrize(
    ("attack", "tables", "said"),
    [
        ({}, {"data": {"name": "breast_cancer_wdbc"}}, "it puts a white patch on pictures, but these rows are"),
        ({}, {"data": {"name": "diabetes_lars"}}, "the target of 'diabetes_lars' is a number"),
        ({"target": 10}, {}, "target = 10: the 10 classes of 'digits' are 0 to 9"),
        ({"side": 9}, {}, "side = 9: the pictures of 'digits' have 8 x 8 pixels"),
        ({}, {"data": {"name": "digits", "limit": 300, "scale": "client"}}, "scales pixels differently at each client"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_in_one_sentence(
    attack: dict[str, Any], tables: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        done(tmp_path / "run", {"name": "backdoor", "share": 0.5, **attack}, **tables)
    assert "\n" not in str(refused.value)

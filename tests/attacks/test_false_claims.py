"""Clients that claim more rows than they have, or other labels: what that changes, and where nobody listens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from attacked import TABLES, Sent, done, model, rows, summary
from configured import set_up
from fedatlas.config import parse
from fedatlas.errors import ConfigError
from fedatlas.setup.cohort import draw_round
from federation import same

CLAIM = {"name": "false_claims", "clients": [1, 4], "c": 10.0}


def test_the_server_weighs_what_is_claimed(tmp_path: Path) -> None:
    """Six clients with 50 rows each, two of which claim 500: 500 / 1200 each, and 50 / 1200 the others. Updates stay honest."""
    honest, claiming = Sent(), Sent()
    done(tmp_path / "honest", observers=[honest], rounds=1)
    path = done(tmp_path / "run", {**CLAIM, "rounds": [1, 1]}, observers=[claiming], rounds=2)
    weights = [row["weights"] for row in rows(path)]
    assert weights[1] == pytest.approx([50 / 1200, 500 / 1200, 50 / 1200, 50 / 1200, 500 / 1200, 50 / 1200])
    assert weights[2] == pytest.approx([1 / 6] * 6)
    assert all(same(honest.models[1, k], claiming.models[1, k]) for k in range(6))
    assert summary(path)["attacks"][0]["clients"] == [1, 4]


def test_a_claim_of_part_of_a_row_is_rounded() -> None:
    setup = set_up(parse({**TABLES, "attack": [{**CLAIM, "c": 1.504}]}), 1)
    round_ = draw_round(setup.config, setup.sizes, 1, 1)
    drawn = setup.cast.claiming(round_, setup.cast.orders(round_, None)).round
    assert drawn.sizes == {0: 50, 1: 75, 2: 50, 3: 50, 4: 75, 5: 50}
    assert drawn.n == 300


def test_a_false_claim_carries_flipped_labels_further(tmp_path: Path) -> None:
    flipping = {**CLAIM, "pairs": [[3, 5]]}
    given: dict[str, Any] = {
        "local": {"lr": 0.1, "epochs": 3, "batch_size": 10},
        "rounds": 6,
        "model": {"name": "logistic"},
    }
    found = [rows(done(tmp_path / str(c), {**flipping, "c": c}, **given))[-1]["attack_success"] for c in (1.0, 1000.0)]
    assert found[1] > found[0] + 0.2


@pytest.mark.parametrize("labels", ["own", "even"])
def test_hwfedavg_believes_the_counts(labels: str, tmp_path: Path) -> None:
    """Clients of two classes each; who claims ten times the rows, or all classes alike, gets more weight.

    The former less, since its own labels then are most of all, and count as concentrated.
    """
    given: dict[str, Any] = {
        "algorithm": {"name": "hwfedavg"},
        "partition": {"name": "shards", "clients": 6, "shards": 2},
        "rounds": 1,
    }
    told = {"own": {"c": 10.0}, "even": {"c": 1.0, "labels": "even"}}[labels]
    plain = rows(done(tmp_path / "plain", **given))[-1]["weights"]
    struck = rows(done(tmp_path / "struck", {**CLAIM, **told}, **given))[-1]["weights"]
    assert all(struck[k] > {"own": 1.3, "even": 2}[labels] * plain[k] for k in (1, 4))


def test_masks_hide_a_claim_from_nobody(tmp_path: Path) -> None:
    """Attackers multiply their own change by the rows that they claim: the masked mean is the bare one, and not the honest one."""
    runs = {"honest": [], "bare": [CLAIM], "masked": [CLAIM]}
    given: dict[str, Any] = {"rounds": 1, "partition": {"name": "shards", "clients": 6, "shards": 2}}
    masks = {"masked": {"privacy": [{"name": "secagg"}]}}
    loss = {
        name: rows(done(tmp_path / name, *attacks, **given, **masks.get(name, {})))[-1]["loss"]
        for name, attacks in runs.items()
    }
    assert loss["masked"] == pytest.approx(loss["bare"], rel=1e-4)
    assert loss["honest"] != pytest.approx(loss["bare"], rel=1e-3)


def test_a_superclient_weighs_by_what_its_clients_claim(tmp_path: Path) -> None:
    """Three of two clients each: one of them has 50 + 500 of 750 rows."""
    seq = {"name": "fedseq", "phi": "random", "group_size": 2}
    path = done(tmp_path / "run", {**CLAIM, "clients": [1]}, algorithm=seq, rounds=1)
    assert sorted(rows(path)[-1]["weights"]) == pytest.approx([100 / 750, 100 / 750, 550 / 750])


def test_a_rule_that_ignores_weights_ignores_a_claim(tmp_path: Path) -> None:
    given: dict[str, Any] = {"rounds": 2, "aggregation": {"name": "median"}}
    assert model(done(tmp_path / "plain", **given)) == model(done(tmp_path / "claimed", CLAIM, **given))


@pytest.mark.parametrize(
    ("attack", "tables", "said"),
    [
        (
            {},
            {"algorithm": {"name": "fedavg", "weights": "uniform"}},
            "weighs changes without asking for numbers of rows",
        ),
        ({}, {"algorithm": {"name": "gossip"}}, "weighs changes without asking for numbers of rows"),
        ({"labels": "even"}, {}, "'fedavg' asks for no counts of labels"),
        ({"c": 0.5}, {}, "attack.false_claims.c"),
        ({"pairs": [[3, 12]]}, {}, "'digits' has no class 12"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_in_one_sentence(
    attack: dict[str, Any], tables: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        done(tmp_path / "run", {**CLAIM, **attack}, **tables)
    assert "\n" not in str(refused.value)

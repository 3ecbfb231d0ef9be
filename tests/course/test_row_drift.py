"""`[drift]`: the clients' rows change from a round on (D13); recovery (X13), alarms, the guard, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedatlas
from fedatlas import ConfigError, Experiment
from fedatlas.algorithm import SERVER, UNION
from fedatlas.api import resume
from fedatlas.config import parse
from fedatlas.deployment import plain_refusals
from fedatlas.metrics.recovery import FALSE_ALARMS, alarms, recovery
from fedatlas.runs.baselines import baseline_config
from fedatlas.setup.assembly import set_up
from fedatlas.setup.drifting_rows import DriftingRows, orthogonal
from fedatlas.setup.refusals import checked

SMALL: dict[str, Any] = {
    "rounds": 5,
    "data": {"name": "digits", "limit": 300},
    "partition": {"name": "iid", "clients": 4},
    "model": {"name": "logistic"},
    "local": {"lr": 0.01},
    "engine": {"workers": 1, "plan": "tuned", "precision": "float64"},
}
KINDS = ["prior", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("feature", "concept"))]


def drift(kind: str = "concept", **more: Any) -> dict[str, Any]:
    return {"drift": {"kind": kind, "at": 3, **more}}


def rows_of(tables: dict[str, Any]) -> DriftingRows:
    rows = set_up(checked(parse({**SMALL, **tables}))).rows
    assert isinstance(rows, DriftingRows)
    return rows


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def run(path: Path, **more: Any) -> Path:
    fedatlas.run(Experiment.of(**{**SMALL, **more}), out=path, baselines=False)
    return path


def same(path: Path, other: Path) -> bool:
    return (path / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()


def test_without_a_drift_the_hash_is_as_before():
    assert "drift" not in parse(SMALL).plain()
    guard = {"rows": 50}
    assert parse({**SMALL, "guard": guard}).hash() == parse({**SMALL, "guard": {**guard, "drifted": False}}).hash()
    assert parse({**SMALL, **drift()}).hash() != parse(SMALL).hash()


@pytest.mark.parametrize("kind", ["feature", "concept"])
def test_rounds_before_the_drift_are_those_of_the_plain_run(kind: str, tmp_path: Path):
    plain = lines(run(tmp_path / "plain"))
    found = lines(run(tmp_path / "drift", **drift(kind)))
    for key in ("accuracy", "loss", "train_loss", "weights"):
        assert [row[key] for row in found[:3]] == [row[key] for row in plain[:3]]
    assert found[3]["train_loss"] > plain[3]["train_loss"]  # trained on changed rows
    assert found[3]["accuracy"] < plain[3]["accuracy"]  # and judged on them


def test_pictures_are_turned_for_training_and_judging():
    rows = rows_of(drift("feature"))
    for now, before in ((rows.in_round(3)(1), rows(1)), (rows.in_round(5).common("test"), rows.common("test"))):
        assert torch.equal(now.x, torch.rot90(before.x, 1, (-2, -1)))
        assert torch.equal(now.y, before.y)
    assert rows.in_round(2) is rows
    assert torch.equal(rows.in_round(3)(UNION).x, torch.rot90(rows(UNION).x, 1, (-2, -1)))


def test_columns_of_a_table_are_turned_by_an_orthogonal_matrix():
    rows = rows_of({"data": {"name": "breast_cancer_wdbc"}, **drift("feature")})
    q = orthogonal(30, 1)
    np.testing.assert_allclose(q @ q.T, np.eye(30), atol=1e-12)
    np.testing.assert_allclose(rows.in_round(3)(0).x, rows(0).x.numpy() @ q, atol=1e-12)
    assert not np.allclose(q, orthogonal(30, 2))


def test_classes_change_places():
    rows = rows_of(drift(classes=[3, "5", 8]))
    moved = {3: 5, 5: 8, 8: 3}
    before = rows(0).y.tolist()
    assert rows.in_round(3)(0).y.tolist() == [moved.get(y, y) for y in before]
    assert {3, 5, 8} & {*before}


def test_a_prior_thins_the_rows_of_half_of_the_classes():
    rows = rows_of({"data": {"name": "digits"}, **drift("prior", keep=0.25)})
    for of in (lambda x: x(UNION).y, lambda x: x.common("test").y):
        before, after = (np.bincount(of(x), minlength=10) for x in (rows, rows.in_round(3)))
        whole = np.maximum(before, after)
        assert (before[:5] == whole[:5]).all()
        assert (after[5:] == whole[5:]).all()
        for part, n in ((before[5:], whole[5:]), (after[:5], whole[:5])):
            assert abs(part.sum() - 0.25 * n.sum()) < 3 * np.sqrt(n.sum() * 0.25 * 0.75)


def test_sizes_weights_and_steps_follow_a_prior(tmp_path: Path):
    given = {"partition": {"name": "shards", "clients": 4}, **drift("prior")}
    rows = rows_of(given)
    found = lines(run(tmp_path / "run", **given))
    for number in (2, 3):
        sizes = np.array(rows.in_round(number).partition.sizes)
        np.testing.assert_allclose(found[number]["weights"], sizes / sizes.sum())
        assert found[number]["steps"] == [-(-n // 32) for n in sizes]
    assert found[2]["weights"] != found[3]["weights"]


def test_clients_change_one_after_another():
    rows = rows_of(drift(share=0.75, ramp=3))
    first = {k: n for n in range(6, 0, -1) for k in range(4) if not torch.equal(rows.in_round(n)(k).y, rows(k).y)}
    assert sorted(first.values()) == [3, 4, 5]
    assert {*first} == {*rows.joins}
    assert rows.in_round(3)(UNION).n == rows(UNION).n
    assert not torch.equal(rows.in_round(3).common("test").y, rows.common("test").y)


def test_held_out_rows_follow_their_client():
    rows = rows_of({"evaluation": {"clients": 0.3}, **drift(share=0.25)})
    (changed,) = rows.joins
    for k in range(4):
        assert torch.equal(rows.in_round(3).kept(k, "held out").y, rows.kept(k, "held out").y) == (k != changed)


def test_public_rows_stay():
    rows = rows_of({"public": {"from": "train", "rows": 20}, "algorithm": {"name": "feddf"}, **drift("feature")})
    assert torch.equal(rows.in_round(3)(SERVER).x, rows(SERVER).x)


@pytest.mark.parametrize("kind", KINDS)
def test_workers_chunks_and_resume_agree(kind: str, tmp_path: Path):
    given = drift(kind, ramp=2)
    whole = run(tmp_path / "whole", **given)
    engine = {**SMALL["engine"], "workers": 2, "chunk": 2}
    assert same(whole, run(tmp_path / "two", **given, engine=engine))
    cut = run(tmp_path / "cut", **{**given, "rounds": 3})
    resume(cut, ["rounds=5"], baselines=False)
    assert same(whole, cut)


@pytest.mark.parametrize("kind", KINDS)
def test_engines_agree(kind: str, tmp_path: Path):
    fast, loop = (
        lines(run(tmp_path / name, **drift(kind), engine={"name": name, "workers": 1, "precision": "float64"}))
        for name in ("fast", "loop")
    )
    assert [row["loss"] for row in fast] == pytest.approx([row["loss"] for row in loop], rel=1e-9)


def test_a_guard_that_stays_refuses_what_a_guard_that_follows_commits(tmp_path: Path):
    given = {**drift(), "local": {"lr": 0.01, "epochs": 5}, "rounds": 8, "data": {"name": "digits", "limit": 500}}
    for drifted in (False, True):
        folder = run(tmp_path / str(drifted), **given, guard={"rows": 100, "tol": 0.3, "drifted": drifted})
        summary = json.loads((folder / "summary.json").read_text())
        assert summary["guard"]["drifted"] == drifted
        assert summary["guard"]["rejected_rounds"] == ([] if drifted else [*range(3, 9)])


def test_summary_and_page_tell_of_the_drift(tmp_path: Path):
    folder = run(tmp_path / "run", **drift())
    found = json.loads((folder / "summary.json").read_text())["drift"]
    of_rows = [row["macro_f1"] for row in lines(folder)]
    assert (found["figure"], found["clients"], found["before"]) == ("macro_f1", 4, pytest.approx(np.mean(of_rows[1:3])))
    assert found["depth"] == pytest.approx(found["before"] - min(of_rows[3:]))
    page = (folder / "report.html").read_text()
    assert "How the model followed the drift" in page
    assert f"was {found['before']:.4f} before" in page


def test_recovery_of_a_known_curve():
    curve = [0.1, 0.5, 0.8, 0.8, 0.8, 0.8, 0.8, 0.3, 0.5, 0.77, 0.7, 0.78, 0.79, 0.8]
    found = recovery([*enumerate(curve)], 7)
    assert found is not None
    assert (found.before, found.rounds, found.recovered) == (pytest.approx(0.8), 4, True)
    assert (found.depth, found.area) == (pytest.approx(0.5), pytest.approx(0.5 + 0.3 + 0.03 + 0.1 + 0.02 + 0.01))
    never = recovery([*enumerate(curve[:13])], 7)
    assert never is not None
    assert (never.rounds, never.recovered) == (5, False)
    assert recovery([*enumerate(curve)], 14) is None


def learning(seed: int, drop: float = 0.0) -> list[tuple[int, float]]:
    """A curve of 40 rounds with noise, and a drop from round 20 on."""
    noise = np.random.default_rng(seed).standard_normal(40)
    values = 1 - np.exp(-np.arange(40) / 8) + 0.02 * noise - drop * (np.arange(1, 41) >= 20)
    return [(i + 1, float(x)) for i, x in enumerate(values)]


def walk(seed: int) -> list[tuple[int, float]]:
    return [*enumerate(map(float, np.cumsum(np.random.default_rng(seed).standard_normal(40))), 1)]


@pytest.mark.parametrize("curve", [learning, walk])
def test_alarms_are_as_rarely_false_as_said(curve: Any):
    false = sum(bool(alarms(curve(seed), 40)) for seed in range(300))
    assert false <= FALSE_ALARMS * 300


def test_a_drop_raises_an_alarm_in_its_round():
    assert sum(alarms(learning(seed, 0.3), 40)[:1] == [20] for seed in range(100)) >= 95
    flat = [(i, 0.9) for i in range(1, 20)]
    assert alarms([*flat, (20, 0.89)], 40) == []
    assert alarms([*flat, (20, 0.8)], 40) == [20]


def test_baselines_drift_too_but_not_one_that_ends_before():
    config = parse({**SMALL, **drift(), "guard": {"rows": 20, "drifted": True}})
    assert baseline_config(config, "centralised", 5).drift == config.drift
    assert checked(baseline_config(config, "local_only", 2)).config.drift is None


REFUSED = [
    (drift(at=6), "drift.at = 6 is past the end: the run has 5 rounds"),
    (drift(share=0.1), "drift.share = 0.1 of 4 clients is nobody"),
    (drift(classes=["11", "2"]), "has no class '11'"),
    (drift(classes=[2, 12]), "has no class 12"),
    (drift(classes=[2, "2"]), "names a class twice"),
    (drift(classes=[2]), "one class cannot change places"),
    (drift("prior", classes=[*range(10)]), "some classes must become rare"),
    (drift("feature", classes=[1, 2]), "drift.classes are for"),
    (drift(keep=0.5), "drift.keep thins rows of kind = 'prior'"),
    ({**drift("prior"), "data": {"name": "diabetes_lars"}}, "changes classes, and 'diabetes_lars' has none"),
    ({**drift(), "data": {"name": "diabetes_lars"}}, "changes classes, and 'diabetes_lars' has none"),
    ({**drift("prior"), "privacy": [{"name": "secagg"}]}, "changes how many rows each client has"),
    ({**drift(), "privacy": [{"name": "randomised_response", "epsilon": 2.0}]}, "would be a second release"),
    ({**drift(), "attack": [{"name": "sign_flip", "share": 0.5}]}, r"\[\[attack\]\] beside \[drift\]"),
    ({**drift(), "observe": {"roles": ["server"]}}, r"\[observe\] beside \[drift\]"),
    ({**drift(), "evaluation": {"on": "validation"}}, "set evaluation.on = 'test'"),
    ({"guard": {"rows": 20, "drifted": True}}, "there is no \\[drift\\] for the guard's rows to follow"),
]


@pytest.mark.parametrize(("tables", "words"), REFUSED, ids=[words[:30] for _, words in REFUSED])
def test_what_cannot_drift_is_refused(tables: dict[str, Any], words: str):
    with pytest.raises(ConfigError, match=words):
        set_up(checked(parse({**SMALL, **tables})))


def test_parties_that_hold_columns_and_real_ones_do_not_drift():
    columns = {"partition": {"name": "vertical"}, "algorithm": {"name": "secureboost"}}
    with pytest.raises(ConfigError, match=r"\[drift\] is for clients that hold rows"):
        parse({"data": {"name": "breast_cancer_wdbc"}, **columns, **drift()})
    assert [
        words for words in plain_refusals.of_rows(drift()) if words.startswith("[drift] changes rows of a simulation")
    ]


def test_under_masks_the_rounds_drift_too(tmp_path: Path):
    plain, masked = (
        run(tmp_path / "plain", **drift()),
        run(tmp_path / "masked", **drift(), privacy=[{"name": "secagg"}]),
    )
    assert lines(masked)[-1]["loss"] == pytest.approx(lines(plain)[-1]["loss"], rel=1e-3)


@pytest.mark.parametrize("given", [drift("prior"), drift("prior", share=0.5), drift(classes=[0, 1], share=0.5)])
def test_the_constant_model_is_that_of_the_rows_after_the_drift(given: dict[str, Any], tmp_path: Path):
    """Its class is the most frequent one of the rows that clients train on at the end."""
    tables = {"data": {"name": "digits"}, **given}
    folder = run(tmp_path / "run", **tables)
    found = json.loads((folder / "summary.json").read_text())["trivial"]
    labels = torch.cat([rows_of(tables).in_round(5)(k).y for k in range(4)])
    assert found["answer"] == str(int(labels.bincount().argmax()))


def test_in_gossip_no_server_could_have_seen_a_drift(tmp_path: Path):
    folder = run(tmp_path / "run", **drift(), algorithm={"name": "gossip"})
    assert json.loads((folder / "summary.json").read_text())["drift"]["alarms"] == {}


def test_words_that_follow_words_cannot_drift_and_no_other_kind_is_advised():
    words = {
        "data": {"name": "stackoverflow"},
        "model": {"name": "stackoverflow_lstm"},
        "partition": {"name": "natural"},
    }
    for kind in ("prior", "feature", "concept"):
        with pytest.raises(
            ConfigError, match=r"'stackoverflow' is text without classes, which no kind of \[drift\] changes"
        ):
            set_up(checked(parse({**SMALL, **words, "drift": {"kind": kind, "at": 3}})))


@pytest.mark.parametrize(("rounds", "least"), [(12, 0.024), (40, 0.041)])
def test_the_smallest_fall_that_raises_an_alarm_is_as_said(rounds: int, least: float):
    for fall, found in ((least - 0.001, []), (least + 0.001, [12])):
        assert alarms([*((i, 1.0) for i in range(1, 12)), (12, 1 - fall)], rounds) == found

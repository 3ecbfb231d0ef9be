"""What users ask of `fedatlas recommend` and read: every mistake is told, noise and epsilon, and what is not known is said to be so."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

import fedatlas
from fedatlas.cli import main
from fedatlas.errors import ConfigError
from fedatlas.privacy.gaussian import epsilon_of
from fedatlas.recommender import user_experiment
from fedatlas.recommender.answer import answer_for
from fedatlas.recommender.answer_text import lines
from fedatlas.recommender.epsilon import epsilons, stated_at
from fedatlas.recommender.requirements import TABLES, TOP, requirements
from fedatlas.recommender.shipped import load_study

DOCS = Path(__file__).parents[2] / "docs" / "study.md"
INSIDE = {"nodes": 12, "rows": 3000, "heterogeneity": 0.4, "classes": 4, "centralised": 0.9}
NOISY = {"fedavg_dp_eps30", "fedavg_dp_eps300"}
WRONG: dict[str, Any] = {
    "text": "text", "empty": "", "negative": -4, "nan": float("nan"), "infinite": float("inf"), "table": {"a": 1}, "list": [1, 2],
    "true": True, "huge": 10**400, "empty table": {},
}  # fmt: skip
PLACES = [(None, key) for key in TOP] + [(table, key) for table, keys in TABLES.items() for key in keys]


def call(monkeypatch: pytest.MonkeyPatch, path: Path, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["fedatlas", "recommend", str(path), "--out", str(path.parent / "out"), *words])
    monkeypatch.setattr("signal.signal", lambda *_: None)
    with pytest.raises(SystemExit) as caught:
        main()
    return int(caught.value.code or 0)


def file(tmp_path: Path, tables: dict[str, Any]) -> Path:
    path = tmp_path / "r.toml"
    path.write_text(tomli_w.dumps(tables))
    return path


def answered(tmp_path: Path, federation: dict[str, Any] | None = None, **more: Any) -> tuple[dict[str, Any], str]:
    """An answer of the shipped study, and its text."""
    answer = fedatlas.recommend({"federation": INSIDE if federation is None else federation, **more}, out=tmp_path)
    json.dumps(answer, allow_nan=False)
    return answer, "\n".join(lines(answer, 0.9))


@pytest.mark.parametrize("value", list(WRONG))
@pytest.mark.parametrize(("table", "key"), PLACES)
def test_every_wrong_value_of_every_key_ends_in_one_sentence_and_exit_code_2(
    table: str | None, key: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):  # fmt: skip
    alone = {"counts": ("counts",), "experiment": ("experiment",)}.get(key, tuple(INSIDE))
    tables: dict[str, Any] = {"federation": {name: x for name, x in INSIDE.items() if name in alone}}
    (tables if table is None else tables.setdefault(table, {}))[key] = WRONG[value]
    assert call(monkeypatch, file(tmp_path, tables)) == 2
    said = capsys.readouterr().err
    assert said.startswith("fedatlas: ")
    assert said.count("\n") == 1
    assert said.rstrip().endswith((".", "?"))
    assert len(said) < 300
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("value", list(WRONG))
@pytest.mark.parametrize("table", list(TABLES))
def test_a_table_that_is_none_is_refused(table: str, value: str):
    if isinstance(WRONG[value], dict):
        return
    with pytest.raises(ConfigError, match=rf"{table} is a table: write \[{table}\]"):
        requirements({"federation": INSIDE, table: WRONG[value]})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a,b\n",
        "a,b\n1,2\n3\n",
        "a,b\n1,x\n",
        "a,b\n1,-2\n",
        "a,b\n1.5,2\n",
        "a,b\n0,0\n",
        "a\n5\n",
        f"a,b\n1,{10**40}\n",
    ],
)
def test_counts_that_are_none_are_refused_in_one_sentence(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):  # fmt: skip
    (tmp_path / "counts.csv").write_text(text)
    assert call(monkeypatch, file(tmp_path, {"federation": {"counts": "counts.csv"}})) == 2
    said = capsys.readouterr().err
    assert said.startswith("fedatlas: ")
    assert said.count("\n") == 1
    assert "counts" in said


@pytest.mark.parametrize("key", ["nodes", "rows", "heterogeneity"])
def test_what_lacks_is_named(key: str):
    with pytest.raises(ConfigError, match=rf"\[federation\] lacks {key}: give them"):
        requirements({"federation": {name: x for name, x in INSIDE.items() if name != key}})


@pytest.mark.parametrize(
    ("tables", "sentence"),
    [
        ({"experiment": "mine.toml"}, r"'experiment' stands at the top of the file: write it under \[federation\]\."),
        ({"privacy": {"experiment": "x"}}, r"'experiment' stands under \[privacy\]: write it under \[federation\]\."),
        ({"accuracy": 0.9}, r"'accuracy' stands at the top of the file: write it under \[at_least\], \[at_most\] or \[weights\]\."),
        ({"federation": {**INSIDE, "server_sees": "sums"}}, r"'server_sees' stands under \[federation\]: write it under \[privacy\]\."),
        ({"federation": {**INSIDE, "study": "small"}}, r"'study' stands under \[federation\]: move it to the top of the file"),
        ({"federation": {**INSIDE, "privacy": {}}}, r"the table 'privacy' stands under \[federation\]: write it with a heading"),
        ({"at_most": {"delta": 1e-5}}, r"'delta' stands under \[at_most\]: write it under \[privacy\]\."),
        ({"federation": {**INSIDE, "nodes": 12.5}}, r"federation\.nodes is 12\.5: give a whole number\."),
        ({"federation": {**INSIDE, "rows": 3000.5}}, r"federation\.rows is 3000\.5: give a whole number\."),
        ({"federation": {**INSIDE, "classes": 2.5}}, r"federation\.classes is 2\.5: give a whole number\."),
        ({"privacy": {"delta": 1.0}}, r"privacy\.delta is 1: give a probability between 0 and 1"),
        ({"privacy": {"delta": 0}}, r"privacy\.delta is 0: give a probability between 0 and 1"),
    ],
)  # fmt: skip
def test_a_key_in_a_wrong_place_is_told_where_it_goes(tables: dict[str, Any], sentence: str):
    with pytest.raises(ConfigError, match=sentence):
        requirements({"federation": INSIDE, **tables})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[partition]\nclients = -4\n", "partition.clients = -4: expected a number of 0 or more."),
        ("[local]\nlr = -1\n", "local.lr = -1: expected a number above 0."),  # a table that the choices replace
        ("[algorithm]\nname = 'fedprox'\nmu = -1\n", "mu = -1"),
        ("[data]\nname = 'california_housing'\nmissing = 'drop'\n[partition]\nname = 'iid'\n", "predicts a number"),
        ("[data]\nname = 'breast_cancer_wdbc'\n[partition]\nname = 'vertical'\n[algorithm]\nname = 'secureboost'\n", "hold columns"),
    ],
)  # fmt: skip
def test_an_experiment_that_cannot_be_answered_is_refused_before_anything_runs(
    text: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
):  # fmt: skip
    if "california" in text:
        request.getfixturevalue("shared_data")("tables/california_housing.csv.gz")
    (tmp_path / "mine.toml").write_text(text)
    assert call(monkeypatch, file(tmp_path, {"federation": {"experiment": "mine.toml"}})) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_noise_is_recommended_only_where_it_is_asked_for(tmp_path: Path):
    answer, said = answered(tmp_path)
    assert {one["choice"] for one in answer["refused"]} == NOISY
    assert "Excluded: fedavg_dp_eps30: it adds noise, which costs accuracy: limit at_most.epsilon to allow it." in said
    assert "psilon" not in said.replace("at_most.epsilon", "")
    for more in ({"at_most": {"epsilon": 500}}, {"weights": {"accuracy": 1, "epsilon": 1}}):
        answer, said = answered(tmp_path, **more)
        assert {entry["choice"] for entry in answer["top"]} <= NOISY
        assert answer["top"]
        assert answer["refused"] == []
    assert requirements({"federation": INSIDE, "privacy": {"server_sees": "noisy_sums"}}).noise_asked


def test_epsilon_is_stated_with_its_unit_delta_trust_and_what_picking_rates_costs(tmp_path: Path):
    answer, said = answered(tmp_path, at_most={"epsilon": 100}, privacy={"delta": 1e-5})
    first = answer["top"][0]
    z = {"fedavg_dp_eps30": 1.3234, "fedavg_dp_eps300": 0.3268}[first["choice"]]
    once, four = (epsilon_of((runs * first["rounds"]) ** 0.5 / z, 1e-5) for runs in (1, 4))
    assert first["predicted"]["epsilon"]["value"] == pytest.approx(once)
    assert f"Epsilon {once:.3g} of {first['choice']} protects one node with all its rows, at delta = 1e-05" in said
    assert "the server has to be trusted" in said
    assert (
        f"trying the study's 3 rates on your rows under the same noise, and then running {first['choice']}, makes it {four:.3g}."
        in said
    )
    assert "delta = 1e-05" in Path(first["experiment"]).read_text()
    own, _ = answered(tmp_path, at_most={"epsilon": 100})
    assert own["top"][0]["predicted"]["epsilon"]["value"] < 100
    assert any("at delta = 0.001" in note for note in own["notes"])
    _, said = answered(tmp_path, at_most={"epsilon": 100}, privacy={"delta": 0.1})
    assert "A delta of 0.1 is 1/12 or more" in said


def test_another_delta_leaves_the_noise_as_it_is():
    central = {"privacy": [{"name": "central_dp", "clip": 1.0, "noise_multiplier": 2.0, "delta": 1e-3}]}
    local = {"privacy": [{"name": "local_dp", "clip": 1.0, "epsilon": 3.0, "delta": 1e-3}]}
    assert stated_at(central, 1e-5)["privacy"][0]["delta"] == 1e-5
    assert stated_at(local, 1e-5) == local, "its noise follows from its delta"
    assert stated_at(central, None) == central
    assert epsilons(central, 10, [4], 1e-5) == [pytest.approx(epsilon_of(1.0, 1e-5))]
    assert epsilons(local, 10, [5], 1e-3) == [pytest.approx(3.0, rel=1e-4)]
    (stricter,), (twice,) = epsilons(local, 10, [5], 1e-5) or (), epsilons(local, 10, [5], runs=2) or ()
    assert stricter > 3.5
    assert 3.5 < twice < 6.0
    assert epsilons({"privacy": [{"name": "nbafl"}]}, 10, [1], 1e-5) is None


def test_no_limits_are_said_to_be_kept_where_there_are_none(tmp_path: Path):
    _, said = answered(tmp_path)
    assert "all limits" not in said
    assert "It finishes with chance" in said
    assert "It finished in 20" in said
    _, said = answered(tmp_path, at_least={"accuracy": 0.5})
    assert "It keeps all limits with chance" in said
    assert "It kept all limits in" in said


def test_an_infinite_epsilon_is_not_called_unknown(tmp_path: Path):
    sums = {"privacy": {"server_sees": "sums"}}
    answer, said = answered(tmp_path, at_most={"epsilon": 10}, **sums)
    assert answer["answer"] == "none"
    assert answer["nearest_miss"]["choice"].endswith("_secagg")
    assert "misses epsilon, which is infinite without noise." in said
    answer, said = answered(tmp_path, at_most={"epsilon": 0.01})
    assert answer["nearest_miss"]["choice"] == "fedavg_dp_eps30", "with noise it misses by a number"
    assert "misses epsilon by epsilon" in said


OUTSIDE = [
    ({"nodes": 2000, "rows": 100_000}, "the number of nodes (2,000; measured: 3 to 100)"),
    ({"nodes": 2}, "the number of nodes (2; measured: 3 to 100)"),
    ({"rows": 60_000}, "rows per node (5,000; measured: 16 to 1,600)"),
    ({"heterogeneity": 0.99}, "heterogeneity (0.99; measured: 0 to 0.927)"),
    ({"classes": 40}, "the number of classes (40; measured: 2 to 10)"),
]


@pytest.mark.parametrize(("change", "words"), OUTSIDE)
def test_outside_the_measured_range_nothing_is_foreseen(
    change: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):  # fmt: skip
    federation = {**INSIDE, **change}
    answer, said = answered(tmp_path, federation, at_least={"accuracy": 0.5}, at_most={"bytes": 1e12})
    assert (answer["answer"], answer["quality"]) == ("not known", "not known")
    assert words in said
    assert "Not known: nothing like your federation was measured" in said
    assert "Whether it keeps your limits on quality is not known; it keeps the others." in said
    assert (
        "name your experiment in [federation] experiment and run the command again: it races the choices on your rows"
        in said
    )
    assert "%" not in said
    assert "accuracy 0" not in said
    assert [entry["choice"] for entry in answer["top"][:2]] == [answer["best_single"], "fedavg"], "first to be measured"
    for entry in answer["top"]:
        assert {entry[key] for key in ("chance", "finishes", "utility", "front")} == {None}
        assert (entry["evidence"], entry["binding"]) == ([], [])
        quality = [entry["predicted"][name] for name in ("accuracy", "macro_f1", "client_accuracy_p10")]
        assert quality == [{"value": None, "low": None, "high": None}] * 3
        assert entry["predicted"]["bytes"]["value"] <= 1e12
        assert Path(entry["experiment"]).is_file()
    assert call(monkeypatch, file(tmp_path, {"federation": federation})) == 1
    assert "Not known" in capsys.readouterr().out


def test_a_race_outside_the_range_is_marked_as_extrapolated():
    fitted, more = load_study("small").fitted, {"federation": {**INSIDE, "nodes": 1000, "rows": 20_000}}
    asked = requirements(more)._replace(experiment="mine.toml")
    marked, inside, unraced = (
        [note for note in answer_for(fitted, one, track=False)["notes"] if "extrapolated" in note]
        for one in (asked, asked._replace(nodes=12.0, rows=3000.0), asked._replace(minutes=0.0))
    )
    assert "is extrapolated in the number of nodes (1,000; measured: 3 to 100)." in marked[0]
    assert (inside, unraced) == ([], [])


def test_limits_on_costs_are_answered_also_there(tmp_path: Path):
    federation = {**INSIDE, "nodes": 2000, "rows": 100_000}
    answer, said = answered(tmp_path, federation, at_most={"bytes": 1e6})
    assert answer["answer"] == "none"
    assert f"The nearest miss is {answer['nearest_miss']['choice']} for 1 round: it misses bytes sent by" in said
    answer, said = answered(tmp_path, federation, at_most={"bytes": 1e10}, weights={"bytes": 1})
    assert (answer["answer"], answer["quality"]) == ("found", "not asked")
    assert "It keeps all limits if it costs in your federation what it does in the nearest measured one" in said
    answer, said = answered(tmp_path, federation, at_most={"epsilon": 500}, weights={"epsilon": 1})
    assert "It keeps all limits, which are computed for your federation." in said


def test_limits_on_costs_need_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(user_experiment, "ensure", lambda *_: pytest.fail("a run"))
    text = "rounds = 2\ndata = { name = 'digits', limit = 400 }\npartition = { name = 'dirichlet', clients = 5 }\n"
    (tmp_path / "mine.toml").write_text(text)
    path = file(tmp_path, {"minutes": 0, "federation": {"experiment": "mine.toml"}, "at_most": {"bytes": 1e6}})
    answer = fedatlas.recommend(path, out=tmp_path / "out")
    said = "\n".join(lines(answer, 0.9))
    assert answer["quality"] == "not asked"
    assert "Costs only: no requirement is on quality, so nothing was trained and no quality is given." in said
    assert "It keeps all limits, which are computed for your federation; without" in said
    assert answer["top"][0]["predicted"]["bytes"]["value"] <= 1e6
    assert answer["top"][0]["chance"] is None


def test_outside_the_range_an_experiment_is_not_run_before_it_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(user_experiment, "ensure", lambda *_: pytest.fail("a run"))
    (tmp_path / "mine.toml").write_text(
        "data = { name = 'digits', limit = 400 }\npartition = { name = 'iid', clients = 2 }\n"
    )
    tables = {"minutes": 0, "federation": {"experiment": "mine.toml"}, "at_least": {"accuracy": 0.5}}
    answer = fedatlas.recommend(file(tmp_path, tables), out=tmp_path / "out")
    said = "\n".join(lines(answer, 0.9))
    assert answer["answer"] == "not known"
    again = "run the command again with minutes above 0: it races the choices on your rows"
    assert f"Measure the choices below: {again}." in said
    assert "Whether it keeps your limits on quality is not known.\n" in said
    assert not any("pooled training" in note or "intervals" in note for note in answer["notes"])


def test_the_prior_is_called_one(tmp_path: Path):
    answer, said = answered(tmp_path)
    assert answer["quality"] == "prior"
    assert "Your federation: 12 nodes, 3,000 training rows, 4 classes, h = 0.400;" in said
    assert all(type(answer["setting"][key]) is int for key in ("nodes", "rows", "classes"))
    assert "This is a prior: the choices were measured in other federations, not on your rows." in said


def test_nothing_is_measured_where_nothing_is_allowed(tmp_path: Path):
    (tmp_path / "mine.toml").write_text(
        "data = { name = 'digits', limit = 400 }\npartition = { name = 'iid', clients = 5 }\n"
    )
    tables = {
        "federation": {"experiment": "mine.toml", "centralised": 0.9}, "privacy": {"server_sees": "noisy_sums"},
    }  # fmt: skip
    answer = fedatlas.recommend(file(tmp_path, tables), out=tmp_path / "out")
    assert answer["answer"] == "none"
    assert not (tmp_path / "out" / "race" / "runs").exists()


def test_the_measured_range_in_the_docs_is_that_of_the_study():
    x = load_study("small").fitted.x
    (nodes, rows, h, classes), (most, most_rows, most_h, most_classes) = (
        (*np.exp(side[:2]), *side[2:]) for side in (x.min(axis=0), x.max(axis=0))
    )
    words = (
        f"`small` covers {nodes:.0f} to {most:.0f} nodes, {rows:.0f} to {most_rows:,.0f} rows per node, h from {h:.0f} to {most_h:.3f}, "
        f"and {classes:.0f} to {most_classes:.0f} classes."
    )
    assert words in " ".join(DOCS.read_text(encoding="utf-8").split())


def test_the_requirements_of_the_docs_are_answered(tmp_path: Path):
    text = DOCS.read_text(encoding="utf-8").split("# REQUIREMENTS.toml\n")[1].split("```")[0]
    (tmp_path / "r.toml").write_text(text)
    assert fedatlas.recommend(tmp_path / "r.toml", out=tmp_path / "out")["answer"] in ("found", "none")

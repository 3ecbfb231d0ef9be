"""The answer of runs: from a table whose truth is known to summary.json, the terminal, Python and the page."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from markupsafe import Markup
from typer.testing import CliRunner

from fedatlas import Experiment, run
from fedatlas.algorithms import ALGORITHMS
from fedatlas.algorithms.titles import TITLES, title_of
from fedatlas.cli import app
from fedatlas.config import parse
from fedatlas.errors import ConfigError
from fedatlas.record.run_folder import RunFolder
from fedatlas.reporting.words import said as in_words_of
from fedatlas.vertical import SCHEMES
from reports import Page

SIZES = {"Wien": 900, "Tirol": 500, "Lienz": 12, "Krems": 160}  # Krems: the office that holds "no" alone


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve weak columns, of which an office alone learns little; one row in nine says yes."""
    rng, path = np.random.default_rng(5), tmp_path_factory.mktemp("answer") / "offices.csv"
    truth = rng.normal(size=12) * 0.7
    with open(path, "w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["office", *(f"x{i}" for i in range(12)), "paid"])
        for office, n in SIZES.items():
            x = rng.normal(size=(n, 12))
            yes = rng.random(n) < 1 / (1 + np.exp(3.2 - x @ truth))
            for row, one in zip(x, yes & (office != "Krems"), strict=True):
                out.writerow([office, *(f"{v:.3f}" for v in row), "yes" if one else "no"])
    return path


def experiment(table: Path, **more: Any) -> Experiment:
    return Experiment.of(
        **{
            "rounds": 12,
            "data": {"name": "file", "path": str(table), "label": "paid", "client": "office"},
            "partition": {"name": "natural"},
            "model": {"name": "logistic"},
            "words": {"party": "office"},
            "engine": {"workers": 1},
            **more,
        }
    )


def test_the_answer_names_offices_on_their_own_rows_and_keeps_its_word_everywhere(table: Path, tmp_path: Path):
    done = run(experiment(table), out=tmp_path / "run", baselines=True)
    answer = done.summary["answer"]
    assert done.answer == answer["text"]
    assert answer["asked"]["figure"] == "auc", "accuracy says little where eight rows in nine are no"
    parties = {p["name"]: p for p in answer["parties"]}
    assert set(parties) == set(SIZES)
    assert parties["Lienz"]["fate"] == parties["Krems"]["fate"] == "too few to say"
    assert parties["Krems"]["alone_always"] == "no"
    krems = f"alone it always answers 'no', and its {parties['Krems']['test_rows']} test rows cannot judge any model."
    assert f"Krems has {parties['Krems']['train_rows']} training rows, all 'no': {krems}" in done.answer
    lacking = [name for name, p in parties.items() if p["together"] is None]
    assert "Krems" in lacking
    assert f"{' and '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} not in the means" in done.answer
    assert sum(p["test_rows"] for p in parties.values()) == answer["test_rows"]
    assert answer["mean_rows"] == sum(p["test_rows"] for p in parties.values() if p["together"] is not None)
    assert answer["together"] - answer["alone"] == pytest.approx(answer["gain"]["value"])
    assert answer["trivial"] == 0.5
    page = Page(tmp_path / "run" / "report.html")
    assert page.of("h2")[0][1] == "The answer"
    assert " ".join(done.answer.split()) in page.text()
    assert "What does each office gain?" in page.text()
    table_of_gains = page.table("run-gain-table")
    assert [row["gain_low"] for row in table_of_gains] == [
        "" if p["gain"] is None else str(p["gain"]["low"]) for p in answer["parties"]
    ], "one interval for each gain"
    assert [int(row["test_rows"]) for row in table_of_gains] == [p["test_rows"] for p in answer["parties"]]


def test_several_seeds_have_one_answer(table: Path, tmp_path: Path):
    done = run(experiment(table, seeds=[1, 2, 3]), out=tmp_path / "run", baselines=True)
    answer = done.summary["answer"]
    assert answer["seeds"] == [1, 2, 3]
    assert len(set(answer["judged_on"])) == 3
    assert ", 3 seeds), " in done.answer
    assert "a training" in done.answer
    assert "its unit is the seed" in done.answer
    page = Page(tmp_path / "run" / "report.html")
    assert "test rows, means of 3 seeds; below each gain" in page.text()
    shown = page.table("run-answer")
    assert [int(row["test_rows"]) for row in shown] == [p["test_rows"] for p in answer["parties"]]
    assert {p["name"] for p in answer["parties"]} == set(SIZES)
    assert " ".join(done.answer.split()) in Page(tmp_path / "run" / "report.html").text()


def test_the_advice_on_test_rows_does_what_it_says(tmp_path: Path):
    """Six hospitals of 100 rows, of which a fifth are test rows: about 20 each, where an interval takes 30."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=(600, 8))
    y = rng.random(600) < 1 / (1 + np.exp(-2 * x.sum(1)))
    owners = np.repeat([f"Hospital {c}" for c in "ABCDEF"], 100)
    common: dict[str, Any] = {"data": (x, np.where(y, "yes", "no"), owners), "seeds": [1, 2, 3], "rounds": 6}
    common |= {"model": "logistic", "local": {"lr": 0.1}, "words": {"party": "hospital"}, "engine": {"workers": 1}}
    before = run(Experiment.of(**common, test=0.2), out=tmp_path / "before", baselines=True)
    assert "too few rows to say for any of the 6 hospitals" in before.answer
    said = re.search(r"data\.test = ([\d.]+) would most likely do for all 6 hospitals\.", before.answer)
    assert said, before.answer
    page = Page(before.path / "report.html").text()
    assert "too few test rows for the interval of any gain" in page
    assert "no interval" in page, "the gain itself is shown"
    after = run(Experiment.of(**common, test=float(said[1])), out=tmp_path / "after", baselines=True)
    assert all(p["fewest"] >= 30 and p["gain"] for p in after.summary["answer"]["parties"])
    assert "too few" not in after.answer


def test_an_owner_that_is_no_client_in_some_seeds_mixes_up_nobody(tmp_path: Path):
    """Whose only row is a test row in a seed has no training row there, and the owners behind it have other numbers."""
    rng, path = np.random.default_rng(1), tmp_path / "offices.csv"
    x = rng.normal(size=(801, 2))
    offices = ["Asten", *["Bregenz"] * 400, *["Cilli"] * 400]
    yes = [(a > 0) != (b > 0 and office == "Cilli") for (a, b), office in zip(x, offices, strict=True)]
    lines = [f"{office},{a:.3f},{b:.3f},{y}" for office, (a, b), y in zip(offices, x, yes, strict=True)]
    path.write_text("\n".join(["office,a,b,paid", *lines]))
    data = {"name": "file", "path": str(path), "label": "paid", "client": "office", "test": 0.5}
    done = run(experiment(path, data=data, rounds=1, seeds=[1, 2, 3, 4]), out=tmp_path / "run", baselines=True)
    each = [RunFolder(done.path / f"seed-{seed}").summary() for seed in (1, 2, 3, 4)]
    assert len({len(one["per_client"]) for one in each}) == 2, "so it can fail"
    for name in ("Bregenz", "Cilli"):
        gains = [p["gain"]["value"] for one in each for p in one["answer"]["parties"] if p["name"] == name]
        told = next(p for p in done.summary["answer"]["parties"] if p["name"] == name)
        assert told["gain"]["value"] == pytest.approx(sum(gains) / 4)
    assert "per_client" not in done.summary
    table = Page(done.path / "report.html").table("run-gain-parties")
    assert [row["name"] for row in table] == ["Bregenz", "Cilli"]


def test_without_baselines_it_compares_with_the_trivial_model_and_says_how_to_get_more(table: Path, tmp_path: Path):
    done = run(experiment(table), out=tmp_path / "run", baselines=False)
    assert done.summary["answer"]["verdict"] == "not compared"
    assert (
        "run again with baselines (--baselines, in Python baselines=True), which also trains each office alone"
        in done.answer
    )
    assert "Always answering 'no' reaches 0.500" in done.answer


def test_a_margin_and_a_word_change_the_answer_and_no_hash(table: Path, tmp_path: Path):
    plain = experiment(table).config
    more = experiment(table, words={"party": "hospital"}, evaluation={"margin": 0.3}).config
    assert plain.hash() == more.hash() == experiment(table, words={}).config.hash()
    found = run(Experiment(more), out=tmp_path / "run", baselines=True)
    assert found.summary["answer"]["verdict"] == "no", "the mean gains less than the margin"
    assert "The mean gain is below 0.300, up to which models count as equally good (evaluation.margin)." in found.answer
    with pytest.raises(ConfigError, match=r"words\.party"):
        parse({"words": {"party": "<b>"}})


def test_the_command_ends_with_the_answer(table: Path, tmp_path: Path):
    keys = [f"data.path={table}", "data.name=file", "data.label=paid", "data.client=office", "partition.name=natural"]
    run_it = ["run", *keys, "model.name=logistic", "rounds=2", "--out", str(tmp_path / "run"), "--baselines"]
    loud = CliRunner().invoke(app, run_it)
    assert loud.exit_code == 0, loud.output
    assert loud.output.count("with FedAvg: together AUC") == 1
    quiet = CliRunner().invoke(app, [*run_it[:-2], str(tmp_path / "quiet"), "--baselines", "--quiet"])
    assert quiet.stdout.count("with FedAvg: together AUC") == 1


def test_a_restless_end_is_told_with_what_calms_it(table: Path, tmp_path: Path):
    """One office in each round, and long work: the model jumps from one office's to the next one's."""
    restless = {"local": {"lr": 1.0, "batch_size": 4, "epochs": 10}, "cohort": {"size": 1}, "seed": 6}
    done = run(experiment(table, **restless), out=tmp_path / "run", baselines=True)
    assert done.summary["answer"]["swing"] > 0
    sentence = done.answer.rpartition("Over the last rounds ")[2]
    assert "swings by" in sentence
    assert 'local.schedule.name = "cosine"' in sentence
    rows = [row["train_rows"] for row in done.summary["per_client"]]
    assert ('local.last_batch = "merge"' in sentence) == any(n % 4 == 1 for n in rows)
    calm = run(experiment(table, local={"lr": 0.001}), out=tmp_path / "calm", baselines=False)
    assert "swings" not in calm.answer


def test_every_scheme_has_a_name_for_the_sentence():
    assert TITLES.keys() == {*ALGORITHMS, *SCHEMES}
    assert title_of("mine") == "mine"


def test_the_page_says_the_users_word_in_its_sentences_and_leaves_keys_and_names(table: Path, tmp_path: Path):
    done = run(experiment(table, rounds=2), out=tmp_path / "run", baselines=True)
    page = Page(done.path / "report.html")
    said = [text for tag in ("p", "figcaption", "caption") for _, text in page.of(tag)]
    assert sum("office" in text for text in said) > 5
    assert not [text for text in said if re.search(r"\bclients?\b", text)]
    assert "partition.clients" not in " ".join(said)
    plain = run(experiment(table, rounds=2, words={}), out=tmp_path / "plain", baselines=False)
    assert "each client" in " ".join(text for _, text in Page(plain.path / "report.html").of("p"))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("A client gains; the clients' rows", "An office gains; the offices' rows"),
        ("per client and round, of a client's own", "per office and round, of an office's own"),
        ("set evaluation.clients or client:3, --client=2", "set evaluation.clients or client:3, --client=2"),
        ("the class 'client' of superclients", "the class 'client' of superclients"),
        (
            Markup('<a href="client">each client</a> <code>clients = 3</code>'),
            '<a href="client">each office</a> <code>clients = 3</code>',
        ),
    ],
)
def test_the_users_word_takes_the_place_of_client_only_as_a_word(text: str, wanted: str):
    assert in_words_of(text, "office") == wanted


def test_the_rarer_class_is_the_one_that_is_spoken_of_unless_a_key_says_so(tmp_path: Path):
    """Of 'ja' and 'nein' the second by alphabet is the frequent one."""
    rng, path = np.random.default_rng(7), tmp_path / "offices.csv"
    with open(path, "w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["office", "x", "paid"])
        for office in ("Wien", "Graz"):
            for x in rng.normal(size=300):
                out.writerow([office, f"{x:.3f}", "ja" if x + rng.normal() > 1.9 else "nein"])
    done = run(experiment(path, evaluation={"metric": "pr_auc"}), out=tmp_path / "run", baselines=True)
    assert done.summary["metric"]["positive"] == "ja"
    assert "average precision of 'ja'" in done.answer
    page = Page(tmp_path / "run" / "report.html")
    assert "quality of the probabilities of 'ja'" in page.text()
    assert "recall of 'ja'" in page.text()
    assert "always answering 'nein': 0." in page.text(), "the constant's accuracy beside the model's"
    asked = {"metric": "pr_auc", "positive": "nein"}
    other = run(experiment(path, evaluation=asked), out=tmp_path / "other", baselines=True)
    assert "average precision of 'nein'" in other.answer
    assert other.summary["answer"]["together"] > 0.8 > done.summary["answer"]["together"]
    share = other.summary["trivial"]["value"]
    assert done.summary["trivial"]["value"] == pytest.approx(1 - share), "a constant's is the share of the class"
    for one in (done, other):
        gain = one.summary["gain"]["metric"]["own_mean"]["value"]
        assert gain == pytest.approx(one.summary["answer"]["gain"]["value"])
        assert one.summary["metric"]["own"]["value"] == pytest.approx(one.summary["answer"]["together"])
    with pytest.raises(ConfigError, match="use 'ja' or 'nein'"):
        run(experiment(path, evaluation={"positive": "yes"}), out=tmp_path / "none")

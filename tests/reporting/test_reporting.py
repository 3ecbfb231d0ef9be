"""The report: every figure on the page is one of the run's files, in numbers, and the page needs nothing but itself."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from sklearn.datasets import load_breast_cancer
from typer.testing import CliRunner

from fedatlas import load
from fedatlas.api import Experiment, run
from fedatlas.cli import app
from fedatlas.errors import ConfigError
from fedatlas.reporting import write_report
from fedatlas.terminal import end_table
from fedatlas.wording import capital, is_spread, number, took_text
from reports import CURVES, KINDS, Page, at, rows, subjects, summary

TWO = [{"name": "mlp", "hidden": [h], "share": 0.5} for h in (16, 32)]
ALONE = ["The answer", "Results", "What does each client gain?", "Learning curves", "Data of each client", "What it cost",
         "Errors of the model", "What the clients sent", "Repeat this run"]  # fmt: skip


# -- the page as text ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["classes", "two_class", "half", "personal", "nothing", "numbers"])
def test_every_section_stands_in_its_place(reports: dict[str, Path], kind: str) -> None:
    baseline = kind == "personal"  # which has no answer
    assert [text for _, text in Page(reports[kind]).of("h2")] == ALONE[1 if baseline else 0 :]


@pytest.mark.parametrize("kind", KINDS)
def test_printed_figures_equal_the_summary(runs: dict[str, Path], reports: dict[str, Path], kind: str) -> None:
    found = Page(reports[kind]).of("data")
    assert len(found) >= (3 if kind == "nothing" else 8)
    for given_, text in found:
        subject, _, place = given_["data-key"].partition(":")
        value = at(summary(subjects(runs, kind)[subject]), place)
        assert float(given_["value"]) == value
        plain = re.fullmatch(r"−?[\d,]+(\.\d+)?", text)
        if plain:  # not '4.68 MB' or '1 min 15 s': those are tested by hand below
            digits = len(text.partition(".")[2])
            assert abs(float(text.replace(",", "").replace("−", "-")) - value) <= 0.5 * 10.0**-digits * (1 + 1e-9)


@pytest.mark.parametrize(
    ("kind", "task"), [("classes", "classes"), ("two_class", "classes"), ("numbers", "numbers"), ("half", "classes")]
)
def test_the_numbers_of_a_curve_are_the_rows(
    runs: dict[str, Path], reports: dict[str, Path], kind: str, task: str
) -> None:
    page, known = Page(reports[kind]), rows(runs[kind])
    sent = list(itertools.accumulate(r["bytes_up"] + r["bytes_down"] + r["bytes_peer"] for r in known))
    spent = list(itertools.accumulate(r["seconds"] for r in known))
    for key, axis in itertools.product(CURVES[task], ("round", "bytes", "seconds")):
        table = [r for r in page.table(f"{key}-by-{axis}") if r["curve"] != "training rows of the clients"]
        evaluated = [i for i, r in enumerate(known) if r[key] is not None]
        assert [float(r[key]) for r in table] == [known[i][key] for i in evaluated]
        assert [int(r["round"]) for r in table] == [known[i]["round"] for i in evaluated]
        assert [float(r["bytes_so_far"]) for r in table] == [sent[i] for i in evaluated]
        assert [float(r["seconds_so_far"]) for r in table] == [spent[i] for i in evaluated]


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        (
            {"algorithm": {"name": "cfl", "eps1": 10.0, "eps2": 0.0, "after_round": 0}},
            "A cluster's model is made for the rows of its own",
        ),
        ({"algorithm": {"name": "feddf"}, "models": TWO}, "An architecture's model is shared"),
        ({"algorithm": {"name": "feddyn"}}, "Other figures are those of 'global'"),
    ],
)
def test_every_model_has_its_curve(tmp_path: Path, tables: dict[str, Any], said: str) -> None:
    """A line a cluster or an architecture; a cluster's begins where it was split off."""
    page_of, folder = tmp_path / "page.html", tmp_path / "run"
    run(
        Experiment.of(rounds=3, partition={"name": "shards", "clients": 4}, **tables),
        out=folder,
        baselines=False,
    )
    page = Page(write_report([folder], page_of))
    known = [("global", str(row["round"]), repr(row["accuracy"])) for row in rows(folder) if "feddyn" in str(tables)]
    known += [
        (name, str(row["round"]), repr(model["accuracy"]))
        for row in rows(folder)
        for name, model in row.get("models", {}).items()
    ]
    assert len({name for name, *_ in known}) >= 2
    assert sorted((r["curve"], r["round"], r["models"]) for r in page.table("models-by-round")) == sorted(known)
    assert f"Accuracy of every model on the test rows. {said}" in page.text()


def test_several_seeds_have_a_curve_each_and_their_mean(runs: dict[str, Path], reports: dict[str, Path]) -> None:
    table = Page(reports["seeds"]).table("accuracy-by-round")
    one, two = (rows(runs["seeds"] / f"seed-{s}") for s in (1, 2))
    mean = [float(r["accuracy"]) for r in table if "mean" in r["curve"]]
    assert mean == pytest.approx([(a["accuracy"] + b["accuracy"]) / 2 for a, b in zip(one, two, strict=True)])
    assert len(table) == 3 * len(one)


def test_the_table_of_gains_is_the_summary(runs: dict[str, Path], reports: dict[str, Path]) -> None:
    for kind, sign in (("classes", 1), ("numbers", -1)):
        gain = summary(runs[kind])["gain"]
        table = Page(reports[kind]).table("run-gain-table")
        assert len(table) == len(gain["clients"])
        for row, known in zip(table, gain["clients"], strict=True):
            for part in ("local_only", "federated", "centralised"):
                assert [float(row[k]) for k in (part, f"{part}_low", f"{part}_high")] == [
                    known[part][k] for k in ("value", "low", "high")
                ]
            assert float(row["gain"]) == sign * (known["federated"]["value"] - known["local_only"]["value"])
            ends = {p["client"]: p["gain"] for p in summary(runs[kind])["answer"]["parties"]}
            sure = ends.get(known["client"], known["gain"])
            assert [row[k] for k in ("gain_low", "gain_high")] == [
                str(sure[k]) if sure else "" for k in ("low", "high")
            ]
            assert not sure or sure["low"] <= float(row["gain"]) <= sure["high"]


def test_clients_with_one_common_figure_have_no_spread(runs: dict[str, Path], reports: dict[str, Path]) -> None:
    """One model on one common test set: the terminal and the foot of the table tell its figure once."""
    kind = next(k for k in ("two_class", "numbers") if not any(c["own_rows"] for c in summary(runs[k])["per_client"]))
    found = summary(runs[kind])
    spread, figure = found["gain"]["summary"], found["gain"]["figure"]
    assert is_spread(spread["local_only"])
    assert not is_spread(spread["federated"])
    console = Console(width=120)
    with console.capture() as captured:
        console.print(end_table(found))
    lines = {line.split("  ")[0].strip(): line for line in captured.get().splitlines()}
    assert lines[f"{figure}, federated"].split()[2:] == [f"{spread['federated']['mean']:.4f}"]
    assert "worst" in lines[f"{figure}, local only"]
    page = Page(reports[kind]).text()
    worst = page[page.index("worst client" if figure == "accuracy" else " largest ") :][:60]
    assert number(spread["local_only"]["min"]) in worst
    assert number(spread["federated"]["min"]) not in worst


def test_the_page_opens_with_the_answer_and_has_no_second_opinion(
    runs: dict[str, Path], reports: dict[str, Path]
) -> None:
    for kind in ("classes", "numbers", "two_class", "half", "seeds"):
        answer, page = summary(runs[kind])["answer"], Page(reports[kind])
        leads = [text for given_, text in page.of("p") if given_.get("class") == "lead"]
        assert leads[0] == answer["text"]
        took = " ".join(took_text(summary(runs[kind])).split())
        assert took in " ".join(page.text().split()), "measured, beside the answer"
        assert "do better together than alone" not in page.text()
        if answer["parties"] and answer["compared"]:
            table = page.table("run-answer")
            assert [row["verdict"] for row in table] == [p["fate"] for p in answer["parties"]]
            assert [int(row["test_rows"]) for row in table] == [p["test_rows"] for p in answer["parties"]]
            whom = answer["text"].partition("; ")[2].partition(". ")[0]
            assert any(lead.lower() == f"{whom.lower()}." for lead in leads[1:]), "the gains' section says the same"


def test_without_baselines_it_says_how_to_get_them(reports: dict[str, Path]) -> None:
    assert "fedatlas run --baselines" in Page(reports["half"]).text()
    assert "itself a baseline" in Page(reports["personal"]).text()
    assert "no single confusion matrix" in Page(reports["personal"]).text()


def test_who_held_what_and_the_weights_are_the_run_s(runs: dict[str, Path], reports: dict[str, Path]) -> None:
    page, facts = Page(reports["half"]), summary(runs["half"])["partition_facts"]
    names = summary(runs["half"])["class_names"]
    assert [[int(row[name]) for name in names] for row in page.table("run-classes")] == facts["histogram"]
    for name in ("run-weights", "run-weights-by-round"):
        found = [(int(r["round"]), int(r["client"]), float(r["weight"])) for r in page.table(name)]
        known = rows(runs["half"])
        assert found == [(r["round"], k, w) for r in known for k, w in zip(r["clients"], r["weights"], strict=True)]


def test_costs_confusion_and_calibration_are_the_summary(runs: dict[str, Path], reports: dict[str, Path]) -> None:
    page, known = Page(reports["two_class"]), summary(runs["two_class"])
    totals = {row["what"]: float(row["total"]) for row in page.table("run-costs")}
    assert totals["sent from clients to server"] == known["cost"]["bytes_up"]
    assert totals["of which training"] == known["cost"]["seconds_by_phase"]["train"]
    assert totals["floating-point operations"] == known["cost"]["flops"]
    names = known["class_names"]
    assert [[float(row[name]) for name in names] for row in page.table("run-confusion")] == known["final"]["confusion"]
    bins = [{k: float(v) for k, v in row.items()} for row in page.table("run-reliability")]
    stated = known["final"]["two_class"]["reliability"]
    if known["metric"]["positive"] == names[0]:  # the rarer class: the same rows, seen from the other side
        turned = {"low": "high", "high": "low", "predicted": "predicted", "observed": "observed"}
        stated = [{"weight": b["weight"], **{k: 1 - b[of] for k, of in turned.items()}} for b in reversed(stated)]
    assert len(bins) == len(stated)
    for one, other in zip(bins, stated, strict=True):
        assert one == pytest.approx(other)
    per_round = [[int(row[k]) for k in ("bytes_up", "bytes_down", "bytes_peer")] for row in page.table("run-bytes")]
    assert per_round == [
        [row[k] for k in ("bytes_up", "bytes_down", "bytes_peer")] for row in rows(runs["two_class"])[1:]
    ]


def test_it_can_be_repeated_from_the_page_alone(
    runs: dict[str, Path], reports: dict[str, Path], tmp_path: Path
) -> None:
    file = tmp_path / "experiment.toml"
    file.write_text(Page(reports["half"]).file("experiment.toml"))
    again = run(Experiment.read(file), out=tmp_path / "again", baselines=False)
    assert (again.path / "model.safetensors").read_bytes() == (runs["half"] / "model.safetensors").read_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_is_sound_html_and_needs_nothing_else(reports: dict[str, Path], kind: str) -> None:
    page = Page(reports[kind])
    ids = [given_["id"] for _, given_, _ in page.elements if given_.get("id")]
    assert len(set(ids)) == len(ids)
    levels = [int(tag[1]) for tag, _, _ in page.elements if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert all(b - a <= 1 for a, b in itertools.pairwise(levels))
    for _, given_, _ in page.elements:
        assert all(name in ids for name in (given_.get("aria-labelledby") or "").split())
        for name in ("src", "href", "action", "data", "poster"):
            assert re.match(r"#|data:", given_.get(name) or "#"), given_
    assert not re.search(r"@import|url\(", page.of("style")[0][1])
    assert all(given_["aria-label"] for given_, _ in page.of("svg"))
    pictures = [given_["id"] for given_, _ in page.of("figure")]
    assert pictures
    for name in pictures:
        assert page.file(f"{name}.svg").startswith("<svg xmlns=")
        assert "var(--" not in page.file(f"{name}.svg")
        assert len(page.table(name)) >= 1


def test_names_are_text_never_markup(reports: dict[str, Path]) -> None:
    page = Page(reports["several"])
    assert "<b>classes & more" in page.text()
    assert "<b>classes" not in page.source


def test_runs_on_different_rows_are_not_compared_silently(
    runs: dict[str, Path], reports: dict[str, Path], tmp_path: Path
) -> None:
    warning = "judged on different rows"
    assert warning in Page(write_report([runs["classes"], runs["two_class"]], tmp_path / "apart.html")).text()
    assert warning not in Page(reports["several"]).text()
    both = "judged on each client's own rows", "judged on the same test rows for every client"
    assert all(words in Page(reports["several"]).text() for words in both), "the gains of two runs on different rows"
    alike = Page(write_report([runs["seeds"] / "seed-1", runs["seeds"] / "seed-2"], tmp_path / "alike.html")).text()
    assert not any(words in alike for words in both)


def test_the_mean_gain_is_the_difference_of_the_means_beside_it(
    runs: dict[str, Path], reports: dict[str, Path]
) -> None:
    means = {part: found["mean"] for part, found in summary(runs["classes"])["gain"]["summary"].items()}
    text = Page(reports["classes"]).text()
    shown = f"{means['federated'] - means['local_only']:+.3f}".replace("-", "\u2212")
    assert re.search(rf"mean[0-9.]+{re.escape(shown)} ", text), shown


def test_clients_with_too_few_rows_of_their_own_are_named_and_in_no_mean(tmp_path: Path) -> None:
    x, y = load_breast_cancer(return_X_y=True)
    owner, test = np.r_[np.zeros(117), np.ones(2), 2, 3 * np.ones(280)].astype(int), slice(400, 569)
    np.savez(
        tmp_path / "owned.npz", x_train=x[:400], y_train=y[:400], x_test=x[test], y_test=y[test], client_train=owner
    )
    tables = {"data": {"name": "file", "path": str(tmp_path / "owned.npz")}, "evaluation": {"clients": 0.2}}
    done = run(Experiment.of(rounds=1, partition={"name": "natural"}, **tables), out=tmp_path / "run", baselines=True)
    rows = done.summary["per_client"]
    assert [row["own_rows"] for row in rows] == [True, False, False, True]
    last = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()][-1]
    assert done.summary["gain"]["summary"]["federated"]["mean"] == pytest.approx(last["client_accuracy"]["mean"])
    text = Page(tmp_path / "run" / "report.html").text()
    assert (
        "each client's own rows, kept out of training (2 clients with too few rows for this are judged on the common ones"
        in text
    )
    assert text.count("on the common rows") == 2
    assert "mean, by test rows" in text


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("metrics.jsonl", ""),
        ("metrics.jsonl", "no row"),
        ("metrics.jsonl", "[1]"),
        ("summary.json", "{}"),
        ("summary.json", "[]"),
        ("partition.json", "[]"),
        ("partition.json", None),
        ("preprocess.json", "{"),
    ],
)
def test_a_damaged_folder_is_one_sentence(
    runs: dict[str, Path], tmp_path: Path, name: str, content: str | None
) -> None:
    shutil.copytree(runs["half"], tmp_path / "run")
    (tmp_path / "run" / name).unlink() if content is None else (tmp_path / "run" / name).write_text(content)
    with pytest.raises(ConfigError, match=rf"{name}' is damaged \(.*\): put the original back") as error:
        write_report([tmp_path / "run"], None)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("name", "content"), [("model.safetensors", "x"), ("preprocess.json", "{}")])
def test_a_damaged_model_is_one_sentence(runs: dict[str, Path], tmp_path: Path, name: str, content: str) -> None:
    shutil.copytree(runs["half"], tmp_path / "run")
    (tmp_path / "run" / name).write_text(content)
    with pytest.raises(ConfigError, match=rf"{name}' is damaged"):
        load(tmp_path / "run")


# -- what is refused ----------------------------------------------------------------------------------------------------------------


def test_wrong_input_is_one_sentence(runs: dict[str, Path], tmp_path: Path) -> None:
    unfinished = tmp_path / "unfinished"
    shutil.copytree(runs["half"], unfinished)
    (unfinished / "summary.json").unlink()
    same = [runs["half"], runs["half"]]
    for folders, said in (
        ([unfinished], "not finished"),
        ([tmp_path / "nowhere"], "not a run"),
        ([runs["classes"], runs["numbers"]], "a report for each"),
        (same, "named twice"),
        ([], "at least one"),
    ):
        with pytest.raises(ConfigError, match=said) as error:
            write_report(folders, tmp_path / "out.html")
        assert "\n" not in str(error.value)
    assert not (tmp_path / "out.html").exists()


def test_the_command_writes_it_into_the_run(runs: dict[str, Path]) -> None:
    done = CliRunner().invoke(app, ["report", str(runs["nothing"])])
    assert done.exit_code == 0, done.output
    assert Path(done.output.strip()) == runs["nothing"] / "report.html"
    assert Page(runs["nothing"] / "report.html").of("h1")[0][1] == "fedavg on digits"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no view was recorded", "No view was recorded"),
        ("candidates.npz was not drawn", "candidates.npz was not drawn"),
        ("../rows.csv has no label", "../rows.csv has no label"),
        ("local.lr = 3: diverges", "local.lr = 3: diverges"),
        ("label_inference could show nothing", "label_inference could show nothing"),
        ("attack 'gan' reads models.npz", "Attack 'gan' reads models.npz"),
        ("1.5 is odd", "1.5 is odd"),
        ("every row.", "Every row."),
        ("", ""),
    ],
)
def test_a_sentence_begins_with_a_capital_but_never_changes_a_name(text: str, shown: str) -> None:
    assert capital(text) == shown

"""The page for those who sign, of runs of every layout: whose rows, who learns what, and no count below the threshold."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

import fedatlas
from fedatlas import Experiment
from fedatlas.auditing import NOT_TRIED, VIOLATED
from fedatlas.auditing.cells import tellable
from fedatlas.auditing.release_page import render
from fedatlas.auditing.verdict import Account, Found, RowCount, TriedAttack, UntriedAttack, judge
from fedatlas.record.run_folder import RunFolder
from fedatlas.setup.refusals import checked
from reports import Page
from same_configurations import write_table
from same_whole import DIGITS, PARTIES, TREES, write_parties

TABLE = {"name": "file", "path": "table.csv", "label": "y", "drop": ["amount"], "client": "site", "missing": "drop"}
SHARED: dict[str, Any] = {"name": "file", "path": "table.csv", "label": "y", "drop": ["amount", "site"]}
NETWORKS = {"algorithm": {"name": "hybrid", "rounds": 1}, "data": SHARED, "partition": {"name": "hybrid"}}
COLUMNS: dict[str, dict[str, Any]] = {
    "secureboost": TREES,
    "federated_forest": {"parties": PARTIES, "algorithm": {"name": "federated_forest", "trees": 1}},
    "split": {"parties": PARTIES, "algorithm": {"name": "split", "rounds": 1}},
    "hybrid": NETWORKS,
    "private_ridge": {"algorithm": {"name": "private_ridge"}, "data": TABLE, "partition": {"name": "natural"}},
}


def audited(folder: Path, baselines: bool = False, **tables: Any) -> tuple[Any, str]:
    with contextlib.chdir(folder):
        write_table(Path("table.csv"))
        write_parties(Path())
        fedatlas.run(Experiment.of(**tables), out="run", baselines=baselines)
        done = fedatlas.audit("run")
    return done, Page(folder / done.page).text()


@pytest.mark.parametrize("name", COLUMNS)
def test_a_run_over_columns_says_whose_rows_and_who_learns_what(name: str, tmp_path: Path) -> None:
    done, page = audited(tmp_path, **COLUMNS[name])
    assert done.verdict.name == NOT_TRIED
    assert all(one["reason"] and not one["add"] for one in done.record["not_tried"])
    assert "guesses at labels" in {one["attack"] for one in done.record["not_tried"]}
    assert f"{4 if name == 'private_ridge' else 2} parties with " in page
    assert " 0 training rows" not in page
    assert "0 numbers" not in page
    assert "Who learns what" in page
    assert "every client's updates" not in page


def test_guesses_at_labels_are_tried_where_they_were_measured(tmp_path: Path) -> None:
    """Fewer rows than may be told hide no leak."""
    done, page = audited(tmp_path, baselines=True, **COLUMNS["split"], audit={"min_cell": 50})
    assert done.verdict.name == VIOLATED
    assert "found more than its placebo" in page


@pytest.mark.parametrize(
    ("name", "who"), [("gossip", "the nodes that hear it"), ("fedavg", "the server, and who reads")]
)
def test_a_run_without_a_mechanism_says_who_sees_what_leaves_a_client(name: str, who: str, tmp_path: Path) -> None:
    _, page = audited(tmp_path, **{**DIGITS, "rounds": 1, "algorithm": {"name": name}})
    assert f"to {who}" in page


def test_a_notice_that_counts_few_rows_stays_in_the_report(tmp_path: Path) -> None:
    """Rows left out of each owner: 7, 8, 4 and 5."""
    done, page = audited(tmp_path, **COLUMNS["private_ridge"])
    assert "left out: no label" not in page
    assert "4 notices of the run, about fewer than 10 rows, stand in its report only." in page
    assert done.verdict.name != VIOLATED


def test_counts_of_rows_are_found_in_sentences() -> None:
    few = ["7 rows of 'a' left out.", "One test row has a class.", "3 of 100 rows", "9 training rows"]
    few += [
        "3 training and 40 test rows with missing values were left out.",
        "Only 8 of 20 ids of the smallest table are",
    ]
    many = ["1,000 rows.", "Round 3 is rejected.", "10 rows", "0 rows", "One of the parties, with 20 rows."]
    assert tellable([*few, *many], 10) == (many, len(few))


def test_canaries_beside_no_noise_have_nothing_to_contradict(tmp_path: Path) -> None:
    noise = {"name": "central_dp", "clip": 1.0, "noise_multiplier": 0.0, "noise": "seed"}
    tables = {**DIGITS, "algorithm": {"name": "fedavg", "weights": "uniform"}, "rounds": 1, "privacy": [noise]}
    done, page = audited(tmp_path, **{**tables, "data": {**DIGITS["data"], "scale": "none"}}, audit={"canaries": 20})
    (one,) = (one for one in done.record["not_tried"] if one["attack"] == "canaries")
    assert "nothing to contradict" in one["reason"]
    assert "nothing to contradict" in page


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_cut_off_on_a_phone_or_a_desktop(browser: Any, width: int, tmp_path: Path) -> None:
    """Tables with long names and figures fit without scrolling, and many small counts hide no leak."""
    path = fedatlas.run(Experiment.of(**{**DIGITS, "rounds": 1}), out=tmp_path / "run", baselines=False).path
    run = RunFolder.open(path)
    names = ("membership by rmia online", "inverting_gradients", "guesses at labels by draws", "label_inference")
    tried = [
        TriedAttack(name, "client:12", "PSNR in dB", 1000, 44.7812, 12.3456, 32.4357, 30.12, 34.57, how="looks")
        for name in names
    ]
    spent = [Account("central_dp, secagg", "client", 1.9934, 1.3e-5, 3.6212, 1000, 4.4, 2.271, 8.3e-7)]
    few = [RowCount(f"training rows of client {k}", 3) for k in range(30)]
    found = Found(tried, [UntriedAttack("dlg", "no view", '[observe]\nroles = ["server"]')], spent, few)
    page = tmp_path / "page.html"
    page.write_text(render(run, run.summary(), found, judge(found), few, 10, checked(run.config())))
    assert "And 25 more reasons, below." in page.read_text()
    assert page.read_text().count("found more than its placebo") == len(tried)
    tab = browser.new_page(viewport={"width": width, "height": 900})
    tab.goto(page.as_uri())
    tab.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = true })")
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    wider = "[...document.querySelectorAll('.table')].filter((t) => t.scrollWidth > t.clientWidth).length"
    assert tab.evaluate(wider) == 0
    tab.close()

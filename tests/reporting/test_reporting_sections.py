"""A section of the report is one record: registered by a test, it stands on the pages of one run and of several."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedatlas import Experiment, run
from fedatlas.reporting import REPORT, write_report
from fedatlas.reporting.blocks import Block, TableBlock, Text
from fedatlas.reporting.entries import Entry, Subject
from fedatlas.reporting.sections import SECTIONS, ReportSection
from fedatlas.wording import csv_text
from reports import Page


def length(subject: Subject) -> list[Block]:
    """The rounds of one run; empty without any."""
    rounds = subject.summary["rounds"]
    return [Text(f"This run had {rounds} rounds.")] if rounds else []


def lengths(entries: Sequence[Entry]) -> list[Block]:
    """The rounds of several runs."""
    subjects = [subject for entry in entries for subject in entry.subjects]
    rows = [(subject.label, subject.printed("rounds", str)) for subject in subjects]
    csv = csv_text(("run", "rounds"), [(subject.label, subject.summary["rounds"]) for subject in subjects])
    return [TableBlock("lengths", "Rounds of each run", ["run", "rounds"], rows, csv)]


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = ReportSection("length", "How long {run} took", "Length", page=lengths, run=length)
    monkeypatch.setattr("fedatlas.reporting.page.SECTIONS", [SECTIONS[0], mine, *SECTIONS[1:]])


def test_a_registered_section_stands_in_its_place(runs: dict[str, Path], tmp_path: Path) -> None:
    page = Page(write_report([runs["half"]], tmp_path / "one.html"))
    titles = [text for _, text in page.of("h2")]
    assert titles[:3] == ["The answer", "How long this run took", "Results"]
    assert "This run had 4 rounds." in page.text()
    assert "Length" in page.of("nav")[0][1]
    assert "How long" not in Page(write_report([runs["nothing"]], tmp_path / "nothing.html")).text()


def test_of_several_runs_it_stands_once_for_all_and_in_each_chapter(runs: dict[str, Path], tmp_path: Path) -> None:
    page = Page(write_report([runs["half"], runs["seeds"]], tmp_path / "several.html"))
    assert [row["rounds"] for row in page.table("lengths")] == ["4", "2", "2"]
    titles = [text for _, text in page.of("h4") if text.startswith("How long")]
    assert titles == [f"How long {name} took" for name in ("half", "seeds, seed 1", "seeds, seed 2")]


@pytest.mark.parametrize("target", ["classes", "numbers"])
def test_charts_say_the_users_word_and_csv_files_keep_their_columns(tmp_path: Path, target: str):
    """With ``[words] party = "office"`` no chart says "client"; a CSV's columns stay, since programs read them."""
    stream = np.random.default_rng(1)
    x = pd.DataFrame({"a": stream.normal(size=300), "b": stream.normal(size=300)})
    x["site"] = np.where(np.arange(300) < 100, "North", "South")
    x["y"] = (x["a"] > 0).astype(int) if target == "classes" else 3.3 * x["a"] + x["b"]
    given = {"label": "y", "client": "site", "evaluation": {"clients": 0.2}, "words": {"party": "office"}}
    done = run(Experiment.of(data=x, rounds=3, **given), out=tmp_path / "run", baselines=True)
    text = (done.path / REPORT).read_text(encoding="utf-8")
    charts = re.findall(r"<figure.*?</figure>", text, re.DOTALL)
    assert len(charts) > 10
    heads = [head for one in charts for head in re.findall(r'href="data:text/csv[^"]*', one)]
    assert any("client" in head for head in heads)
    for one in charts:
        shown = re.sub(r'\b(?:href|download|id|for|class|name|aria-\w+by)="[^"]*"', "", one)
        assert "lient" not in shown, shown[max(0, shown.find("lient") - 80) :][:160]
    assert "at each office" in text

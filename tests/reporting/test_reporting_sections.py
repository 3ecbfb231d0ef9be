"""A section of the report is one record: registered by a test, it stands on the pages of one run and of several."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from fedatlas.reporting import write_report
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

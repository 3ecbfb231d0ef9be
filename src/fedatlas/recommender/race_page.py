"""The picture of a race: accuracy by bytes, seconds and epsilon of the choices, for this federation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path

from fedatlas.files import write_text
from fedatlas.recommender.race_text import accuracy_text, race_lines, table_of
from fedatlas.reporting.blocks import NARROW, WIDE, Block, Choice, Figure, Option, Section, TableBlock, TableCell, Text
from fedatlas.reporting.drawing.charts import Axis, Named, Point, scatter
from fedatlas.reporting.page import document
from fedatlas.study.plain import Row
from fedatlas.study.responses import RESPONSES
from fedatlas.wording import capital, csv_text, number

PAGE = "front.html"
COSTS = ("bytes", "seconds", "epsilon")
WIDE_ONLY = ("rounds", "chance of best", "time")  # columns that a phone does not show


def write_page(answer: Row, path: Path) -> Path:
    """Write the page of a race; return its path."""
    sections = [
        Section("answer", "The answer", answer_blocks(answer), "Answer"),
        Section("front", "Accuracy and what it costs", front_blocks(answer), "Front"),
        Section("choices", "Every choice", [table_block(answer)], "Choices"),
    ]
    write_text(path, document("Race", sections, [], [], version("fedatlas")))
    return path


def answer_blocks(answer: Row) -> list[Block]:
    """Return the lines of the terminal, without its table."""
    first, *rest = race_lines(answer)
    return [Text(first, tone="lead"), *(Text(line) for line in rest)]


def front_blocks(answer: Row) -> list[Block]:
    """Return a picture for each cost that some choice has."""
    entries, decided = answer["entries"], answer["race"]["decided"]
    head = Text(
        "A choice is on the front if no other is at least as good in accuracy, bytes, seconds and epsilon, and better in one of "
        "them. Up and left is better."
    )
    known = [cost for cost in COSTS if any(entry["predicted"][cost]["value"] for entry in entries)]
    judged = "that no rate and no cut has seen" if decided else "by which rates and cuts were picked"
    figures = [front_figure(entries, cost, judged) for cost in known]
    options = [Option(one.id, capital(RESPONSES[cost].name), [one]) for cost, one in zip(known, figures, strict=True)]
    return [head, *([Choice("by-cost", "By", options)] if len(figures) > 1 else figures)]


def front_figure(entries: Sequence[Row], cost: str, judged: str) -> Figure:
    """Return the picture of accuracy over one cost."""
    groups, shown = [], [entry for entry in entries if entry["predicted"][cost]["value"]]
    for label, style, on in (("on the front", 0, True), ("not on the front", 5, False)):
        here = [entry for entry in shown if entry["front"] is on]
        points = [
            Point(max(e["predicted"][cost]["value"], 1e-3), e["predicted"]["accuracy"]["value"], tip(e)) for e in here
        ]
        groups.append(Named(label, style, points, [entry["choice"] for entry in here]))
    x, y = Axis(RESPONSES[cost].name, RESPONSES[cost].text), Axis("accuracy", number)
    rows = [
        [e["choice"], e["rounds"], *(e["predicted"][key]["value"] for key in ("accuracy", *COSTS))] for e in entries
    ]
    return Figure(
        f"front-{cost}",
        f"Accuracy and {RESPONSES[cost].name}",
        f"Accuracy is measured on rows {judged}; each mark shows the other costs.",
        partial(scatter, x=x, y=y, groups=groups, label=f"Accuracy and {RESPONSES[cost].name} of the choices"),
        csv_text(["choice", "rounds", "accuracy", *COSTS], rows),
        (NARROW, WIDE),
    )


def tip(entry: Row) -> str:
    """Return the words of a mark."""
    costs = [
        f"{RESPONSES[cost].text(x)} {RESPONSES[cost].name}"
        for cost in COSTS
        if (x := entry["predicted"][cost]["value"])
    ]
    return f"{entry['choice']} for {entry['rounds']} rounds: accuracy {accuracy_text(entry)}; {', '.join(costs)}"


def table_block(answer: Row) -> TableBlock:
    """Return every choice that started as a row; a phone shows fewer columns."""
    head, *rows = table_of(answer)
    cells = [[table_cell(name, cell) for name, cell in zip(head, row, strict=True)] for row in rows]
    return TableBlock(
        "choices-table", "Every choice that started", [table_cell(x, x) for x in head], cells, csv_text(head, rows)
    )


def table_cell(column: str, text: str) -> TableCell:
    """Return a cell, its interval below its figure."""
    figure, _, interval = text.partition(" (")
    return TableCell(figure, interval.removesuffix(")"), column in WIDE_ONLY)

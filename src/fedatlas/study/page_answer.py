"""The opening of a study's page: the answer of each setting, and the table behind it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedatlas.reporting.blocks import Block, Cells, TableBlock, TableCell, Text, lead, optional
from fedatlas.study.measurements import levels_text
from fedatlas.study.page_parts import DRAWN, Analysis
from fedatlas.wording import DASH, bytes_text, count, csv_text, interval_text, number, signed

DIFFERENCES = ("gain", "over_trivial")
ENDS = ("value", "low", "high")


def answer_leads(found: Analysis) -> list[Block]:
    """Return the answer, between the sentences before and behind it."""
    said, every = found["answer"]["sentences"], found["sentences"]
    at = every.index(said[0])
    before, rest = (" ".join(part) for part in (every[:at], every[at + len(said) :]))
    return [
        *([Text(before)] if before else []),
        *map(lead, said),
        *([Text(rest)] if rest else []),
        *answer_table(found),
    ]


def answer_table(found: Analysis) -> list[TableBlock]:
    """Return the table of all settings: the choice to take, its figures and differences, and the verdict."""
    told = [one for one in found["answer"]["settings"] if one["answer"] is not None]
    if not told:
        return []
    answered = [one["answer"] for one in told]
    rows = [_row(one) for one in told]
    lines = [_line(one) for one in told]
    figures = {one["words"] for one in told}
    figure = figures.pop() if len(figures) == 1 else "the figure that decides"
    less = "less error" if any(one["asked"]["lower_is_better"] for one in answered) else ""
    head: Cells = [
        "Setting",
        TableCell("Take", "not told apart from"),
        TableCell("Verdict", "seeds"),
        TableCell("Together", "test rows"),
        TableCell("Gain over alone", less),
        optional("Better than the constant"),
        optional("All rows together"),
        optional("Sent a training"),
    ]
    caption = (
        f"The answer of each setting, by {figure}: means over seeds, below each difference its 95% interval (Student's t over "
        "seeds). Choices are told apart by Holm's rule over the pairs of a setting"
    )
    keys = (
        "setting figure take first verdict seeds test_rows together alone gain gain_low gain_high trivial over_trivial "
    )
    keys += "over_trivial_low over_trivial_high pooled bytes"
    folded = f"All {count(len(rows), 'setting')}" if len(rows) > DRAWN else ""
    return [TableBlock("answers", caption, head, rows, csv_text(keys.split(), lines), folded=folded)]


def _row(one: Mapping[str, Any]) -> Cells:
    found, others = one["answer"], [name for name in one["first"] if name != one["take"]]
    verdict = found["verdict"] if found["gain"] is not None or not found["compared"] else "too few to say"
    sent = optional(bytes_text(one["bytes"]))
    rows = count(found["test_rows"]) if found["test_rows"] else ""
    return [
        TableCell(levels_text(one["levels"]), one["words"]),
        TableCell(one["take"], ", ".join(others)),
        TableCell(verdict, count(len(found["seeds"]), "seed")),
        TableCell(number(found["together"]), rows),
        TableCell(*_ends(found["gain"])),
        TableCell(*_ends(found["over_trivial"]), optional=True),
        optional(number(found["pooled"])),
        sent,
    ]


def _ends(found: Mapping[str, float] | None) -> tuple[str, str]:
    return (DASH, "") if found is None else (signed(found["value"]), interval_text(found["low"], found["high"], signed))


def _line(one: Mapping[str, Any]) -> list[Any]:
    found = one["answer"]
    gain, beyond = ([(found[key] or {}).get(end) for end in ENDS] for key in DIFFERENCES)
    seeds, said = len(found["seeds"]), [one["take"], "; ".join(one["first"]), found["verdict"]]
    return [
        levels_text(one["levels"]),
        one["figure"],
        *said,
        seeds,
        found["test_rows"],
        found["together"],
        found["alone"],
        *gain,
        found["trivial"],
        *beyond,
        found["pooled"],
        one["bytes"],
    ]

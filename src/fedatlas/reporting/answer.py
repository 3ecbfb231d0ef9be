"""The first section: should we federate, with which scheme, at which cost, for whom, how sure. See `fedatlas.verdict`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from fedatlas.reporting.blocks import Block, Cells, TableBlock, TableCell, Text, lead, optional
from fedatlas.reporting.entries import Entry, whole
from fedatlas.reporting.ranking import ranked
from fedatlas.verdict.answer import Answer, of_plain
from fedatlas.verdict.rule import Ends, PartyVerdict, bonferroni
from fedatlas.wording import DASH, capital, count, csv_text, interval_text, number, plural, signed

LISTED, OPEN = 200, 12  # most parties in the table, and most without a fold


def answer_blocks(entries: Sequence[Entry]) -> list[Block]:
    """Return the answer of each folder, as the terminal and summary.json give it; empty if none has one."""
    several, out = len(entries) > 1, list[Block]()
    for entry in entries:
        found = entry.summary.get("answer")
        if not found:
            continue
        out.append(Text(Markup("<b>{}</b>. {}").format(entry.label, found["text"])) if several else lead(found["text"]))
        answer = of_plain(found)
        out += [_table(entry, answer)] if answer.parties and answer.compared and not several else []
    runs = {entry.label: {s.summary["seed"]: s.summary for s in whole(entry.subjects)} for entry in entries}
    if several and (found := ranked(runs)) is not None:
        out.insert(0, lead(found.text))
    return out


def _table(entry: Entry, found: Answer) -> TableBlock:
    """Return the fate of each party on test rows of its own."""
    asked = found.asked
    shown = found.parties[:LISTED]
    rows: list[Cells] = [
        [
            TableCell(p.name, f"alone always '{p.alone_always}'" if p.alone_always is not None else ""),
            count(p.test_rows),
            optional(number(p.alone)),
            optional(number(p.together)),
            TableCell(*_ends(p.gain)),
            p.fate,
        ]
        for p in shown
    ]
    foot: Cells = [
        "mean",
        count(found.test_rows if found.mean_rows is None else found.mean_rows),
        optional(number(found.alone)),
        optional(number(found.together)),
        TableCell(*_ends(found.gain)),
        "",
    ]
    head: Cells = [
        asked.party,
        f"{asked.rows}s",
        optional("alone"),
        optional("together"),
        TableCell("gain", _less(asked.lower_is_better)),
        "verdict",
    ]
    judged = sum(p.gain is not None for p in found.parties)
    level = f"{100 * bonferroni(judged):.3g}%"
    seeds = f", means of {count(len(found.seeds), 'seed')}" if len(found.seeds) > 1 else ""
    some = f", of the {plural(asked.party)} that have the figure" if found.left_out else ""
    caption = (
        f"{capital(asked.words)} of every {asked.party} on its own {asked.rows}s{seeds}; below each gain its {level} interval, so that "
        f"all hold together with 95%; last line: mean by {asked.rows}s{some}, with its 95% interval"
    )
    columns = (asked.party, "client", "test_rows", "alone", "together", "gain", "gain_low", "gain_high", "verdict")
    folded = f"The table of {count(len(found.parties), asked.party)}" if len(found.parties) > OPEN else ""
    text = csv_text(columns, [_line(p) for p in found.parties])
    return TableBlock(f"{entry.key}-answer", caption, head, rows, text, [foot], folded)


def _less(lower_is_better: bool) -> str:
    return "less error" if lower_is_better else ""


def _ends(found: Ends | None) -> tuple[str, str]:
    return (DASH, "") if found is None else (signed(found.value), interval_text(found.low, found.high, signed))


def _line(p: PartyVerdict) -> list[Any]:
    ends = (None, None, None) if p.gain is None else p.gain[:3]
    return [p.name, p.client, p.test_rows, p.alone, p.together, *ends, p.fate]

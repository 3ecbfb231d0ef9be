"""The first section: should we federate, with which scheme, at which cost, for whom, how sure. See `fedatlas.verdict`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from fedatlas.reporting.blocks import Block, Cells, TableBlock, TableCell, Text, lead, optional
from fedatlas.reporting.entries import Entry
from fedatlas.reporting.ranking import Ranked, ranked
from fedatlas.reporting.ranking_rows import resampled
from fedatlas.reporting.ranking_tables import ranking_tables
from fedatlas.verdict.answer import Answer, of_plain
from fedatlas.verdict.rule import Ends, PartyVerdict, bonferroni
from fedatlas.wording import DASH, capital, count, csv_text, interval_text, number, plural, signed, took_text

LISTED, OPEN = 200, 12  # most parties in the table, and most without a fold


def answer_blocks(entries: Sequence[Entry]) -> list[Block]:
    """Return the answer of each folder, as the terminal and summary.json give it; empty if none has one."""
    found = ranking_of(entries) if len(entries) > 1 else None
    several, out = len(entries) > 1, list[Block]()
    taken = "" if found is None else found.chosen
    first = next((entry for entry in entries if entry.label == taken and "answer" in entry.summary), None)
    if first is not None:
        out.append(lead(Markup("<b>{}</b>, the one to take. {}").format(taken, first.summary["answer"]["text"])))
    if found is not None:
        out += [lead(found.text), *ranking_tables(found)]
    for entry in entries:
        told = entry.summary.get("answer")
        if not told:
            continue
        took = took_text(entry.summary)
        if several:
            said = f"{took} Its answer is at the top." if entry is first else f"{told['text']} {took}"
            out.append(Text(Markup("<b>{}</b>. {}").format(entry.label, said)))
        else:
            out += [lead(told["text"]), Text(took)]
        answer, shown = of_plain(told), not several or (found is not None and found.chosen == entry.label)
        out += [_table(entry, answer)] if len(answer.parties) > 1 and answer.compared and shown else []
    return out


def ranking_of(entries: Sequence[Entry]) -> Ranked | None:
    """Rank the folders of a page by the runs that did not diverge; None as in `ranked`."""
    runs = {
        entry.label: {s.summary["seed"]: s for s in entry.subjects if "diverged" not in s.summary} for entry in entries
    }
    return ranked(
        {label: {seed: s.summary for seed, s in found.items()} for label, found in runs.items() if found},
        lambda label, seed: resampled(runs[label][seed].folder, runs[label][seed].summary),
    )


def _table(entry: Entry, found: Answer) -> TableBlock:
    """Return the fate of each party on its own test rows."""
    asked = found.asked
    shown = found.parties[:LISTED]
    rows: list[Cells] = [
        [
            TableCell(p.name, f"alone always '{p.alone_always}'" if p.alone_always is not None else ""),
            TableCell(count(p.test_rows), _fewest(p)),
            optional(number(p.alone)),
            optional(number(p.together)),
            TableCell(*_ends(p.gain) if p.gain is not None else _estimate(p, asked.better)),
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
    intervals = f"below each gain its {100 * bonferroni(judged):.3g}% interval, so that all hold together with 95%; "
    below = intervals if judged else f"too few {asked.rows}s for the interval of any gain; "
    seeds = f", means of {count(len(found.seeds), 'seed')}" if len(found.seeds) > 1 else ""
    some = f", of the {plural(asked.party)} that have the figure" if found.left_out else ""
    caption = (
        f"{capital(asked.words)} of every {asked.party} on its own {asked.rows}s{seeds}; {below}"
        f"last line: mean by {asked.rows}s{some}, with its 95% interval"
    )
    columns = (asked.party, "client", "test_rows", "alone", "together", "gain", "gain_low", "gain_high", "verdict")
    folded = f"The table of {count(len(found.parties), asked.party)}" if len(found.parties) > OPEN else ""
    text = csv_text(columns, [_line(p) for p in found.parties])
    return TableBlock(f"{entry.key}-answer", caption, head, rows, text, [foot], folded)


def _less(lower_is_better: bool) -> str:
    return "less error" if lower_is_better else ""


def _ends(found: Ends | None) -> tuple[str, str]:
    return (DASH, "") if found is None else (signed(found.value), interval_text(found.low, found.high, signed))


def _estimate(p: PartyVerdict, better: float) -> tuple[str, str]:
    """Return the gain of a party with too few rows for its interval."""
    if p.together is None or p.alone is None:
        return DASH, ""
    return signed(better * (p.together - p.alone)), "no interval"


def _fewest(p: PartyVerdict) -> str:
    return f"fewest {p.least_rows}" if p.least_rows < p.test_rows else ""


def _line(p: PartyVerdict) -> list[Any]:
    ends = (None, None, None) if p.gain is None else p.gain[:3]
    return [p.name, p.client, p.test_rows, p.alone, p.together, *ends, p.fate]

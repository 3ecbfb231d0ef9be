"""The page of a study: the answer first, then every setting, the effects on accuracy, the fronts, and the runs without a result.

It formats the content of ``analysis.json`` (`fedatlas.study.analyse`); every picture shows pooled training for comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version

from fedatlas.reporting.blocks import Block, Code, Section, TableBlock, TableCell, TermList, Text
from fedatlas.reporting.page import document
from fedatlas.study.measurements import levels_text
from fedatlas.study.page_answer import answer_leads
from fedatlas.study.page_effects import effects_blocks
from fedatlas.study.page_fronts import front_blocks
from fedatlas.study.page_parts import BASELINE, DRAWN, NAMED, Analysis, accuracy_of, heat_figure, setting_names
from fedatlas.study.plain import Row
from fedatlas.wording import DASH, count, csv_text, interval_note, number, share, signed


def render(found: Analysis) -> str:
    """Return the text of analysis.html."""
    sections = [
        Section("answer", "The answer", answer(found), "Answer"),
        Section("settings", "Setting by setting", settings(found), "Settings"),
        Section("effects", "Effects on accuracy", effects_blocks(found), "Effects"),
        Section("fronts", "The cost of accuracy", front_blocks(found), "Fronts"),
        Section("outcomes", "Outcomes of the runs", outcome_blocks(found), "Runs"),
    ]
    return document(f"Study {found['study']}", sections, [], [], version("fedatlas"))


def answer(found: Analysis) -> list[Block]:
    """Return the paragraph that answers, and the facts behind it."""
    chosen, given = ([name for name, role in found["factors"].items() if role == x] for x in ("choice", "setting"))
    over = {of["over"] for of in found["effects"].values()}
    noise = "over data sets" if over == {"data sets"} else "by the noise between paired seeds"
    level = share(found["confidence"])
    effects = f"; of effects: {level} for all effects on a response at once, {noise}" if over else ""
    facts = [
        ("Settings", f"{len(found['settings'])}, by {', '.join(given) or 'only the base'}"),
        ("Choices", f"{', '.join(found['choices'])} (by {', '.join(chosen)})"),
        ("Seeds in every cell", str(found["seeds"])),
        ("Intervals", f"of choices: {level}, of each difference by itself, within the seeds of a setting{effects}"),
    ]
    return [*answer_leads(found), TermList(facts)]


def settings(found: Analysis) -> list[Block]:
    """Return every choice in every setting, with the best and its lead."""
    names, rows = setting_names(found), [*found["choices"], BASELINE]
    heads = names if len(names) <= NAMED else [str(i + 1) for i in range(len(names))]
    values = [[accuracy_of(one, row) for one in found["settings"]] for row in found["choices"]]
    values.append([one["baseline"]["accuracy"] for one in found["settings"]])
    lines = [
        [(v, f"{row}, {name}: {number(v)}") for name, v in zip(names, line, strict=True)]
        for row, line in zip(rows, values, strict=True)
    ]
    how = "Darker is more accurate, on average over the seeds. The last line is pooled training, on all rows in one place."
    if len(names) > NAMED:
        how += " Settings are numbered as in the table below; each cell names its own."
    label = "Accuracy by choice and setting"
    figure = heat_figure("by-setting", label, how, ("choice", "setting"), rows, names, lines, heads)
    return [figure, winners(found, names)]


def winners(found: Analysis, names: Sequence[str]) -> TableBlock:
    """Return the best choices in each setting, and their lead, by the rule and the figure of the answer."""
    rows, table = [], []
    for i, (one, name) in enumerate(zip(found["settings"], names, strict=True)):
        told, first, facts = found["answer"]["settings"][i], one["first"], one["facts"]
        lead = one["lead"] or dict.fromkeys(("over", "value", "low", "high"))
        best = told["means"][first[0]] if first else None
        base = told["answer"]["pooled"] if told["answer"] else None
        held = f"{count(facts['nodes'] or 0, 'node')}, {count(round(facts['rows'] or 0), 'row')}"
        rows.append(
            [
                TableCell(f"{i + 1}. {name}", f"{held}, h {number(facts['heterogeneity'])}"),
                TableCell(", ".join(first) or "–", "cannot be told apart" if len(first) > 1 else ""),
                TableCell(number(best), told["words"]),
                TableCell(ahead_text(lead), interval_note(lead["low"], lead["high"]), optional=True),
                TableCell(number(base)),
            ]
        )
        ahead = [lead[key] for key in ("over", "value", "low", "high")]
        table.append((name, *facts.values(), "; ".join(first), told["figure"], best, *ahead, base))
    ahead_of = TableCell("Lead over the next that is told apart", optional=True)
    head = [TableCell("Setting"), TableCell("First"), TableCell("Mean"), ahead_of, TableCell(BASELINE.capitalize())]
    keys = "setting nodes rows h classes data first figure mean over ahead low high centralised".split()
    folded = f"All {len(names)} settings" if len(names) > DRAWN else ""
    return TableBlock(
        "winners",
        "The best choice in each setting, by the rule of the answer",
        head,
        rows,
        csv_text(keys, table),
        folded=folded,
    )


def ahead_text(lead: Row) -> str:
    """Return a lead as '+0.040 over scaffold'; a dash where none is told apart."""
    return DASH if lead["over"] is None else f"{signed(lead['value'])} over {lead['over']}"


def outcome_blocks(found: Analysis) -> list[Block]:
    """Return runs by their outcome, and the sentences of those without a result."""
    statuses = list(dict.fromkeys(status for of in found["outcomes"].values() for status in of))
    table = [[choice, *(of.get(s, 0) for s in statuses)] for choice, of in found["outcomes"].items()]
    rows = [[TableCell(choice), *(TableCell(count(n)) for n in numbers)] for choice, *numbers in table]
    head, csv = [TableCell("Choice"), *map(TableCell, statuses)], csv_text(["choice", *statuses], table)
    out: list[Block] = [
        Text(
            "Refused and diverged runs stay in the table: an average over only the surviving runs would favour unstable choices."
        ),
        TableBlock("outcomes-table", "Runs of cells by outcome", head, rows, csv),
    ]
    reasons = found.get("reasons", ())
    if reasons:
        rows = [
            [TableCell(f"{r['status']}: {levels_text(r['levels'])}, seed {r['seed']}"), TableCell(r["reason"])]
            for r in reasons
        ]
        csv = csv_text(["status", "seed", "reason"], [(r["status"], r["seed"], r["reason"]) for r in reasons])
        folded = f"Why: {count(len(rows), 'run')}"
        out.append(TableBlock("reasons", "Why", [TableCell("Run"), TableCell("Reason")], rows, csv, folded=folded))
    return [*out, Code("again", "Rebuild this page from the table", "fedatlas study STUDY.toml --analyse")]

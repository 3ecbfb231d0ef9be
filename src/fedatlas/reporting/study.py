"""The page of a study: the answer first, then every setting, what moves accuracy, the fronts, and what was lost on the way.

It sets what ``analysis.json`` holds (`fedatlas.study.analyse`); training on all rows together stands in every picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from importlib.metadata import version

from fedatlas.reporting.blocks import NARROW, WIDE, Block, Cell, Code, Facts, Figure, Section, Table, Text
from fedatlas.reporting.drawing.charts import heat
from fedatlas.reporting.page import document
from fedatlas.reporting.study_effects import effects
from fedatlas.reporting.study_fronts import fronts
from fedatlas.reporting.study_parts import BASELINE, DRAWN, NAMED, Analysis, accuracy_of, named, shaded
from fedatlas.wording import count, csv_text, interval_note, number, share, signed


def render(found: Analysis) -> str:
    """analysis.html."""
    sections = [
        Section("answer", "What the study says", answer(found), "Answer"),
        Section("settings", "Setting by setting", settings(found), "Settings"),
        Section("effects", "What moves accuracy", effects(found), "Effects"),
        Section("fronts", "What accuracy costs", fronts(found), "Fronts"),
        Section("outcomes", "What came of the runs", outcomes(found), "Runs"),
    ]
    return document(f"Study {found['study']}", sections, [], [], version("fedatlas"))


def answer(found: Analysis) -> list[Block]:
    """The paragraph that answers, and what it rests on."""
    chosen = [name for name, role in found["factors"].items() if role == "choice"]
    given = [name for name, role in found["factors"].items() if role == "setting"]
    facts = [
        ("Settings", f"{len(found['settings'])}, by {', '.join(given) or 'the base alone'}"),
        ("Choices", f"{', '.join(found['choices'])} (by {', '.join(chosen)})"),
        ("Seeds in every cell", str(found["seeds"])),
        (
            "Intervals",
            f"{share(found['confidence'])} for all differences, or all effects on a response, at once; noise between paired seeds",
        ),
    ]
    return [Text(" ".join(found["sentences"]), tone="lead"), Facts(facts)]


def settings(found: Analysis) -> list[Block]:
    """Every choice in every setting, and who wins by how much."""
    names, rows = named(found), [*found["choices"], BASELINE]
    heads = names if len(names) <= NAMED else [str(i + 1) for i in range(len(names))]
    values = [
        [one["baseline"]["accuracy"] if row == BASELINE else accuracy_of(one, row) for one in found["settings"]]
        for row in rows
    ]
    cells = shaded(
        [
            [(v, f"{row}, {names[i]}: {number(v)}") for i, v in enumerate(line)]
            for row, line in zip(rows, values, strict=True)
        ]
    )
    how = "Darker is more accurate, on average over the seeds. The last line is training on all rows in one place."
    if len(names) > NAMED:
        how += " Settings have the numbers of the table below; a cell says its own."
    titles = ("choice", "setting")
    figure = Figure(
        "by-setting",
        "Accuracy by choice and setting",
        how,
        partial(heat, rows=rows, columns=heads, cells=cells, titles=titles, label="Accuracy by choice and setting"),
        csv_text(["choice", *names], [[row, *line] for row, line in zip(rows, values, strict=True)]),
        (NARROW, WIDE),
    )
    return [figure, winners(found, names)]


def winners(found: Analysis, names: Sequence[str]) -> Table:
    """Who is first in each setting, and by how much."""
    rows, table = [], []
    for i, (one, name) in enumerate(zip(found["settings"], names, strict=True)):
        first, lead, base = one["first"], one["lead"], one["baseline"]["accuracy"]
        best = accuracy_of(one, first[0]) if first else None
        facts = one["facts"]
        what = f"{count(facts['nodes'] or 0, 'node')}, {count(round(facts['rows'] or 0), 'row')}, h {number(facts['heterogeneity'])}"
        ahead = Cell(signed(lead["value"]), interval_note(lead["low"], lead["high"])) if lead else Cell("–")
        rows.append(
            [
                Cell(f"{i + 1}. {name}", what),
                Cell(", ".join(first) or "–", "not told apart" if len(first) > 1 else ""),
                Cell(number(best)),
                Cell(ahead.body, ahead.note, optional=True),
                Cell(number(base)),
            ]
        )
        table.append(
            (
                name,
                facts["nodes"],
                facts["rows"],
                facts["heterogeneity"],
                facts["classes"],
                facts["data"],
                "; ".join(first),
                best,
            )
            + ((lead["over"], lead["value"], lead["low"], lead["high"]) if lead else (None, None, None, None))
            + (base,)
        )
    head = [
        Cell("Setting"),
        Cell("First"),
        Cell("Accuracy"),
        Cell("Ahead of the next that is told apart", optional=True),
        Cell(BASELINE.capitalize()),
    ]
    keys = [
        "setting",
        "nodes",
        "rows",
        "h",
        "classes",
        "data",
        "first",
        "accuracy",
        "over",
        "ahead",
        "low",
        "high",
        "centralised",
    ]
    folded = f"All {len(names)} settings" if len(names) > DRAWN else ""
    return Table("winners", "Who is first in each setting", head, rows, csv_text(keys, table), folded=folded)


def outcomes(found: Analysis) -> list[Block]:
    """Runs by what came of them, and the sentences of those that came to nothing."""
    statuses = list(dict.fromkeys(status for of in found["outcomes"].values() for status in of))
    rows = [[Cell(choice), *(Cell(count(of.get(s, 0))) for s in statuses)] for choice, of in found["outcomes"].items()]
    table = [[choice, *(of.get(s, 0) for s in statuses)] for choice, of in found["outcomes"].items()]
    out: list[Block] = [
        Text(
            "Refused and diverged runs stay in the table as outcomes: an average over those that survive would praise what is unstable."
        ),
        Table(
            "outcomes-table",
            "Runs of cells by what came of them",
            [Cell("Choice"), *map(Cell, statuses)],
            rows,
            csv_text(["choice", *statuses], table),
        ),
    ]
    reasons = [
        [
            Cell(f"{r['status']}: {', '.join(f'{f} {v}' for f, v in r['levels'].items())}, seed {r['seed']}"),
            Cell(r["reason"]),
        ]
        for r in found.get("reasons", ())
    ]
    if reasons:
        told = csv_text(["status", "seed", "reason"], [(r["status"], r["seed"], r["reason"]) for r in found["reasons"]])
        out.append(
            Table(
                "reasons",
                "Why",
                [Cell("Run"), Cell("Reason")],
                reasons,
                told,
                folded=f"Why: {count(len(reasons), 'run')}",
            )
        )
    return [*out, Code("again", "The same page again, from the table", "fedatlas study STUDY.toml --analyse")]

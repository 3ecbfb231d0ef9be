"""Parties that hold columns: the result, the importance of columns, the parties themselves.

``report.html`` is the page of the party that holds the label. Of the trees it shows that party's columns and
thresholds, and only the owner of all other nodes. ``report-NAME.html`` is another party's page: its columns and
thresholds, and no leaf values.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from markupsafe import Markup

from fedatlas.reporting.blocks import Block, Cells, Figure, Key, KeyFigures, TableBlock, TableCell, Text, lead, notice
from fedatlas.reporting.drawing.charts import Axis, Bars, bars
from fedatlas.reporting.entries import PARTY, Entry, Plain, Subject
from fedatlas.vertical import SCHEMES
from fedatlas.wording import NAMES, capital, count, csv_text, interval_text

COLUMNS = 30  # columns whose importance is drawn
USES = {"train": "to train on", "held": "held out to stop by", "test": "to test on"}


def columns_title(entries: Sequence[Entry]) -> str:
    """Return the title of the page."""
    s = entries[0].subjects[0].summary
    return f"{count(len(s['parties']), 'party', 'parties')}, one model: {s['data_facts']['label']}"


def columns_sentence(entry: Entry) -> Markup:
    """Return the run, or the runs with several seeds, in a sentence."""
    s, seeds = entry.subjects[0].summary, [str(one.summary["seed"]) for one in entry.subjects]
    names = " and ".join(one["name"] for one in s["parties"])
    often = f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} times, with the seeds {', '.join(seeds)}"
    return Markup("{} trained <b>{}</b> of their columns, in {}{}, to predict <b>{}</b>; {}.").format(
        names,
        s["model"],
        count(max(one.summary["rounds"] for one in entry.subjects), "round"),
        "" if s["protected"] else ", in the clear",
        s["data_facts"]["label"],
        often,
    )


def party_title(entries: Sequence[Entry]) -> str:
    """Return the title of the page of a party without the label."""
    return f"{entries[0].subjects[0].party}: its part of a model"


def party_blocks(subject: Subject) -> list[Block]:
    """Tell a party without the label whose page this is."""
    name = subject.party
    said = (
        f"'{name}' takes part in {count(subject.summary['rounds'], 'round')} with its own columns; another party holds the label. "
        f"This page shows only what '{name}' knows: its own columns and thresholds."
    )
    return [lead(said)]


def result_blocks(subject: Subject) -> list[Block]:
    """Return the figures to show first."""
    s = subject.summary
    words = SCHEMES[s["algorithm"]].words
    hidden = words.hidden if s["protected"] else f"This was a simulation in the clear: {words.clear}"
    names = " and ".join(one["name"] for one in s["parties"])
    first = (
        f"{names} have {s['align']['rows']:,} rows in common. {capital(s['model'])} of their columns, made in "
        f"{count(s['rounds'], 'round')}, predict '{s['data_facts']['label']}' on {s['rows']['test']:,} test rows not used for training."
    )
    out: list[Block] = [lead(first), cards(subject), Text(hidden, tone="" if s["protected"] else "notice")]
    if len(s["class_names"]) > 2:
        out.append(classes_table(subject))
    if "other_rows_judged" in s.get("figures", {}):
        out.append(groups_table(s))
    if s.get("stopped"):
        out.append(Text(f"Stopped {s['stopped']}"))
    return [*out, *(notice(f"Notice: {said}") for said in s["notices"])]


def groups_table(s: Plain) -> TableBlock:
    """Return how the model does on test rows that all parties have, and on those that only one has (hybrid)."""
    found = s["figures"]
    name = "rmse" if s["task"] == "numbers" else "accuracy"
    common, other = found["common_rows_judged"], found["other_rows_judged"]
    groups = [
        ("all parties have, by all columns", "common_rows", common),
        ("one party has, by shared columns", "other_rows", other),
    ]
    groups.append(("both", "both", common + other))
    rows = [[said, f"{n:,}", f"{found[f'{name}_of_{key}']:.4g}"] for said, key, n in groups]
    head = ["test rows that", "rows", NAMES[name]]
    return TableBlock("groups", "Rows that all parties have, and others", head, rows, csv_text(head, rows))


def cards(subject: Subject) -> KeyFigures:
    """Return the figures of the model with their intervals."""
    s, found = subject.summary, []
    for key in ("rmse", "r2", "loss") if s["task"] == "numbers" else ("auc", "accuracy", "loss"):
        low, high = s["final"]["interval"].get(key, (None, None))
        note = f"95% interval {interval_text(low, high)}" if low is not None else ""
        found.append(Key(capital(NAMES[key]), subject.printed(f"final.{key}"), note))
    return KeyFigures(found)


def classes_table(subject: Subject) -> TableBlock:
    """Return F1 of each of three or more classes."""
    names, f1 = subject.summary["class_names"], subject.summary["final"]["per_class_f1"]
    rows = [[name, subject.printed(f"final.per_class_f1.{c}")] for c, name in enumerate(names)]
    text = csv_text(("class", "f1"), list(zip(names, f1, strict=True)))
    return TableBlock("classes", "F1 of each class", ["class", "F1"], rows, text)


def importance_blocks(subject: Subject) -> list[Block]:
    """Return the gain by party and by column; on the page of a party without the label, only of its own columns."""
    s, importance = subject.summary, subject.summary["importance"]
    if subject.page == PARTY:
        importance = {subject.party: importance[subject.party]}
    total = sum(sum(own.values()) for own in importance.values()) or 1.0
    rows = [[name, f"{sum(own.values()) / total:.1%}", str(len(own))] for name, own in importance.items()]
    each = [(name, column, v) for name, own in importance.items() for column, v in own.items()]
    text = csv_text(("party", "column", "gain"), each)
    head = ["party", "share of the gain", "columns used"]
    table = TableBlock("importance-table", "Gain by party", *with_nodes(s, head, rows), text)
    if not each:
        return [Text("No column was of use."), table]
    more = f" The {COLUMNS} that gained most of {len(each)}." if len(each) > COLUMNS else ""
    how = SCHEMES[s["algorithm"]].words.gain
    how += (
        "; of its own columns."
        if subject.page == PARTY
        else "; the colour says whose column it is. A simulation knows every column's name; parties apart know only the places of "
        "another's columns."
    )
    shown = sorted(((v, name, column) for name, column, v in each), reverse=True)[:COLUMNS]
    stacks = [
        Bars(
            name,
            style,
            [v / total if name == whose else 0.0 for v, whose, _ in shown],
            [f"{name}, {column}: {v / total:.1%} of the gain" for v, _, column in shown],
        )
        for style, name in enumerate(importance)
    ]
    axis = Axis("share of the gain", lambda v: f"{v:.0%}")
    names = [column for _, _, column in shown]
    draw = partial(bars, names=names, title="column", y=axis, stacks=stacks, label="Gain by column")
    return [table, Figure("importance-columns", "Gain by column", how + more, draw, text)]


def with_nodes(s: Plain, head: list[str], rows: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    """Return (head, rows) with the number of nodes of each party, if the model is trees."""
    if "trees" not in s:
        return head, rows
    nodes = [str(sum(one.get(name, 0) for one in s["trees"])) for name, *_ in rows]
    return [*head[:2], "nodes", *head[2:]], [[*row[:2], n, *row[2:]] for row, n in zip(rows, nodes, strict=True)]


def parties_blocks(subject: Subject) -> list[Block]:
    """Return the rows and columns of each party, and the result of the alignment."""
    s = subject.summary
    ids = s["align"]["ids"]
    rows: list[Cells] = [
        [
            TableCell(one["name"], "holds the label" if one["active"] else ""),
            f"{one['columns']:,}",
            f"{one['rows']:,}",
            f"{one['matched'] / max(ids[one['name']], 1):.1%}",
        ]
        for one in s["parties"]
    ]
    text = csv_text(
        ("party", "columns", "rows", "ids", "matched"),
        [(p["name"], p["columns"], p["rows"], ids[p["name"]], p["matched"]) for p in s["parties"]],
    )
    head = ["party", "columns", "rows", "of its ids at all parties"]
    used = ", ".join(f"{n:,} {USES[part]}" for part, n in s["rows"].items() if n)
    psi = s["align"]["name"] == "psi"
    how = "matched by private set intersection" if psi else "which all parties had in the same order"
    return [
        TableBlock("parties", "The parties", head, rows, text),
        Text(f"{s['align']['rows']:,} common rows, {how}: {used}."),
        *_keys(s),
    ]


def _keys(s: Plain) -> list[Block]:
    """Return how ids were normalised, and of a linkage what each key found."""
    keys = s["align"].get("keys", ())
    made = [" + ".join(f"column {j} ({', '.join(own) or 'as it is'})" for j, own in enumerate(key, 1)) for key in keys]
    if not s["align"].get("linked"):
        return [Text(f"Ids are made of {made[0]}.")] if keys else []
    names = [one["name"] for one in s["parties"]]
    head = [
        "key",
        "made of",
        "rows matched",
        *(f"tried, {name}" for name in names),
        *(f"left out, {name}" for name in names),
    ]
    rows = [
        [
            str(k),
            made[k - 1],
            f"{one['rows']:,}",
            *(f"{one[part][name]:,}" for part in ("ids", "ambiguous") for name in names),
        ]
        for k, one in enumerate(s["align"]["passes"], 1)
    ]
    said = (
        "The keys were tried in turn, each with the rows that none before it had matched. Rows of a party that share their id were left "
        "out. A matched pair may still be two people: nobody can count such pairs here."
    )
    return [TableBlock("keys", "What each key matched", head, rows, csv_text(head, rows)), Text(said)]

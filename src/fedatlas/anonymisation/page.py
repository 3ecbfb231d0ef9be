"""The page of an anonymised table: what holds, class sizes, loss by column, the roles of columns, and what is not covered."""

from __future__ import annotations

from functools import partial
from importlib.metadata import version

import numpy as np

from fedatlas.anonymisation.anonymised import Anonymised
from fedatlas.anonymisation.text import NOT_COVERED, percent, sensitive_line
from fedatlas.reporting.blocks import (
    Block,
    Figure,
    Key,
    KeyFigures,
    Section,
    TableBlock,
    TermList,
    Text,
    lead,
    notice,
)
from fedatlas.reporting.drawing.charts import Axis, Bars, bars
from fedatlas.reporting.page import document
from fedatlas.wording import count, csv_text, listed

EDGES = (1, 2, 5, 10, 20, 50, 100, 1000)
"""Where groups of class sizes begin; k is added."""


def render(found: Anonymised, name: str) -> str:
    """Return the page of this table, whose file is called ``name``."""
    sections = [
        Section("answer", "The answer", answer(found), "Answer"),
        Section("classes", "Rows that look alike", [class_figure(found)], "Classes"),
        Section("loss", "What generalising lost", [loss_figure(found)], "Loss"),
        Section("roles", "The four roles of columns", roles(found), "Columns"),
        Section("limits", "What this does not cover", [TermList(NOT_COVERED)], "Limits"),
    ]
    return document(f"Anonymised table {name}", sections, [], [], version("fedatlas"))


def answer(found: Anonymised) -> list[Block]:
    """Return what holds, and the figures to show first."""
    before, after = found.risk
    rows, least = found.rows - found.left_out, int(found.after.min())
    by = listed(list(found.roles.quasi))
    alike = f"looks like at least {least - 1} others" if least > 1 else "may be unlike all others"
    out: list[Block] = [lead(f"Each of the {count(rows, 'row')} {alike} in {by}.")]
    out += [Text(sensitive_line(name, one, found.rules)) for name, one in found.sensitive.items()]
    lost = f"{count(found.left_out)} of {count(found.rows, 'row')}" if found.left_out else "none"
    note = f"highest of all rows; before: {percent(before.highest)}"
    keys = [
        Key("Risk of re-identification", percent(after.highest), note),
        Key("Mean risk", percent(after.mean), f"before: {percent(before.mean)}"),
        Key("Unique rows", percent(after.unique), f"before: {percent(before.unique)}"),
        Key("Information loss", percent(found.mean_loss), "0% = as read, 100% = nothing left"),
        Key("Rows left out", lost),
    ]
    how = (
        "The risk is that of a person whose quasi-identifiers somebody knows, and who is known to be in the table: 1 divided by the "
        "rows that look alike."
    )
    return [*out, KeyFigures(keys), Text(how), *map(notice, found.doubts)]


def class_figure(found: Anonymised) -> Figure:
    """Return how many rows are in classes of which size, before and after."""
    edges = sorted({*EDGES, found.rules.k})
    ends = [*(edge - 1 for edge in edges[1:]), None]
    names = [f"{a}+" if b is None else f"{a}" if a == b else f"{a}–{b}" for a, b in zip(edges, ends, strict=True)]
    held = {
        when: [int(rows[np.searchsorted(edges, rows, side="right") == i + 1].sum()) for i in range(len(edges))]
        for when, rows in (("before", found.before), ("after", found.after))
    }
    shown = [i for i in range(len(edges)) if any(rows[i] for rows in held.values())]
    table = [(names[i], held["before"][i], held["after"][i]) for i in shown]
    slots = [(f"{name}, {when}", n) for name, *rows in table for when, n in zip(held, rows, strict=True)]
    heads = [name for name, *_ in table]
    return Figure(
        "class-sizes",
        "Rows by the number of rows that look alike",
        "Each pair of bars is a range of class sizes: how many rows are in classes of that size before and after generalising. Rows at "
        f"the left are easiest to re-identify; after generalising no class has fewer than {found.rules.k} rows.",
        partial(_pairs, heads=heads, slots=slots),
        csv_text(["rows_alike", "rows_before", "rows_after"], table),
    )


def _pairs(width: int, heads: list[str], slots: list[tuple[str, int]]) -> str:
    """Draw pairs of bars side by side: each pair has a slot for either, and one that stays empty."""
    names, before, after = [], [], []
    tips: list[str] = []
    for i, head in enumerate(heads):
        pair = slots[2 * i : 2 * i + 2]
        names += ["", head, ""]
        before += [float(pair[0][1]), 0.0, 0.0]
        after += [0.0, float(pair[1][1]), 0.0]
        tips += [f"{name}: {count(n, 'row')}" for name, n in pair] + [""]
    stacks = [Bars("before", 1, before, tips), Bars("after", 0, after, tips)]
    return bars(width, names, "rows that look alike", Axis("rows", whole=True), stacks, "Rows by class size")


def loss_figure(found: Anonymised) -> Figure:
    """Return the loss of each quasi-identifier."""
    names, values = list(found.loss), list(found.loss.values())
    tips = [f"{name}: {percent(loss)}" for name, loss in found.loss.items()]
    return Figure(
        "loss-by-column",
        "Information loss by column",
        "Of a number: the range of its class, as a share of the range of the table. Of a category: the share of all categories that its "
        "cell names, 0 for a single one. Averaged over rows; a row that was left out counts as 100%.",
        lambda width: bars(
            width,
            names,
            "quasi-identifier",
            Axis("loss", percent, zero=True),
            [Bars("loss", 0, values, tips)],
            "Loss by column",
        ),
        csv_text(["column", "loss"], found.loss.items()),
    )


def roles(found: Anonymised) -> list[Block]:
    """Return each column's role and what happened to it."""
    held = "as read; l and t hold" if found.rules.l > 1 or found.rules.t < 1 else "as read"
    done = {
        "identifier": (found.roles.drop, "left out"),
        "quasi-identifier": (found.roles.quasi, "generalised"),
        "sensitive": (found.roles.sensitive, held),
    }
    named = [(name, role, what) for role, (names, what) in done.items() for name in names]
    known = {name for name, *_ in named}
    named += [(name, "other", "as read") for name in found.table.columns if name not in known]
    rules = found.rules
    return [
        Text(
            "Identifiers name a person. Quasi-identifiers do so together, for somebody who knows them from elsewhere. Sensitive columns "
            "are what should not be learnt about a person. The roles were given by the user; the program cannot know them."
        ),
        TableBlock(
            "column-roles",
            f"Columns by role (k = {rules.k}, l = {rules.l:g} {rules.diversity}, t = {rules.t:g})",
            ["Column", "Role", "In the table"],
            named,
            csv_text(["column", "role", "in_the_table"], named),
        ),
    ]

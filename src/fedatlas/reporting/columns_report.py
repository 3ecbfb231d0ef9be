"""The report of parties that hold columns: would this party's columns help, who brought what, the trees, the cost, what leaked to whom.

``report.html`` is the page of the party that holds the label: of the trees it shows that party's own columns and thresholds, of all other
nodes whose they are. ``report-NAME.html`` is another party's: its own columns and thresholds, and no leaf.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from fedatlas.record.run_folder import CONFIG, RunFolder
from fedatlas.reporting.blocks import (
    NARROW,
    WIDE,
    Block,
    Cell,
    Figure,
    Figures,
    Key,
    Keys,
    Section,
    Table,
    Text,
)
from fedatlas.reporting.columns_gain import gain_blocks
from fedatlas.reporting.columns_leaks import leak_blocks
from fedatlas.reporting.columns_trees import tree_blocks
from fedatlas.reporting.curves import curves
from fedatlas.reporting.drawing.charts import Axis, Bars, bars
from fedatlas.reporting.entries import Entry, Plain, Subject
from fedatlas.reporting.page import document
from fedatlas.reporting.reproduction import repeat_blocks
from fedatlas.wording import (
    NAMES,
    byte_unit,
    bytes_text,
    capital,
    count,
    csv_text,
    interval_text,
    number,
    printed,
    second_unit,
    seconds_text,
    tick,
)

COLUMNS = 30  # columns whose importance is drawn
LARGEST = 5  # phases whose seconds are drawn by tree; the table has all


def page_of(folder: RunFolder) -> str:
    """report.html of a run of parties that hold columns."""
    text = (folder.path / CONFIG).read_text(encoding="utf-8")
    name, summary = folder.path.name, folder.summary()
    subject = Subject(
        "run", name, folder.config(), text, folder.rows(), summary, folder.read_json("partition.json"), {}
    )
    entry = Entry("run", name, subject.config, text, summary, (subject,))
    own = next(one["name"] for one in summary["parties"] if one["active"])
    sections = [
        Section("result", "What came out", result_blocks(subject), "Result"),
        Section("gain", "Would a party's columns help?", gain_blocks(summary), "Gain"),
        Section("curves", "How learning went", [curves([entry])], "Learning"),
        Section("importance", "Who brought what", importance_blocks(summary), "Importance"),
        *trees(folder, own),
        Section("held", "Who held what", held_blocks(summary), "Data"),
        Section("cost", "What it cost", cost_blocks(subject), "Cost"),
        Section("left", "What leaked to whom", leak_blocks(summary), "What leaked"),
    ]
    repeats = [Section("repeat", "Repeat this run", repeat_blocks(entry), "Repeat")]
    title = f"{count(len(summary['parties']), 'party', 'parties')}, one model: {summary['data_facts']['label']}"
    return document(title, sections, [], repeats, summary["versions"].get("fedatlas", ""))


def trees(folder: RunFolder, own: str) -> list[Section]:
    """The section about trees, where the model is made of them."""
    if "trees" not in folder.summary():
        return []
    return [Section("trees", "The trees", tree_blocks(folder, own), "Trees")]


def page_of_other(folder: RunFolder, name: str) -> str:
    """report-NAME.html: what a party without the label may see of the run."""
    s = folder.summary()
    own = {**s, "importance": {name: s["importance"][name]}}
    lead = (
        f"'{name}' takes part in {count(s['rounds'], 'round')} with columns of its own; another party holds the label. This page shows "
        f"what '{name}' knows: its own columns and thresholds."
    )
    sections = [
        Section("result", "What this is", [Text(lead, tone="lead")], "Start"),
        Section("importance", f"What the columns of {name} bring", importance_blocks(own), "Importance"),
        *trees(folder, name),
        Section("held", "Who held what", held_blocks(s), "Data"),
        Section("left", "What leaked to whom", leak_blocks(s), "What leaked"),
    ]
    return document(f"{name}: its part of a model", sections, [], [], s["versions"].get("fedatlas", ""))


def result_blocks(subject: Subject) -> list[Block]:
    """The figures to see first."""
    s = subject.summary
    final, ends = s["final"], s["final"]["interval"]
    keys = ("rmse", "r2", "loss") if s["task"] == "numbers" else ("auc", "accuracy", "loss")
    cards = []
    for key in keys:
        low, high = ends.get(key, (None, None))
        note = f"95% interval {interval_text(low, high)}" if low is not None else ""
        cards.append(Key(capital(NAMES[key]), printed(final[key], subject.at(f"final.{key}"), number), note))
    hidden = (
        "Gradients crossed encrypted, under a Paillier key of the party that holds the label."
        if s["protected"]
        else "This was a simulation in the clear: gradients crossed as they are, and betray the labels. [[privacy]] paillier encrypts them."
    )
    names = " and ".join(one["name"] for one in s["parties"])
    lead = (
        f"{names} have {s['align']['rows']:,} rows in common. {s['model'].capitalize()} of their columns, made in "
        f"{count(s['rounds'], 'round')}, predict '{s['data_facts']['label']}' on {s['rows']['test']:,} rows that nothing was trained on."
    )
    out: list[Block] = [Text(lead, tone="lead"), Keys(cards), Text(hidden, tone="" if s["protected"] else "notice")]
    if s.get("stopped"):
        out.append(Text(f"Stopped {s['stopped']}"))
    return [*out, *(Text(f"Notice: {said}", tone="notice") for said in s["notices"])]


def importance_blocks(s: Plain) -> list[Block]:
    """Gain by party and by column."""
    importance: Mapping[str, Mapping[str, float]] = s["importance"]
    total = sum(sum(own.values()) for own in importance.values()) or 1.0
    nodes = {name: sum(one.get(name, 0) for one in s.get("trees", ())) for name in importance}
    rows = [
        [Cell(name), Cell(f"{sum(own.values()) / total:.1%}"), Cell(str(nodes[name])), Cell(str(len(own)))]
        for name, own in importance.items()
    ]
    text = csv_text(
        ("party", "column", "gain"),
        [(name, column, v) for name, own in importance.items() for column, v in own.items()],
    )
    head = [Cell("party"), Cell("share of the gain"), Cell("nodes"), Cell("columns used")]
    table = Table("importance-table", "Gain by party", head, rows, text)
    every = sorted(((v, name, column) for name, own in importance.items() for column, v in own.items()), reverse=True)
    shown = every[:COLUMNS]
    if not shown:
        return [Text("No column was of use: every tree is a single leaf."), table]
    stacks = [
        Bars(
            name,
            style,
            [v / total if name == whose else 0.0 for v, whose, _ in shown],
            [f"{name}, {column}: {v / total:.1%} of the gain" for v, _, column in shown],
        )
        for style, name in enumerate(importance)
    ]
    title = "Gain by column"
    draw = partial(_columns_drawn, [column for _, _, column in shown], stacks)
    more = f" The {COLUMNS} that gained most of {len(every)}." if len(every) > COLUMNS else ""
    if len(importance) == 1:
        how = f"How much of what its own splits gained a column brought, over all trees.{more}"
        return [Text(f"It owns {count(sum(nodes.values()), 'node')} of the trees."), _columns(title, how, draw, text)]
    how = (
        "How much of the loss's fall the splits on a column brought, over all trees; the colour says whose column it is. A simulation "
        f"knows every column's name; parties apart know of another's columns their places alone.{more}"
    )
    return [table, _columns(title, how, draw, text)]


def _columns(title: str, how: str, draw: Callable[[int], str], text: str) -> Figure:
    return Figure("importance-columns", title, how, draw, text, (NARROW, WIDE))


def _columns_drawn(names: Sequence[str], stacks: Sequence[Bars], width: int) -> str:
    return bars(width, names, "column", Axis("share of the gain", lambda v: f"{v:.0%}"), stacks, "Gain by column")


def held_blocks(s: Plain) -> list[Block]:
    """Rows and columns of each party, and what the alignment found."""
    ids = s["align"]["ids"]
    rows = [
        [
            Cell(one["name"], "holds the label" if one["active"] else ""),
            Cell(f"{one['columns']:,}"),
            Cell(f"{one['rows']:,}"),
            Cell(f"{one['matched'] / max(ids[one['name']], 1):.1%}"),
        ]
        for one in s["parties"]
    ]
    text = csv_text(
        ("party", "columns", "rows", "ids", "matched"),
        [(p["name"], p["columns"], p["rows"], ids[p["name"]], p["matched"]) for p in s["parties"]],
    )
    head = [Cell("party"), Cell("columns"), Cell("rows"), Cell("of its ids at all parties")]
    used = ", ".join(f"{n:,} {PARTS[part]}" for part, n in s["rows"].items() if n)
    how = (
        "matched by private set intersection"
        if s["align"]["name"] == "psi"
        else "which all parties had in the same order"
    )
    return [
        Table("parties", "The parties", head, rows, text),
        Text(f"{s['align']['rows']:,} common rows, {how}: {used}."),
    ]


PARTS = {"train": "to grow trees on", "held": "held out to stop by", "test": "to test on"}


def cost_blocks(subject: Subject) -> list[Block]:
    """Bytes and seconds by phase."""
    s, cost = subject.summary, subject.summary["cost"]
    spent = cost["seconds_by_phase"]
    first = subject.rows[0]
    rows = [
        [Cell("sent by parties"), Cell(printed(cost["bytes_up"], subject.at("cost.bytes_up"), bytes_text))],
        [Cell("sent to parties"), Cell(printed(cost["bytes_down"], subject.at("cost.bytes_down"), bytes_text))],
        [Cell("of these, alignment and set-up"), Cell(bytes_text(first["bytes_up"] + first["bytes_down"]))],
        [Cell("time"), Cell(printed(cost["seconds"], subject.at("cost.seconds"), seconds_text))],
        *([Cell(f"of which {PHASES.get(p, p)}"), Cell(seconds_text(v))] for p, v in spent.items()),
        *([Cell(f"{name}"), Cell(f"{n:,}")] for name, n in s.get("counts", {}).items() if n),
    ]
    text = csv_text(("phase", "seconds"), list(spent.items()))
    table = Table("costs", f"Cost of {count(s['rounds'], 'round')}", [Cell("what"), Cell("in all")], rows, text)
    said = (
        "Bytes are the size of the messages, each counted on its way to the coordinator and on its way from it. Seconds were measured on "
        "one machine that played all parties, one after another."
    )
    return [Text(said), table, Figures([_phases(subject), _bytes(subject)])]


PHASES = {
    "mask ids": "masking ids",
    "mask again": "masking the other's ids",
    "pass on": "masking the others' ids",
    "pass back": "handing the answers back",
    "match": "finding the common rows",
    "split rows": "drawing test rows",
    "told rows": "telling the others the test rows",
    "bins": "cutting columns into bins",
    "start": "beginning",
    "keys": "making the key",
    "gradients": "forming g and h, and encrypting them",
    "histogram": "adding up histograms",
    "open": "opening sums and choosing splits",
    "split": "splitting nodes",
    "leaves": "settling leaves",
    "judge": "judging",
}


def _phases(subject: Subject) -> Figure:
    rows = subject.rows[1:] or subject.rows
    spent = {
        p: sum(row["seconds_by_phase"].get(p, 0.0) for row in rows) for row in rows for p in row["seconds_by_phase"]
    }
    phases = list(spent)
    most = sorted(sorted(phases, key=lambda p: -spent[p])[:LARGEST], key=phases.index)
    unit, size = second_unit(max(row["seconds"] for row in rows))
    stacks = [
        Bars(
            PHASES.get(p, p),
            style,
            [row["seconds_by_phase"].get(p, 0.0) for row in rows],
            [
                f"tree {row['round']}, {PHASES.get(p, p)}: {seconds_text(row['seconds_by_phase'].get(p, 0.0))}"
                for row in rows
            ],
        )
        for style, p in enumerate(most)
    ]
    text = csv_text(
        ("tree", *phases), [(r["round"], *(r["seconds_by_phase"].get(p, 0.0) for p in phases)) for r in rows]
    )
    y = Axis(f"{unit} a tree", lambda v: tick(v / size), size)
    draw = partial(_bars_drawn, [str(row["round"]) for row in rows], y, stacks, "Seconds of each tree")
    return Figure(
        "seconds",
        "Seconds of each tree",
        f"One bar a tree, of {'all' if len(most) == len(phases) else 'the longest'} phases.",
        draw,
        text,
        (NARROW,),
    )


def _bytes(subject: Subject) -> Figure:
    rows = subject.rows[1:] or subject.rows
    unit, size = byte_unit(max(row["bytes_up"] + row["bytes_down"] for row in rows))
    stacks = [
        Bars(
            name,
            style,
            [float(row[key]) for row in rows],
            [f"tree {r['round']}, {name}: {bytes_text(r[key])}" for r in rows],
        )
        for style, (key, name) in enumerate({"bytes_up": "sent by parties", "bytes_down": "sent to parties"}.items())
    ]
    text = csv_text(("tree", "bytes_up", "bytes_down"), [(r["round"], r["bytes_up"], r["bytes_down"]) for r in rows])
    y = Axis(f"{unit} a tree", lambda v: tick(v / size), size)
    draw = partial(_bars_drawn, [str(row["round"]) for row in rows], y, stacks, "Bytes of each tree")
    return Figure("bytes", "Bytes of each tree", "One bar a tree, both directions.", draw, text, (NARROW,))


def _bars_drawn(names: Sequence[str], y: Axis, stacks: Sequence[Bars], label: str, width: int) -> str:
    return bars(width, names, "tree", y, [s._replace(style=s.style % 6) for s in stacks], label)

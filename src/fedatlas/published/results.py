"""Records of published experiments as pages and tables: published and obtained figures, gate by gate."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedatlas.study.plain import Plain, Row
from fedatlas.wording import count

Record = Row
COLOURS = {"pass": "green", "FAIL": "red"}


def word(gate: Record) -> str:
    """Return pass, FAIL, reported, or open while a seed is missing."""
    if gate["passed"] is None:
        return "reported" if gate.get("whole", gate["obtained"] != "not run") else "open"
    return "pass" if gate["passed"] else "FAIL"


def show(record: Record) -> None:
    """Print published and obtained figures on standard output."""
    console = Console(highlight=False)
    smaller = record["smaller"]
    label = f" ({smaller}: a smaller version, which passes no gate of the published one)" if smaller else ""
    table = Table(title=f"{record['title']}{label}", title_justify="left")
    for heading in ("gate", "published", "obtained", "seeds", "outcome"):
        table.add_column(heading, overflow="fold")
    for gate in record["gates"]:
        outcome = word(gate)
        said = (escape(gate[key]) for key in ("name", "published", "obtained"))
        table.add_row(*said, str(gate["seeds"]), f"[{COLOURS.get(outcome, 'yellow')}]{outcome}[/]")
    console.print(table)


def line(*cells: str) -> str:
    """Return a row of a table in Markdown."""
    return f"| {' | '.join(cells)} |"


def page(record: Record, folder: str = "") -> str:
    """Return the outcome as Markdown; its pictures are in ``folder``."""
    lines = [f"## {record['title']}", "", f"Source: {record['source']}.", ""]
    if record["smaller"]:
        lines += [f"**{record['smaller']}: smaller than the published experiment; it passes no gate.**", ""]
    lines += [*record["notes"], ""]
    lines += ["| gate | published | rule | obtained | seeds | outcome |", "|---|---|---|---|---|---|"]
    for gate in record["gates"]:
        cells = [*(gate[key] for key in ("name", "published", "rule", "obtained")), str(gate["seeds"]), word(gate)]
        lines.append(line(*(cell.replace("|", "/") for cell in cells)))
    if record.get("findings"):
        lines += ["", "**What was found.** " + record["findings"].strip()]
    for picture in record.get("curves", ()):
        lines += ["", f"![{picture['title']}]({folder}{picture['file']})"]
    seconds = sum(one["seconds"] for one in record["runs"])
    commits = sorted({short(one["commit"]) for one in record["runs"] if one["commit"]})
    cpus = sorted({one["cpu"]["model"] for one in record["runs"]})
    spent = f"{seconds:.0f} s of simulation in all (by the clock, other work on the machine included)"
    facts = f"{count(len(record['runs']), 'run')}, {spent}, on {', '.join(cpus)}; commits {', '.join(commits)}."
    command = f"fedatlas reproduce {record['study']}{flags(record['smaller'])}"
    return "\n".join([*lines, "", facts, f"Command: `{command}`.", ""])


def short(commit: str) -> str:
    """Return ten digits of a commit, and "-dirty" if the code was changed since."""
    digits, _, dirty = commit.partition("-")
    return digits[:10] + ("-dirty" if dirty else "")


def flags(smaller: str) -> str:
    """Return the command-line flags for 'quick-60-rounds'."""
    rounds = "".join(c for c in smaller if c.isdigit())
    return " --quick" * ("quick" in smaller) + (f" --rounds {rounds}" if rounds else "")


def linked(text: str) -> str:
    """Return Markdown with labels such as T9 linked to their line in docs/labels.md, in the page's folder; code is unchanged."""
    parts = re.split(r"(`[^`]*`|!?\[[^\]]*\]\([^)]*\))", text)
    label = re.compile(r"\b[BCDGHLMPSTVX]\d{1,2}a?\b")
    return "".join(
        part if i % 2 else label.sub(lambda m: f"[{m[0]}](labels.md#{m[0].lower()})", part)
        for i, part in enumerate(parts)
    )


def results_page(records: Sequence[Record]) -> str:
    """Return docs/results.md from the records of all targets."""
    return linked(
        "# Results\n\nPublished and obtained figures, gate by gate, generated from `docs/results/*.json`.\n"
        "A gate that fails is a finding, not an error. The text below each table says what was found.\n\n"
        + overview(records)
        + "\n".join(page(record, "results/") for record in records)
    )


def overview(records: Sequence[Record]) -> str:
    """Return a table with one line per record: size of the run, and outcomes of its gates."""
    lines = ["| experiment | run | runs | pass | FAIL | open | reported |", "|---|---|---|---|---|---|---|"]
    for record in records:
        words = [word(gate) for gate in record["gates"]]
        counts = [str(words.count(outcome)) for outcome in ("pass", "FAIL", "open", "reported")]
        there, whole = len(record["runs"]), sum(len(part["seeds"]) for part in record["parts"])
        lines.append(line(record["title"], record["smaller"] or "as published", f"{there} of {whole}", *counts))
    return "\n".join([*lines, "", ""])


def read_records(folder: Path) -> list[Plain]:
    """Return the records in ``docs/results``, each with the hand-written findings of its NAME.txt."""
    found = []
    for path in sorted(folder.glob("*.json")):
        written = path.with_suffix(".txt")
        said = {"findings": written.read_text(encoding="utf-8")} if written.exists() else {}
        found.append({**json.loads(path.read_text(encoding="utf-8")), **said})
    return found

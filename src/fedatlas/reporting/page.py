"""The page: sections in their order, every picture and table with its files, all in one HTML document."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fedatlas.errors import as_utf8
from fedatlas.reporting.attackers import attacker_blocks
from fedatlas.reporting.blocks import Chapter, Choice, Figure, Section, Text
from fedatlas.reporting.client_rows import held_blocks
from fedatlas.reporting.confusion import error_blocks
from fedatlas.reporting.costs import cost_blocks
from fedatlas.reporting.curves import curves
from fedatlas.reporting.entries import Entry, Subject
from fedatlas.reporting.gain import gain_blocks, gain_of_parties, gain_over
from fedatlas.reporting.outcome import opening, title
from fedatlas.reporting.privacy import privacy_blocks
from fedatlas.reporting.reproduction import left_blocks, repeat_blocks
from fedatlas.reporting.view_attacks import leak_blocks

# The colours of a downloaded picture: chart.css asks for them by name, and a file outside the page has no such names.
LIGHT = re.compile(r"--([\w-]+):\s*([^;]+);")


def render(entries: Sequence[Entry]) -> str:
    """report.html of these runs."""
    subjects = [subject for entry in entries for subject in entry.subjects]
    alone = len(subjects) == 1
    sections = [
        Section("result", "What came out", opening(entries), "Result"),
        *(
            [Section("gain", "What does each party gain?", gain_blocks(subjects[0]), "Gain")]
            if alone
            else _gain_over(entries)
        ),
        Section("curves", "How learning went", [curves(entries)], "Learning"),
        *(_rest(subjects[0]) if alone else []),
    ]
    parts = [] if alone else [Chapter(s.key, s.label, _whole(s), i == 0) for i, s in enumerate(subjects)]
    repeats = [
        Section(
            f"{e.key}-repeat" if len(entries) > 1 else "repeat",
            f"Repeat {e.label}" if len(entries) > 1 else "Repeat this run",
            repeat_blocks(e),
            "" if len(entries) > 1 else "Repeat",
        )
        for e in entries
    ]
    return document(title(entries), sections, parts, repeats, subjects[0].summary["versions"].get("fedatlas", ""))


def document(
    name: str, sections: Sequence[Section], parts: Sequence[Chapter], repeats: Sequence[Section], version: str
) -> str:
    """One HTML document of these sections."""
    style, script = read("page.css").replace("/* chart.css */", read("chart.css")), read("page.js")
    style += "".join(map(chosen, sections))
    sha = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        environment()
        .get_template("page.html")
        .render(
            title=name,
            sections=sections,
            parts=parts,
            repeats=repeats,
            style=style,
            script=script,
            script_hash=sha,
            version=version,
        )
    )


def chosen(section: Section) -> str:
    """The style that shows the option that is chosen, of choices whose options page.css does not know by name."""
    return "".join(
        f'main:has(input[name="{block.id}"][value="{option.value}"]:checked) '
        f'[data-choice="{block.id}"][data-option="{option.value}"] {{ display: grid; }}\n'
        for block in section.blocks
        if isinstance(block, Choice) and block.id != "axis"
        for option in block.options
    )


def _gain_over(entries: Sequence[Entry]) -> list[Section]:
    over = gain_over(entries)
    hint = Markup("No run here has the baselines to compare with: <code>fedatlas run --baselines</code> trains them.")
    absent = Text(hint, tone="notice")
    parties = [table for entry in entries if (table := gain_of_parties(entry, len(entries) > 1))]
    return [Section("gain", "What does each party gain?", [over or absent, *parties], "Gain")]


def _rest(subject: Subject, before: str = "") -> list[Section]:
    """What follows the curves of a run."""
    errors, private, attacked = error_blocks(subject), privacy_blocks(subject), attacker_blocks(subject)
    leaks = leak_blocks(subject)
    return [
        *(
            [Section(f"{before}attackers", "What attackers did, and what resisted", attacked, "Attackers")]
            if attacked
            else []
        ),
        *([Section(f"{before}privacy", "What was protected, and from whom", private, "Privacy")] if private else []),
        *([Section(f"{before}leaks", "What a party could have learnt", leaks, "Leaks")] if leaks else []),
        Section(f"{before}held", "Who held what", held_blocks(subject), "Data"),
        Section(f"{before}cost", "What it cost", cost_blocks(subject), "Cost"),
        *([Section(f"{before}errors", "Where the model errs", errors, "Errors")] if errors else []),
        Section(f"{before}left", "What left the clients", left_blocks(subject), "What left"),
    ]


def _whole(subject: Subject) -> list[Section]:
    """Everything about one run among several."""
    before = f"{subject.key}-"
    return [
        Section(f"{before}gain-section", "What does each party gain?", gain_blocks(subject)),
        *_rest(subject, before),
    ]


@cache
def read(name: str) -> str:
    """A file that lies beside this one."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


@cache
def environment() -> Environment:
    """Templates in which everything is escaped that is not `Markup`."""
    loaded = Environment(
        loader=PackageLoader("fedatlas.reporting", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    loaded.filters |= {"drawn": drawn, "svg_link": svg_link, "csv_link": csv_link, "text_link": text_link}
    return loaded


def drawn(figure: Figure, width: int) -> str:
    """The picture for the page."""
    return figure.draw(width)


def svg_link(figure: Figure) -> str:
    """The picture as a file of its own."""
    return data_link("image/svg+xml", standalone(figure.draw(figure.widths[-1])))


def standalone(found: str) -> str:
    """A picture that needs no page: light colours, its style inside, a white ground."""
    colours = dict(LIGHT.findall(read("page.css").split("}")[0]))
    style = re.sub(r"var\(--([\w-]+)\)", lambda m: colours[m[1]], read("chart.css"))
    found = re.sub(r' data-tip="[^"]*"', "", found)
    head, rest = found.split(">", 1)
    return f'{head}><style>{style}</style><rect width="100%" height="100%" fill="#fff"/>{rest}'


def csv_link(text: str) -> str:
    """A table as a file."""
    return data_link("text/csv", text)


def text_link(text: str) -> str:
    """A text as a file."""
    return data_link("text/plain", text)


def data_link(kind: str, text: str) -> str:
    """A file inside the page."""
    return f"data:{kind};charset=utf-8,{quote(as_utf8(text), safe=SAFE)}"


SAFE = " !$()*,-./:;=?@_~{}|+"  # what a link may hold as it is; the template escapes what HTML reserves

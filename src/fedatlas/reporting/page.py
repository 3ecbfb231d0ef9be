"""The page: the sections that apply, every picture and table with its files, all in one HTML document."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined

from fedatlas.errors import as_utf8
from fedatlas.reporting.blocks import (
    Block,
    Chapter,
    Choice,
    Code,
    Figure,
    Figures,
    Section,
    TableBlock,
    Text,
    as_cell,
    notice,
)
from fedatlas.reporting.entries import Entry, Subject
from fedatlas.reporting.sections import SECTIONS, TITLES, ReportSection
from fedatlas.reporting.words import in_words
from fedatlas.wording import plural

# The colours of a downloaded picture: chart.css refers to them by name, but a separate file has no such names.
ANSWER = "answer"  # id of the section with the remarks
LIGHT = re.compile(r"--([\w-]+):\s*([^;]+);")


def render(entries: Sequence[Entry], remarks: Sequence[str] = ()) -> str:
    """Return the page of these runs; ``remarks``: paragraphs below its answer."""
    subjects = [subject for entry in entries for subject in entry.subjects]
    first, single = subjects[0], len(subjects) == 1
    own = [section for section in SECTIONS if first.page in section.pages]
    top = [built(s, first, s.run(first) if single and s.run else s.page(entries) if s.page else ()) for s in own]
    top = [x._replace(blocks=below_leads(x.blocks, remarks)) if x.id == ANSWER and remarks else x for x in top]
    chapters = [
        Chapter(x.key, x.label, shown([built(s, x, s.run(x), x.key, x.label) for s in own if s.run]), x is first)
        for x in subjects
        if not single
    ]
    ends = [
        built(s, entry.subjects[0], s.folder(entry), entry.key if len(entries) > 1 else "", entry.label)
        for entry in entries
        for s in own
        if s.folder
    ]
    version = first.summary["versions"].get("fedatlas", "")
    return document(TITLES[first.page](entries), shown(top), chapters, shown(ends), version)


def built(section: ReportSection, subject: Subject, blocks: Sequence[Block], key: str = "", run: str = "") -> Section:
    """Return the section with its blocks; if it occurs several times, ``key`` and the name of the ``run`` tell them apart."""
    party = subject.party or subject.config.party
    title = section.title.format(party=party, parties=plural(party), run=run if key else "this run")
    blocks = [own_ids(block, key) for block in in_words(blocks, subject)]
    return Section(f"{key}-{section.id}-section" if key else section.id, title, blocks, "" if key else section.nav)


def own_ids(block: Block, key: str) -> Block:
    """Return a block whose ids no other run's block has; ``key``: that of the run, "" where the page has only one."""
    found: str = getattr(block, "id", "")
    if not key or found.startswith(f"{key}-"):
        return block
    if isinstance(block, Figures):
        return block._replace(figures=[own_ids(one, key) for one in block.figures])  # type: ignore[misc]
    if isinstance(block, Choice):
        options = [one._replace(figures=[own_ids(each, key) for each in one.figures]) for one in block.options]  # type: ignore[misc]
        return block._replace(id=f"{key}-{found}", options=options)
    return block._replace(id=f"{key}-{found}") if isinstance(block, Figure | TableBlock | Code) else block


def below_leads(blocks: Sequence[Block], remarks: Sequence[str]) -> Sequence[Block]:
    """Return blocks with remarks below the paragraphs that answer."""
    at = next(
        (i for i, block in enumerate(blocks) if not (isinstance(block, Text) and block.tone == "lead")), len(blocks)
    )
    return [*blocks[:at], *map(notice, remarks), *blocks[at:]]


def shown(sections: Sequence[Section]) -> list[Section]:
    """Return the sections that have blocks."""
    return [section for section in sections if section.blocks]


def document(
    name: str, sections: Sequence[Section], parts: Sequence[Chapter], repeats: Sequence[Section], version: str
) -> str:
    """Return one HTML document of these sections."""
    style, script = read("page.css").replace("/* chart.css */", read("chart.css")), read("page.js")
    return (
        environment()
        .get_template("page.html")
        .render(
            title=name,
            sections=sections,
            parts=parts,
            repeats=repeats,
            style=style + "".join(map(choice_style, [*sections, *(one for part in parts for one in part.sections)])),
            script=script,
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
            version=version,
        )
    )


def choice_style(section: Section) -> str:
    """Return the style that shows the chosen option, for choices whose options are not named in page.css."""
    return "".join(
        f'main:has(input[name="{block.id}"][value="{option.value}"]:checked) '
        f'[data-choice="{block.id}"][data-option="{option.value}"] {{ display: grid; }}\n'
        for block in section.blocks
        if isinstance(block, Choice) and block.id != "axis"
        for option in block.options
    )


@cache
def read(name: str) -> str:
    """Return the text of a file in this folder."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


@cache
def environment() -> Environment:
    """Return the template environment, which escapes everything except `Markup`."""
    loaded = Environment(
        loader=PackageLoader("fedatlas.reporting", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    loaded.filters |= {
        "drawn": drawn,
        "svg_link": svg_link,
        "csv_link": csv_link,
        "text_link": text_link,
        "as_cell": as_cell,
    }
    return loaded


def drawn(figure: Figure, width: int) -> str:
    """Return the picture for the page."""
    return figure.draw(width)


def svg_link(figure: Figure) -> str:
    """Return the picture as a link to a separate file."""
    return data_link("image/svg+xml", standalone(figure.draw(figure.widths[-1])))


def standalone(found: str) -> str:
    """Return a picture that works without the page: light colours, embedded style, white background."""
    colours = dict(LIGHT.findall(read("page.css").split("}")[0]))
    style = re.sub(r"var\(--([\w-]+)\)", lambda m: colours[m[1]], read("chart.css"))
    found = re.sub(r' data-tip="[^"]*"', "", found)
    head, rest = found.split(">", 1)
    return f'{head}><style>{style}</style><rect width="100%" height="100%" fill="#fff"/>{rest}'


def csv_link(text: str) -> str:
    """Return a table as a link to a file."""
    return data_link("text/csv", text)


def text_link(text: str) -> str:
    """Return a text as a link to a file."""
    return data_link("text/plain", text)


def data_link(kind: str, text: str) -> str:
    """Return a link that contains the file."""
    return f"data:{kind};charset=utf-8,{quote(as_utf8(text), safe=SAFE)}"


SAFE = " !$()*,-./:;=?@_~{}|+"  # characters kept unescaped in a link; the template escapes what HTML reserves

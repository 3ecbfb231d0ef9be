"""The blocks that a section of the page is made of. Python decides what is said; the template only sets it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from markupsafe import Markup, escape

NARROW, WIDE = 340, 760  # SVG units: about a phone's and a desk's column in CSS pixels


class Text(NamedTuple):
    """A paragraph."""

    body: str | Markup
    kind: str = "text"
    tone: str = ""  # "notice" sets it apart


def lead(body: str | Markup) -> Text:
    """The paragraph that answers the question of its section."""
    return Text(body, tone="lead")


def notice(body: str | Markup) -> Text:
    """A paragraph that is set apart."""
    return Text(body, tone="notice")


class Figure(NamedTuple):
    """A picture with its words and its numbers."""

    id: str  # also the name of its files
    title: str
    how: str  # how to read it, in plain words
    draw: Callable[[int], str]  # width in SVG units -> SVG element
    csv: str
    widths: tuple[int, ...] = (NARROW, WIDE)  # drawn once for each; the page shows the one that fits
    kind: str = "figure"


class Figures(NamedTuple):
    """Pictures side by side where there is room."""

    figures: Sequence[Figure]
    kind: str = "figures"


class Option(NamedTuple):
    """One choice and what it shows."""

    value: str
    label: str
    figures: Sequence[Figure]


class Choice(NamedTuple):
    """The same pictures in several forms, one at a time."""

    id: str
    question: str
    options: Sequence[Option]
    kind: str = "choice"


class TableCell(NamedTuple):
    """A cell: what stands in it, and smaller below it a note such as an interval."""

    body: str | Markup
    note: str | Markup = ""
    optional: bool = False  # left out on a narrow screen


Cells = Sequence[TableCell | str]
"""A row of a table; a text is a cell without a note."""


class TableBlock(NamedTuple):
    """A table. The first column names the row."""

    id: str
    caption: str
    head: Cells
    rows: Sequence[Cells]
    csv: str
    foot: Sequence[Cells] = ()
    folded: str = ""  # where the rows are many: what the fold that hides them is called
    kind: str = "table"


class Key(NamedTuple):
    """A figure that stands out, what it is, and what to know about it."""

    term: str
    body: str | Markup
    note: str | Markup = ""


class Keys(NamedTuple):
    """The figures to see first."""

    keys: Sequence[Key]
    kind: str = "keys"


class Facts(NamedTuple):
    """Terms and what they are."""

    pairs: Sequence[tuple[str, str | Markup]]
    kind: str = "facts"


class Code(NamedTuple):
    """Text to copy, and to save under ``file`` where it has a name."""

    id: str
    label: str
    text: str
    file: str = ""
    kind: str = "code"


Block = Text | Keys | Figure | Figures | Choice | TableBlock | Facts | Code


class Section(NamedTuple):
    """A heading and the blocks under it; ``nav`` is its name in the contents."""

    id: str
    title: str
    blocks: Sequence[Block]
    nav: str = ""


class Chapter(NamedTuple):
    """The sections of one run, folded away where there are several."""

    id: str
    title: str
    sections: Sequence[Section]
    open: bool


def emphasised(text: str) -> Markup:
    """The text, escaped; what stands between two pairs of stars is bold."""
    return Markup(re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", str(escape(text))))  # noqa: S704  (escaped before)


def optional(cell: TableCell | str) -> TableCell:
    """The cell, left out on a narrow screen."""
    return as_cell(cell)._replace(optional=True)


def as_cell(cell: TableCell | str) -> TableCell:
    """A text as a cell."""
    return TableCell(cell) if isinstance(cell, str) else cell

"""The blocks of a section of the page. Python decides the content; the template only formats it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from markupsafe import Markup, escape

NARROW, WIDE = 340, 760  # SVG units: about the width of a phone's and a desktop's column in CSS pixels


class Text(NamedTuple):
    """A paragraph."""

    body: str | Markup
    kind: str = "text"
    tone: str = ""  # "notice" sets it apart visually


def lead(body: str | Markup) -> Text:
    """Return the paragraph that answers the question of its section."""
    return Text(body, tone="lead")


def notice(body: str | Markup) -> Text:
    """Return a paragraph that is set apart."""
    return Text(body, tone="notice")


class Figure(NamedTuple):
    """A figure with its explanation and its data."""

    id: str  # also the name of its saved files
    title: str
    how: str  # how to read it, in plain words
    draw: Callable[[int], str]  # width in SVG units -> SVG element
    csv: str
    widths: tuple[int, ...] = (NARROW, WIDE)  # drawn once per width; the page shows the one that fits
    kind: str = "figure"


class Figures(NamedTuple):
    """Figures shown next to each other if there is room."""

    figures: Sequence[Figure]
    kind: str = "figures"


class Option(NamedTuple):
    """One choice and the figures it shows."""

    value: str
    label: str
    figures: Sequence[Figure]


class Choice(NamedTuple):
    """Several forms of the same figures, one shown at a time."""

    id: str
    question: str
    options: Sequence[Option]
    kind: str = "choice"


class TableCell(NamedTuple):
    """A table cell: its content, and below it in smaller type a note such as an interval."""

    body: str | Markup
    note: str | Markup = ""
    optional: bool = False  # hidden on a narrow screen


Cells = Sequence[TableCell | str]
"""A row of a table; plain text is a cell without a note."""


class TableBlock(NamedTuple):
    """A table. The first column names the row."""

    id: str
    caption: str
    head: Cells
    rows: Sequence[Cells]
    csv: str
    foot: Sequence[Cells] = ()
    folded: str = ""  # for many rows: the label of the fold that hides them
    kind: str = "table"


class Key(NamedTuple):
    """A prominent figure, its name, and a note on it."""

    term: str
    body: str | Markup
    note: str | Markup = ""


class KeyFigures(NamedTuple):
    """The figures to show first."""

    keys: Sequence[Key]
    kind: str = "keys"


class TermList(NamedTuple):
    """Terms and their explanations."""

    pairs: Sequence[tuple[str, str | Markup]]
    kind: str = "facts"


class Code(NamedTuple):
    """Text to copy, and to save under ``file`` if that is given."""

    id: str
    label: str
    text: str
    file: str = ""
    kind: str = "code"


Block = Text | KeyFigures | Figure | Figures | Choice | TableBlock | TermList | Code


class Section(NamedTuple):
    """A heading and the blocks under it; ``nav`` is its name in the contents."""

    id: str
    title: str
    blocks: Sequence[Block]
    nav: str = ""


class Chapter(NamedTuple):
    """The sections of one run, folded if there are several runs."""

    id: str
    title: str
    sections: Sequence[Section]
    open: bool


def emphasised(text: str) -> Markup:
    """Return the text, escaped; text between two pairs of stars is bold."""
    return Markup(re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", str(escape(text))))  # noqa: S704  (escaped before)


def optional(cell: TableCell | str) -> TableCell:
    """Return the cell, hidden on a narrow screen."""
    return as_cell(cell)._replace(optional=True)


def as_cell(cell: TableCell | str) -> TableCell:
    """Return a text as a cell."""
    return TableCell(cell) if isinstance(cell, str) else cell

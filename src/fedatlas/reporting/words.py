"""The user's word for a party (``[words] party``) in the sentences of a page, which are written with "client"."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from fedatlas.reporting.blocks import (
    Block,
    Choice,
    Figure,
    Figures,
    Key,
    KeyFigures,
    TableBlock,
    TableCell,
    Text,
)
from fedatlas.reporting.entries import Subject
from fedatlas.wording import capital, plural

WORD = re.compile(r"(?<![\w.'-])((?:an? )?)(clients?)(?![\w=]|[.:-]\w)", re.IGNORECASE)
LITERAL = re.compile(r"(<code.*?</code>|<[^>]*>|'[^' ]*')", re.DOTALL)  # keys, tags, quoted names: left as they are


def in_words(blocks: Sequence[Block], subject: Subject) -> Sequence[Block]:
    """Return the blocks with the run's word for a party in their sentences.

    Contents of tables, files and commands stay.

    They also stay if a name or a class of the data holds the word "client".
    """
    word = subject.config.party
    if word == "client" or _held(subject):
        return blocks
    return [_block(block, word) for block in blocks]


def said(text: Any, word: str) -> Any:
    """Return a text, or a cell with one, with this word in place of "client": "A client's" -> "An office's"."""
    if isinstance(text, TableCell):
        return text._replace(body=said(text.body, word), note=said(text.note, word))
    made = "".join(
        piece if i % 2 else WORD.sub(lambda m: _one(m, word), piece) for i, piece in enumerate(LITERAL.split(str(text)))
    )
    return Markup(made) if isinstance(text, Markup) else made  # noqa: S704  (the word has letters only)


def _one(found: re.Match[str], word: str) -> str:
    article, name = found.groups()
    new = plural(word) if name.lower().endswith("s") else word
    new = capital(new) if name[0].isupper() else new
    if not article:
        return new
    return f"{article[0]}{'n' if word[0].lower() in 'aeiou' else ''} {new}"


def _held(subject: Subject) -> bool:
    s = subject.summary
    names = [one.get("name", "") for one in s.get("per_client", ())]
    return any(re.search("client", str(one), re.IGNORECASE) for one in (*names, *s.get("class_names", ())))


def _block(block: Block, word: str) -> Block:
    if isinstance(block, Text):
        return block._replace(body=said(block.body, word))
    if isinstance(block, Figure):
        return block._replace(title=said(block.title, word), how=said(block.how, word))
    if isinstance(block, Figures):
        return block._replace(figures=[_block(one, word) for one in block.figures])  # type: ignore[misc]
    if isinstance(block, Choice):
        options = [
            one._replace(label=said(one.label, word), figures=[_block(each, word) for each in one.figures])  # type: ignore[misc]
            for one in block.options
        ]
        return block._replace(question=said(block.question, word), options=options)
    if isinstance(block, TableBlock):
        return block._replace(caption=said(block.caption, word), head=[said(one, word) for one in block.head])
    if isinstance(block, KeyFigures):
        return KeyFigures([Key(said(one.term, word), one.body, said(one.note, word)) for one in block.keys])
    return block

"""The help of every command shows all that it says: Typer reads square brackets in it as markup of Rich."""

from __future__ import annotations

from collections.abc import Iterator

import click
import typer
from rich.markup import render

from fedatlas.cli import app


def texts(command: click.Command, name: str = "fedatlas") -> Iterator[tuple[str, str]]:
    """Every help text of a command and of those below it, with where it stands."""
    yield name, command.help or ""
    for one in command.params:
        yield f"{name} {one.name}", getattr(one, "help", None) or ""
    for key, inner in getattr(command, "commands", {}).items():
        yield from texts(inner, f"{name} {key}")


SHOWN = dict(texts(typer.main.get_command(app)))


def test_the_help_has_the_options_of_all_commands() -> None:
    assert {"fedatlas compare price", "fedatlas run price", "fedatlas deploy init nodes"} <= SHOWN.keys()


def test_no_help_loses_words_to_markup() -> None:
    assert {place: render(text).plain for place, text in SHOWN.items()} == SHOWN

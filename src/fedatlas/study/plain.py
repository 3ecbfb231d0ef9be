"""Plain values by name, as in JSON and TOML: rows, summaries, configurations, tables of a file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedatlas.errors import ConfigError, first_line, nearest

Row = Mapping[str, Any]
RunRow = Row
"""A run, as a row of a study's table."""
Plain = dict[str, Any]

TO_BEGIN = {
    "experiment": "'fedatlas new {}' writes a template.",
    "study": "docs/study.md begins with one to copy.",
    "requirements": "docs/study.md has one to copy, under 'From your requirements to a file'.",
}
"""How to come to a file of each kind, for whoever has none."""


def toml_of(path: Path, what: str) -> tuple[str, Plain]:
    """Return (text, values) of a TOML file; ConfigError if it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
        values = tomllib.loads(text)
        refuse_long(values)
        return text, values
    except FileNotFoundError:
        beside = sorted(each.name for each in path.parent.glob("*.toml")) if path.parent.is_dir() else []
        near = nearest(path.name, beside)
        hint = f"did you mean '{path.with_name(near)}'?" if near else TO_BEGIN[what].format(path)
        raise ConfigError(f"there is no {what} file '{path}': {hint}") from None
    except IsADirectoryError:
        raise ConfigError(f"'{path}' is a folder: name the {what} file (.toml) in it.") from None
    except (ValueError, RecursionError) as error:  # also a number with too many digits, or tables too deep
        raise ConfigError(f"'{path}' is not valid TOML: {first_line(error).rstrip('.')}.") from None


def refuse_long(value: Any) -> None:
    """Raise ValueError for a whole number of more than 64 bits, which TOML 1.0 forbids and no table could hold."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError(f"a whole number has {len(str(abs(value)))} digits")
    for each in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        refuse_long(each)

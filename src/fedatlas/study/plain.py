"""Plain values by name, as in JSON and TOML: rows, summaries, configurations, tables of a file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedatlas.errors import ConfigError

Row = Mapping[str, Any]
RunRow = Row
"""A run, as a row of a study's table."""
Plain = dict[str, Any]


def toml_of(path: Path, what: str) -> tuple[str, Plain]:
    """Return (text, values) of a TOML file; ConfigError if it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
        return text, tomllib.loads(text)
    except FileNotFoundError:
        raise ConfigError(f"there is no {what} file '{path}': name an existing one.") from None
    except IsADirectoryError:
        raise ConfigError(f"'{path}' is a folder: name the {what} file (.toml) in it.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"'{path}' is not valid TOML: {error}.") from None

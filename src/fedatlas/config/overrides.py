"""``table.key=value`` of the command line, applied to the plain values of an experiment file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from fedatlas.errors import ConfigError

BY_NAME = ("data", "partition", "model", "algorithm", "compression", "aggregation")  # tables with one component each
SEVERAL = {
    "privacy": "mechanism",
    "attack": "attack",
}  # tables that may occur several times, each reached by its name


def override(values: dict[str, Any], text: str) -> None:
    """Apply ``table.key=value``; a value that parses as TOML is taken as such, else as text.

    ``privacy.NAME.key=value`` sets a key of the mechanism of that name, which is added if absent; ``privacy.NAME={}`` adds
    it with its defaults, and ``privacy=[]`` removes all; ``attack.NAME`` likewise.
    """
    key, equals, raw = text.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise ConfigError(f"'{text}' is not an override: write table.key=value, such as local.lr=0.01.")
    if parts[0] in BY_NAME and len(parts) == 1 and not raw.strip().startswith("{"):
        raise ConfigError(f"'{text}': write {parts[0]}.name={raw.strip()}.")
    put(values, key.strip(), value_of(raw), text)


def put(values: dict[str, Any], key: str, value: Any, text: str = "") -> None:
    """Put a value at ``table.key``, as `override` does with the value of a text; ``text``: its original form."""
    parts = key.split(".")
    if parts[0] in SEVERAL:
        _of_several(values, text or key, parts, value)
        return
    at = values
    for part in parts[:-1]:
        at = at.setdefault(part, {})
        if not isinstance(at, dict):
            raise ConfigError(f"'{key}': '{part}' is a value, not a table.")
    at[parts[-1]] = value


def value_of(raw: str) -> Any:
    """Return the value of a text of the command line: as TOML if it parses, else the text itself."""
    try:
        return tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        return raw


def _of_several(values: dict[str, Any], text: str, parts: Sequence[str], value: Any) -> None:
    """Apply `override` to ``[[privacy]]`` or a similar table: after the table's name comes one name and, unless given whole, a key."""
    several, *parts = parts
    named = parts[0] if parts and parts[0] != "name" else value
    how = f"'{text}': write {several}.{named if isinstance(named, str) else 'NAME'}={{}}, or a key after the name."
    if not parts and isinstance(value, list):
        values[several] = value
        return
    tables = values.setdefault(several, [])
    if not isinstance(tables, list):
        raise ConfigError(f"{several}: write [[{several}]], one table per {SEVERAL[several]}.")
    if not parts or parts[0] == "name" or len(parts) > 2 or (len(parts) == 1 and not isinstance(value, Mapping)):
        raise ConfigError(how)
    name = parts[0]
    found = next((one for one in tables if isinstance(one, dict) and one.get("name") == name), None)
    if found is None:
        tables.append(found := {"name": name})
    if len(parts) == 1:
        found.clear()
        found.update({**value, "name": name})
    else:
        found[parts[1]] = value

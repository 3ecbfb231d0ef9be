"""An experiment file and ``table.key=value`` of the command line as plain values, before any check. Needs no torch."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedatlas.errors import ConfigError

BY_NAME = ("data", "partition", "model", "algorithm", "compression", "aggregation")  # tables with one component each
SEVERAL = {
    "privacy": "mechanism",
    "attack": "attack",
}  # tables that may occur several times, each reached by its name
ALTERNATIVES = (
    ("seed", "seeds"),
    ("cohort.fraction", "cohort.size"),
    ("local.epochs", "local.steps"),
    ("public.rows", "public.per_class"),
)
"""Pairs of alternative keys: on the command line one replaces the other in the file."""


class OwnKeys(NamedTuple):
    """The default component of a table ("" or no text: none), and the keys that do not depend on the component."""

    default: Any
    keys: Collection[str]


def plain_values(path: Path | None, overrides: Sequence[str], tables: Mapping[str, OwnKeys]) -> dict[str, Any]:
    """Return the values of an experiment file with overrides; None = the embedded default. ConfigError if the file cannot be read.

    ``tables``: the tables that name one component each.
    """
    values = {} if path is None else _read(path, overrides)
    given = {text.partition("=")[0].strip() for text in overrides}
    for one, other in (*ALTERNATIVES, *(pair[::-1] for pair in ALTERNATIVES)):
        if one in given and other not in given:
            table, _, key = other.rpartition(".")
            held = values.get(table) if table else values
            if isinstance(held, dict):
                held.pop(key, None)
    for text in overrides:
        without_replaced(values, text, tables)
    for text in overrides:
        override(values, text)
    return values


def no_file(path: Path, overrides: Sequence[str]) -> ConfigError:
    """Return the error for a missing experiment file."""
    if overrides and overrides[0].startswith("="):
        return ConfigError(
            f"'{path} {overrides[0]}': write key=value without spaces, and quote a value that contains some."
        )
    return ConfigError(f"there is no experiment file '{path}': 'fedatlas new {path}' writes a template.")


def _read(path: Path, overrides: Sequence[str]) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise no_file(path, overrides) from None
    except IsADirectoryError:
        raise ConfigError(f"'{path}' is a folder: name an experiment file (.toml) in it.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        if path.name.endswith((".csv", ".csv.gz", ".tsv", ".parquet", ".npz", ".xlsx")):
            raise ConfigError(
                f"'{path}' holds data, not an experiment; to use it, set data.name=file data.path={path} data.label=..."
            ) from None
        raise ConfigError(f"'{path}' is not valid TOML: {error}.") from None
    except OSError as error:
        raise ConfigError(f"'{path}' cannot be read: {error.strerror}.") from None


def without_replaced(values: dict[str, Any], text: str, tables: Mapping[str, OwnKeys]) -> None:
    """Remove the file's keys of a component that ``table.name=other`` replaces."""
    for table, kind in tables.items():
        held = values.get(table)
        if isinstance(held, dict) and text.partition("=")[0].strip() == f"{table}.name":
            asked: dict[str, Any] = {}
            override(asked, text)
            if asked[table]["name"] != held.get("name", kind.default):
                values[table] = {key: value for key, value in held.items() if key in kind.keys}


def override(values: dict[str, Any], text: str) -> None:
    """Apply ``table.key=value``. A value that parses as TOML is read as such, else as text.

    ``privacy.NAME.key=value`` sets a key of the mechanism of that name, which is added if absent. ``privacy.NAME={}`` adds
    it with its defaults, and ``privacy=[]`` removes all. ``attack.NAME`` works the same.
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
    """Apply `override` to ``[[privacy]]`` or a similar table. The table's name is followed by one name and, unless given whole, a key."""
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

"""Names and keys of an experiment file, checked against a shipped list (`names.json`) before anything heavy is imported.

The sentences are those of the full check, because it calls the same functions. The list cannot judge plug-ins, other packages'
components or values; these are left to the full check. `tests/support/known_names.py` writes the list, and a test compares it
with the registries.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from fedatlas.errors import ConfigError, FedatlasError, ValueMistake, nearest, unknown_name
from fedatlas.overrides import OwnKeys, no_file, plain_values

LIST = Path(__file__).with_name("names.json")
LISTS = ("parties",)  # tables of fixed keys that occur several times
SEVERAL = {"privacy": "mechanism", "attack": "attack"}
SYNONYMS = {
    "learning_rate": "lr",
    "eta": "lr",
    "num_clients": "clients",
    "n_clients": "clients",
    "batchsize": "batch_size",
    "target": "label",
}
"""Name of a key in other software -> its name in fedatlas."""
GROUPS = {"partition": "partitions", "model": "models", "algorithm": "algorithms", "compression": "transforms"}
"""Table -> the kind of its components, which other packages may add."""


def names(table: str | None = None) -> list[str]:
    """Return the names that a table can take. None: all that `fedatlas show` describes, without plug-ins and other packages."""
    held = known()
    parts = [one for part in (held["kinds"], held["further"]) for key, one in part.items() if table in (None, key)]
    return list(dict.fromkeys(name for part in parts for name in part))


def check(path: Path | None, overrides: Sequence[str]) -> None:
    """Raise the ConfigError of the full check for a missing file, and for an unknown name, key or choice.

    An unreadable file is left to the full check.
    """
    if path is not None and not path.exists():
        raise no_file(path, overrides)
    values, held = values_of(path, overrides), known()
    if values is None:
        return
    check_tables(values, held["tables"])
    for where, choices in held["values"].items():
        value = at(values, where)
        if isinstance(value, str) and value not in choices:
            raise ValueMistake(f"{where} = {value!r}: expected {one_of(value, choices)}.")
    _Components(values, held).check()


def known() -> dict[str, Any]:
    """Return the shipped list."""
    held: dict[str, Any] = json.loads(LIST.read_text(encoding="utf-8"))
    return held


def values_of(path: Path | None, overrides: Sequence[str]) -> dict[str, Any] | None:
    """Return the plain values of an experiment file with overrides; None if it cannot be read, which the full check reports."""
    held = known()
    tables = {table: OwnKeys(held["defaults"].get(table), keys) for table, keys in held["own"].items()}
    try:
        return plain_values(path, overrides, {table: own for table, own in tables.items() if table != "data"})
    except FedatlasError:
        return None


def at(values: Mapping[str, Any], where: str) -> Any:
    """Return the value of a key such as "evaluation.metric"; None if it is absent."""
    found: Any = values
    for key in where.split("."):
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def check_tables(values: Mapping[str, Any], known: Mapping[str, Collection[str]], table: str = "") -> None:
    """Raise ConfigError for a key that a table of fixed keys, or one inside it, does not have."""
    for key, value in values.items():
        if key not in known[table]:
            raise unknown_key(table, key, known[table])
        inner = f"{table}.{key}" if table else key
        if inner not in known or isinstance(value, Mapping) == (
            inner in LISTS
        ):  # of the wrong kind: the full check reports it
            continue
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, Mapping):
                check_tables(one, known, inner)


class _Components:
    """The tables that name a component, with the list's knowledge of each."""

    def __init__(self, values: Mapping[str, Any], known: Mapping[str, Any]) -> None:
        self.values, self.kinds, self.own = values, known["kinds"], known["own"]
        self.defaults, self.elsewhere = known["defaults"], known["elsewhere"]

    def check(self) -> None:
        """Raise ConfigError for the first unknown name or key."""
        columns = "parties" in self.values or self._named("partition") in {"vertical", "hybrid"}
        self._data()
        for table in ("algorithm", "partition", "model", "compression", "aggregation"):
            if table in self.values and not columns and not (table == "model" and "models" in self.values):
                self._one(table)
        for table, what in SEVERAL.items():
            tables = self.values.get(table)
            for one in tables if isinstance(tables, list) and not columns else ():
                if isinstance(one, Mapping):
                    self._of_several(table, what, one)

    def _named(self, table: str) -> Any:
        held = self.values.get(table, {})
        return held.get("name", self.defaults.get(table)) if isinstance(held, Mapping) else None

    def _further(self, table: str, given: Mapping[str, Any]) -> list[str]:
        """Return the keys that belong to the component."""
        return [key for key, value in given.items() if key not in self.own[table] and value is not None]

    def _data(self) -> None:
        name, known = self._named("data"), self.kinds["data"]
        if not isinstance(name, str):
            return
        if name not in known:
            raise unknown_source(name, known)
        for key in self._further("data", self.values.get("data", {})):
            if key not in known[name]:
                raise unknown_data_key(key, known[name], known["file"], self.own["data"])

    def _one(self, table: str) -> None:
        name, known = self._named(table), self.kinds[table]
        if not isinstance(name, str) or name in self.elsewhere or ":" in name:
            return
        if name not in known:
            others = {point.name for point in entry_points(group=f"fedatlas.{GROUPS.get(table, table)}")}
            if name not in others:
                what = "rule" if table == "aggregation" else GROUPS[table].removesuffix("s")
                raise unknown_name(what, name, [*known, *(others if table in GROUPS else ())])
            return
        for key in self._further(table, self.values[table]):
            if key in known[name] or (table == "algorithm" and key == "weights"):
                continue
            if table == "algorithm" and (able := [other for other, keys in known.items() if key in keys]):
                raise key_of_others(name, key, able)
            own = self.own[table] if table == "model" else ()
            raise unknown_key(table, key, [*known[name], *own]) if own else unknown_argument(table, key, known[name])

    def _of_several(self, table: str, what: str, given: Mapping[str, Any]) -> None:
        name, known = given.get("name"), self.kinds[table]
        if not isinstance(name, str) or name in self.elsewhere:
            return
        if name not in known:
            raise unknown_name(what, name, known)
        for key in self._further(table, given):
            if key not in known[name]:
                raise unknown_argument(f"{table}.{name}", key, known[name])


# ------------------------------------------------------------------------------------------------ sentences


def unknown_key(table: str, key: str, known: Iterable[str]) -> ConfigError:
    """Return the error for a key that a table does not have."""
    where = f"{table}.{key}" if table else key
    known = list(known)
    if SYNONYMS.get(key) in known:
        return ConfigError(f"unknown key '{where}': here it is called '{table and f'{table}.'}{SYNONYMS[key]}'.")
    if not known:
        return ConfigError(f"unknown key '{where}': this component takes no parameters.")
    if not table and (tables := tables_with(SYNONYMS.get(key, key))):
        inner = SYNONYMS.get(key, key)
        named = " or ".join(f"{each}.{inner}" for each in tables)
        return ConfigError(
            f"unknown key '{key}': it belongs to a table, {named}, in Python {tables[0]}={{'{inner}': ...}}."
        )
    return unknown_name("key", key, known, f"{table}." if table else "")


def tables_with(key: str) -> list[str]:
    """Return the tables that have a key, or the first that names a component with it. Tables that occur several times are left out."""
    held = known()
    fixed = {**{table: keys for table, keys in held["tables"].items() if "." not in table}, **held["own"]}
    found = [table for table, keys in fixed.items() if table not in ("", *LISTS, *SEVERAL) and key in keys]
    further = (
        table
        for table, kinds in held["kinds"].items()
        if table not in SEVERAL and any(key in k for k in kinds.values())
    )
    return found or [*further][:1]


def one_of(value: str, known: Sequence[str]) -> str:
    """Return the texts that a key can have, with a suggestion if one is near."""
    near, parts = nearest(value, known), [repr(one) for one in known]
    listed = " or ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))
    return listed + (f" (did you mean '{near}'?)" if near else "")


def unknown_argument(table: str, key: str, known: Collection[str]) -> ConfigError:
    """Return the error for a key that a builder does not take. ``name`` is also a key, so it is suggested if it is near."""
    return unknown_key(table, key, [*known, *(["name"] if nearest(key, ["name"]) else [])])


def unknown_source(name: str, known: Iterable[str]) -> ConfigError:
    """Return the error for an unknown data set."""
    if "." in name or "/" in name:
        said = f"unknown data set '{name}'; to load your own file, set data.name = 'file' and data.path = '{name}'."
        return ConfigError(said)
    return unknown_name("data set", name, known)


def unknown_data_key(key: str, keys: Iterable[str], of_files: Collection[str], own: Iterable[str]) -> ConfigError:
    """Return the error for a key that a source does not take. ``of_files``: the keys for the user's own files."""
    if key in of_files:
        where = "add data.name=file, or give it to one of [[parties]]"
        return ConfigError(f"data.{key}: this key applies only to your own files; {where}.")
    return unknown_key("data", key, [*keys, *own])


def key_of_others(name: str, key: str, able: Sequence[str]) -> ConfigError:
    """Return the error for a key that other algorithms take."""
    return ConfigError(f"algorithm.{key}: '{name}' has no such key; algorithms with it: {', '.join(able)}.")

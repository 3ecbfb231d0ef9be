"""Factors and their levels: names, keys, and the experiment that a level produces. Every invalid one is refused here."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fedatlas.algorithms import ALGORITHMS
from fedatlas.config import ALTERNATIVES, COMPONENTS, ExperimentConfig, put, renamed
from fedatlas.config.parties import vertical
from fedatlas.data.by_name import find_source
from fedatlas.data.config import DataConfig
from fedatlas.data.partition import PARTITIONS
from fedatlas.errors import ConfigError, FedatlasError, unknown_name
from fedatlas.models.registry import MODELS
from fedatlas.registry import Builder, builders_of, field_model, keywords
from fedatlas.runs.run_key import data_files
from fedatlas.study.configurations import Configurations
from fedatlas.study.design import LevelTable, Role, StudyFile, written_levels
from fedatlas.study.frame import reserved
from fedatlas.study.plain import Plain, Row
from fedatlas.transforms import TRANSFORMS
from fedatlas.vertical import SCHEMES

OWN = {
    "seed": "the study's seeds = [...] set it",
    "seeds": "the study's seeds = [...] set it",
    "engine.workers": "a study runs each cell in one process",
    "engine.chunk": "a study runs all cells with the same one",
    "engine.cluster": "a study deals whole runs to a cluster: 'fedatlas study FILE --cluster ADDRESS'",
    "checkpoint": "it does not affect results",
}
"""Keys that no level may set, and the reason."""
KINDS = {
    "algorithm": ("algorithms", ALGORITHMS),
    "model": ("models", MODELS),
    "partition": ("partitions", PARTITIONS),
    "compression": ("transforms", TRANSFORMS),
}

OF_COLUMNS: Mapping[str, Sequence[Builder]] = {
    "algorithm": [scheme.build for scheme in SCHEMES.values()],
    "partition": [vertical],
}
"""Builders of the same tables if parties hold columns."""


class Factor(NamedTuple):
    """A varied quantity."""

    name: str
    role: Role
    levels: tuple[LevelTable, ...]
    scale: str = "category"

    def level(self, name: str) -> LevelTable:
        """Return the level of this name; ConfigError with the nearest name if it is unknown."""
        found = {level.name: level for level in self.levels}
        if name not in found:
            raise unknown_name(f"level of factor '{self.name}'", name, found)
        return found[name]


def overridden(base: Row, sets: Iterable[Row]) -> Plain:
    """Return the values of an experiment with keys set; changing a component removes its predecessor's keys, as on the command line."""
    values = copy.deepcopy(dict(base))
    given = {key: value for one in sets for key, value in one.items()}
    for one, other in (*ALTERNATIVES, *(pair[::-1] for pair in ALTERNATIVES)):
        if one in given and other not in given:
            table, _, key = other.rpartition(".")
            held = values.get(table) if table else values
            if isinstance(held, dict):
                held.pop(key, None)
    for key, value in sorted(given.items(), key=lambda pair: not pair[0].endswith(".name")):
        if key.endswith(".name") and key.partition(".")[0] in COMPONENTS:
            renamed(values, f"{key}={json.dumps(value)}")
        put(values, key, copy.deepcopy(value))
    return values


def check_key(key: str) -> None:
    """Raise ConfigError, with the nearest valid key, for an unknown key or one that a level may not set."""
    for own, why in OWN.items():
        if key == own or key.startswith(f"{own}."):
            raise ConfigError(f"key '{key}' cannot be varied: {why}.")
    table, *rest = key.split(".")
    if table not in ExperimentConfig.model_fields:
        raise unknown_name("key", key, [*ExperimentConfig.model_fields, *every_key()])
    if not rest or table in ("privacy", "models", "public"):
        return
    if table == "data" or table in KINDS:
        known = keys_of(table)
        if rest[0] not in known:
            raise unknown_name("key", key.removeprefix(f"{table}."), known, f"{table}.")
        return
    model: Any = ExperimentConfig
    at = ""
    for part in key.split("."):
        known = list(model.model_fields) if model is not None else []
        if part not in known:
            raise unknown_name("key", key.removeprefix(at), known, at)
        model, at = field_model(model, part), f"{at}{part}."


def keys_of(table: str) -> list[str]:
    """Return the keys that a component's table may have under any name."""
    if table == "data":
        from fedatlas.data.by_name import SOURCES

        found = {*DataConfig.model_fields}
        return sorted(found.union(*(keywords(find_source(name).builder) for name in SOURCES)))
    kind, ours = KINDS[table]
    fields = COMPONENTS[table].model_fields
    builders = [*builders_of(kind, ours).values(), *OF_COLUMNS.get(table, ())]
    return sorted({*fields}.union(*map(keywords, builders)))


def every_key() -> list[str]:
    """Return ``table.key`` of the tables with fixed keys, for a suggestion."""
    tables = {name: field_model(ExperimentConfig, name) for name in ExperimentConfig.model_fields}
    return [f"{name}.{key}" for name, model in tables.items() if model is not None for key in model.model_fields]


def factors_of(study: StudyFile, known: Configurations) -> tuple[tuple[Factor, ...], list[str]]:
    """Return the factors of a study with their levels, and notices of what was left out because it is not available yet.

    ConfigError for an unknown key or component, for a level that occurs twice or resolves like another, and for a key that two
    factors set.
    """
    out, notices, seed = [], [], min(study.table.seeds)
    for given in study.table.factor:
        if given.name in reserved():
            raise ConfigError(f"factor '{given.name}': a column of the table has this name; rename the factor.")
        levels = []
        for table in written_levels(given):
            why = absence(study.base, table, known, seed)
            if why and not (table.optional or given.optional):
                raise ConfigError(f"factor '{given.name}', level '{table.name}': {why}")
            if why:
                notices.append(f"Factor '{given.name}': the optional level '{table.name}' is left out: {why}")
            else:
                levels.append(table)
        if not levels:
            notices.append(f"Factor '{given.name}' is left out: none of its levels is available.")
            continue
        refuse_alike(given.name, study.base, levels, known, seed)
        out.append(Factor(given.name, given.role, tuple(levels), given.scale))
    refuse_shared_keys(out, [] if study.table.tuning is None else list(study.table.tuning.keys))
    if not any(factor.role == "choice" for factor in out):
        raise ConfigError("the study has no choice left: none of the optional levels of its choices is available.")
    return tuple(out), notices


def absence(base: Row, level: LevelTable, known: Configurations, seed: int) -> str:
    """Return why a level is unavailable: an unknown key, component or data file; "" if it is available. Cells report other refusals."""
    try:
        for key in level.set:
            check_key(key)
        found = known.described(overridden(base, [level.set]), seed)
        if found.resolved is not None:
            data_files(found.resolved.config)
        said = "" if found.resolved is not None else found.refused
    except FedatlasError as error:
        said = str(error)
    return said if said.startswith("unknown ") or "cannot be varied" in said or "there is no " in said else ""


def refuse_alike(name: str, base: Row, levels: Sequence[LevelTable], known: Configurations, seed: int) -> None:
    """Raise ConfigError if two levels produce the same experiment from the base."""
    seen: dict[str, str] = {}
    for level in levels:
        made = json.dumps(known.described(overridden(base, [level.set]), seed).plain, sort_keys=True)
        if made in seen:
            raise ConfigError(
                f"factor '{name}': levels '{seen[made]}' and '{level.name}' give the same experiment; remove one, or make them differ."
            )
        seen[made] = level.name


def refuse_shared_keys(factors: Sequence[Factor], tuned: Sequence[str]) -> None:
    """Raise ConfigError if two factors, or a factor and ``[tuning]``, set the same key, or one a table whose key the other sets."""
    for key in tuned:
        check_key(key)
    owners = [(key, "[tuning]") for key in tuned]
    for factor in factors:
        keys = sorted({key for level in factor.levels for key in level.set})
        owners += [(key, f"factor '{factor.name}'") for key in keys]
    for (other, owner), (key, mine) in itertools.combinations(owners, 2):
        if owner != mine and (f"{key}.".startswith(f"{other}.") or other.startswith(f"{key}.")):
            raise ConfigError(f"key '{key}' is set by both {owner} and {mine}: set it in only one of them.")

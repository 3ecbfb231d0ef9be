"""The shipped list of names and keys (`fedatlas/names.json`) as the registries have them; run this file to write it anew."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from fedatlas import spelling
from fedatlas.aggregation import PRE, REDUCERS
from fedatlas.aggregation.rules import RULES
from fedatlas.algorithms import ALGORITHMS
from fedatlas.attacks import ATTACKS
from fedatlas.config import ExperimentConfig
from fedatlas.config.parties import VERTICAL
from fedatlas.data.by_name import SOURCES
from fedatlas.data.partition.build import PARTITIONS
from fedatlas.deployment.refusals import undeployable
from fedatlas.models import LOSSES, MODELS
from fedatlas.privacy.mechanisms import MECHANISMS, every
from fedatlas.published import EXPERIMENTS
from fedatlas.registry import Component, field_model, keywords
from fedatlas.transforms import TRANSFORMS
from fedatlas.vertical import SCHEMES

REGISTRIES: Mapping[str, Mapping[str, Callable[..., Any]]] = {
    "data": {name: source.builder for name, source in SOURCES.items()},
    "partition": PARTITIONS,
    "model": MODELS,
    "algorithm": ALGORITHMS,
    "compression": TRANSFORMS,
    "aggregation": RULES,
    "privacy": MECHANISMS,
    "attack": ATTACKS,
}


def tables(model: type[BaseModel], at: str = "") -> Iterator[tuple[str, list[str]]]:
    """Yield the tables of fixed keys with these; not one whose keys have other names in the file."""
    if any(field.alias for field in model.model_fields.values()):
        return
    yield at, [*model.model_fields]
    for key in model.model_fields:
        inner = field_model(model, key)
        if inner is not None and not issubclass(inner, Component):
            yield from tables(inner, f"{at}.{key}" if at else key)


def choices(hint: Any) -> list[str]:
    """Return the texts that a field can have; none where it can have others, too."""
    if get_origin(hint) is Literal:
        return [one for one in get_args(hint) if isinstance(one, str)]
    parts = [one for one in get_args(hint) if one is not type(None)] if get_origin(hint) in {Union, UnionType} else []
    return choices(parts[0]) if len(parts) == 1 else []


def values(model: type[BaseModel], at: str = "") -> Iterator[tuple[str, list[str]]]:
    """Yield the keys of single tables that have one of a few texts, with these."""
    for key, field in model.model_fields.items():
        inner, where = field_model(model, key), f"{at}.{key}" if at else key
        if found := choices(field.annotation):
            yield where, found
        if inner is not None and where not in (*spelling.LISTS, *spelling.SEVERAL, "models"):
            yield from values(inner, where)


def known_names() -> dict[str, Any]:
    """Return the list."""
    components = {table: field_model(ExperimentConfig, table) for table in REGISTRIES}
    own = {table: [*model.model_fields] for table, model in components.items() if model is not None}
    defaults = {
        table: model.model_fields["name"].default
        for table, model in components.items()
        if model is not None and isinstance(model.model_fields["name"].default, str)
    }
    return {
        "tables": dict(tables(ExperimentConfig)),
        "values": dict(values(ExperimentConfig)),
        "own": own,
        "defaults": defaults,
        "kinds": {
            table: {name: [*keywords(builder)] for name, builder in registry.items()}
            for table, registry in REGISTRIES.items()
        },
        "further": {"partition": [VERTICAL], "algorithm": [*SCHEMES], "": [*REDUCERS, *PRE, *LOSSES, *EXPERIMENTS]},
        "deployment": {
            "refused": {name: why for name, made in ALGORITHMS.items() if (why := undeployable(made()))},
            "mechanisms": {name: one.limits.deployed for name, one in every().items()},
        },
        "elsewhere": [VERTICAL, *SCHEMES],
    }


if __name__ == "__main__":
    spelling.LIST.write_text(json.dumps(known_names(), indent=1) + "\n", encoding="utf-8")

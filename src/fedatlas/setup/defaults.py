"""Write out the defaults of an experiment, so that its record repeats the run even if the defaults change later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedatlas.aggregation import RULES
from fedatlas.aggregation.before_rule import BUCKET
from fedatlas.algorithms import ALGORITHMS
from fedatlas.attacks import ATTACKS
from fedatlas.config import ExperimentConfig
from fedatlas.data.partition import PARTITIONS
from fedatlas.data.partition.flower import FLOWER
from fedatlas.models.registry import find_model
from fedatlas.privacy.mechanisms import MECHANISMS, made
from fedatlas.registry import defaults, find
from fedatlas.transforms import TRANSFORMS


def completed(config: ExperimentConfig, own_module: bool) -> ExperimentConfig:
    """Return the configuration with every key of its components' builders. A custom network has no builder."""
    tables: dict[str, Any] = {
        "algorithm": full(config.algorithm, find("algorithms", ALGORITHMS, config.algorithm.name))
    }
    if not config.partition.name.startswith(FLOWER):
        tables["partition"] = full(config.partition, find("partitions", PARTITIONS, config.partition.name))
    if config.compression is not None:
        tables["compression"] = full(config.compression, find("transforms", TRANSFORMS, config.compression.name))
    if config.privacy:
        ordered = sorted(config.privacy, key=lambda one: made(one.name).place)
        tables["privacy"] = tuple(full(one, MECHANISMS[one.name]) for one in ordered)
    if config.attack:
        tables["attack"] = tuple(full(one, ATTACKS[one.name]) for one in config.attack)
    if config.aggregation is not None:
        table = full(config.aggregation, RULES[config.aggregation.name])
        bucketing = table.pre == "bucketing" and table.s is None
        tables["aggregation"] = table.model_copy(update={"s": BUCKET}) if bucketing else table
    if config.models:
        tables["models"] = tuple(full(one, find_model(one.name)) for one in config.models)
    elif not own_module:
        tables["model"] = full(config.model, find_model(config.model.name))
    return config.model_copy(update=tables)


def full(component: Any, builder: Callable[..., Any]) -> Any:
    """Return a component's table with the keys that it leaves to their defaults, except defaults of None."""
    known = {*type(component).model_fields, *(component.model_extra or {})}
    left = {key: value for key, value in defaults(builder).items() if value is not None and key not in known}
    return component.model_copy(update=left)

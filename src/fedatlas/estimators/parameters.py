"""Parameters of estimators as tables of an experiment."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from fedatlas.errors import ConfigError


def seed_of(random_state: Any) -> int:
    """Return the seed of an experiment that follows from ``random_state``."""
    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))


def named(component: Any) -> dict[str, Any]:
    """Return a component as a table: a name, or a mapping with the name and its keys. ConfigError for anything else."""
    if not isinstance(component, str | Mapping):
        raise ConfigError(f"{component!r} is neither a name nor a mapping with a name and its keys.")
    return {"name": component} if isinstance(component, str) else dict(component)


def free(columns: Collection[Any], name: str) -> str:
    """Return a name that no column has yet."""
    while name in columns:
        name += "_"
    return name


def merged(tables: Mapping[str, Any], further: Mapping[str, Any]) -> dict[str, Any]:
    """Return tables with further keys, which take precedence."""
    both = {key: {**tables[key], **value} for key, value in further.items() if isinstance(tables.get(key), dict)}
    return {**tables, **further, **both}

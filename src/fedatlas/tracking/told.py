"""Data that a tool gets about a run: settings, and numbers of the whole federation.

It gets no cell, no figure of a single client, and no client's name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fedatlas.config import ExperimentConfig
from fedatlas.record.fields import Effort, Quality

QUALITY = tuple(Quality.__annotations__)
OF_A_ROUND = (*QUALITY, *Effort.__annotations__, "train_loss", "lr")
OF_ALL = (
    "algorithm",
    "data",
    "model",
    "partition",
    "clients",
    "rounds",
    "seed",
    "seeds",
    "task",
    "parameters",
    "forward_flops",
    "best",
    "mean_last",
    "cost",
    "over_seeds",
    "judged_on",
    "diverged",
    "stopped",
    "config_hash",
    "versions",
)
"""Fields of summary.json about the whole federation."""


def numbers(values: Mapping[str, Any], keys: Iterable[str], before: str = "") -> dict[str, float]:
    """Return the finite numbers among these keys, those of a mapping as KEY.PART."""
    found = ((key, values.get(key)) for key in keys)
    out = {}
    for key, value in found:
        parts = value.items() if isinstance(value, Mapping) else [("", value)]
        for part, one in parts:
            if isinstance(one, int | float) and not isinstance(one, bool) and math.isfinite(one):
                out[f"{before}{key}.{part}" if part else f"{before}{key}"] = float(one)
    return out


def of_round(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of a row; those of further models as NAME.FIGURE."""
    out = numbers(row, OF_A_ROUND)
    for name, quality in row.get("models", {}).items():
        out |= numbers(quality, QUALITY, f"{name}.")
    return out


def of_end(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of the final model and the cost of all rounds."""
    final, cost = summary.get("final", {}), summary.get("cost", {})
    return {**numbers(final, QUALITY, "final."), **numbers(cost, Effort.__annotations__, "total.")}


def parameters(config: ExperimentConfig) -> dict[str, str]:
    """Return the settings of an experiment as text by TABLE.KEY. For a file outside this folder it is only its name."""
    plain = config.plain()
    plain.pop("tracking", None)
    return dict(flat(plain))


def flat(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield (TABLE.KEY, text) of nested values."""
    if isinstance(value, Mapping):
        for name, one in value.items():
            yield from flat(one, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list) and any(isinstance(one, Mapping) for one in value):
        for place, one in enumerate(value):
            yield from flat(one, f"{key}.{place}")
    elif isinstance(value, str):
        yield key, Path(value).name if Path(value).is_absolute() else value
    else:
        yield key, json.dumps(value)


def summary_of(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of summary.json that the tool gets."""
    final = {key: value for key, value in summary.get("final", {}).items() if not isinstance(value, list)}
    told = {key: final[key] for key in ("round", "interval", *QUALITY) if key in final}
    return {**{key: summary[key] for key in OF_ALL if key in summary}, "final": told}


def shows_rows(config: ExperimentConfig) -> str:
    """Return what the report may show of real owners and their rows; "" if clients were made up and nothing was reconstructed."""
    if config.columns:
        return "each party's columns"
    if config.partition.name.startswith(("natural", "flwr:Natural")):
        return "how many rows of each class each owner holds"
    if config.observe is not None or config.attack:
        return "what attacks found out about rows"
    return ""

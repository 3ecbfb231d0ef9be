"""What a user asks of a recommendation: REQUIREMENTS.toml as typed values, and one sentence for what is wrong with it."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedatlas.errors import ConfigError, unknown_name
from fedatlas.recommender.contest import COSTS, QUALITIES
from fedatlas.study.heterogeneity import heterogeneity, read_counts

SEES = ("anything", "models", "sums", "noisy_sums")  # what the server sees of single clients, from most to least
RESPONSES = (*QUALITIES, *COSTS, "seconds")
LATER = ("joules", "leak", "profile")  # known names that this version does not answer
FACTS = ("nodes", "rows", "classes", "heterogeneity")
TABLES = {
    "study": (),
    "confidence": (),
    "federation": ("experiment", "counts", "centralised", "profile", "server", *FACTS),
    "at_least": (*RESPONSES, *LATER),
    "at_most": (*RESPONSES, *LATER),
    "privacy": ("server_sees",),
    "weights": (*RESPONSES, *LATER),
}


class Requirements(NamedTuple):
    """What is asked. The four facts are None where an experiment is named that has to be measured first."""

    study: str
    confidence: float
    nodes: float | None
    rows: float | None  # training rows of all nodes together
    classes: float | None  # None: not known
    heterogeneity: float | None  # h
    centralised: float | None  # accuracy of training on all rows together, where known
    experiment: str | None
    at_least: dict[str, float]
    at_most: dict[str, float]
    server_sees: str
    weights: dict[str, float]  # quality alone unless told otherwise


def read_requirements(path: Path) -> Requirements:
    """The requirements of a file; a relative ``counts`` lies beside it."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no requirements file '{path}': name one that is there.") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read as TOML: {str(error).splitlines()[0].rstrip('.')}.") from error
    return requirements(raw, path.parent)


def requirements(raw: Mapping[str, Any], folder: Path = Path()) -> Requirements:
    """The requirements of the tables of a file."""
    _known_keys(raw)
    least, most, weights = (_numbers(raw, table) for table in ("at_least", "at_most", "weights"))
    _possible(least, most)
    confidence = _number("confidence", raw.get("confidence", 0.9))
    if not 0.5 <= confidence < 1:
        raise ConfigError(f"confidence is {confidence:g}: it is a probability from 0.5 to below 1, such as 0.9.")
    if any(weight < 0 for weight in weights.values()) or (weights and not any(weights.values())):
        raise ConfigError("[weights] are all 0 or one is negative: give at least one response a weight above 0.")
    sees = raw.get("privacy", {}).get("server_sees", SEES[0])
    if sees not in SEES:
        raise unknown_name("value of privacy.server_sees", str(sees), SEES)
    federation = raw.get("federation", {})
    known = _facts(federation, folder)
    centralised = (
        None if "centralised" not in federation else _number("federation.centralised", federation["centralised"])
    )
    if centralised is not None and not 0 < centralised < 1:
        raise ConfigError(f"federation.centralised is {centralised:g}: it is an accuracy between 0 and 1.")
    experiment = federation.get("experiment")
    name = str(raw.get("study", "small"))
    return Requirements(
        name, confidence, *known, centralised, experiment, least, most, sees, weights or {"accuracy": 1.0}
    )


def _known_keys(raw: Mapping[str, Any]) -> None:
    """Refuses tables and keys that there are not, and those that a later version answers."""
    for table, inside in raw.items():
        if table not in TABLES:
            raise unknown_name("table of the requirements", table, TABLES)
        if not TABLES[table]:
            continue
        if not isinstance(inside, Mapping):
            raise ConfigError(f"{table} is a table: write [{table}] with a line for each key.")
        for key in inside:
            if key in LATER or (table, key) == ("federation", "server"):
                raise ConfigError(f"{table}.{key} is not in this version: leave it out.")
            if key not in TABLES[table]:
                kind = f"key of [{table}]" if table in {"federation", "privacy"} else "response"
                raise unknown_name(kind, key, [k for k in TABLES[table] if k not in LATER])


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(f"{name} is {value!r}: give it a number.")
    return float(value)


def _numbers(raw: Mapping[str, Any], table: str) -> dict[str, float]:
    return {key: _number(f"{table}.{key}", value) for key, value in sorted(raw.get(table, {}).items())}


def _possible(least: Mapping[str, float], most: Mapping[str, float]) -> None:
    """Refuses limits that nothing can keep, alone or together."""
    for response, value in least.items():
        if response in most and value > most[response]:
            raise ConfigError(
                f"{response} at least {value:g} and at most {most[response]:g} exclude each other: change one."
            )
        if response in QUALITIES and value > 1:
            raise ConfigError(f"at_least.{response} is {value:g}: it is a share, at most 1.")
    for response, value in most.items():
        if value < 0:
            raise ConfigError(f"at_most.{response} is {value:g}: nothing is below 0.")


def _facts(
    federation: Mapping[str, Any], folder: Path
) -> tuple[float | None, float | None, float | None, float | None]:
    """nodes, rows, classes and h, as told, as counted, or all None where an experiment tells them."""
    told = {key: _number(f"federation.{key}", federation[key]) for key in FACTS if key in federation}
    if "experiment" in federation:
        if told or "counts" in federation:
            raise ConfigError(
                "[federation] has an experiment, which tells the rest: leave nodes, rows, classes, heterogeneity, counts out."
            )
        return None, None, None, None
    if "counts" in federation:
        counts = read_counts(folder / str(federation["counts"]))
        if told.get("classes", counts.shape[1]) != counts.shape[1]:
            raise ConfigError(
                f"federation.counts has {counts.shape[1]} classes, federation.classes says {told['classes']:g}: correct one."
            )
        if told.keys() - {"classes"}:
            raise ConfigError("[federation] has counts, which tell nodes, rows and heterogeneity: leave those out.")
        return float((counts.sum(axis=1) > 0).sum()), float(counts.sum()), float(counts.shape[1]), heterogeneity(counts)
    _require(told, ("nodes", "rows", "heterogeneity"))
    if told["nodes"] < 1 or told["rows"] < told["nodes"]:
        raise ConfigError(
            "federation.nodes is at least 1, and federation.rows at least as many: rows are those of all nodes together."
        )
    if not 0 <= told["heterogeneity"] <= 1:
        raise ConfigError(
            f"federation.heterogeneity is {told['heterogeneity']:g}: it is h, from 0 (IID) to 1 (one class a node)."
        )
    if told.get("classes", 2) < 2:
        raise ConfigError("federation.classes is below 2: a study knows tables with classes alone.")
    return told["nodes"], told["rows"], told.get("classes"), told["heterogeneity"]


def _require(told: Mapping[str, float], keys: Iterable[str]) -> None:
    missing = [key for key in keys if key not in told]
    if missing:
        raise ConfigError(
            f"[federation] lacks {', '.join(missing)}: give them, or counts, or an experiment that tells them."
        )

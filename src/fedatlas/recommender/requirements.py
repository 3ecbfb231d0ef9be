"""A user's requirements: REQUIREMENTS.toml as typed values, and one sentence for each error in it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedatlas.errors import ConfigError, unknown_name
from fedatlas.study.heterogeneity import heterogeneity, read_counts
from fedatlas.study.plain import Row, toml_of
from fedatlas.study.responses import RESPONSES

SEES = ("anything", "models", "sums", "noisy_sums")  # what the server may see of single clients, from most to least
LATER = ("joules", "leak", "profile", "server")  # known names not supported by this version
FACTS = ("nodes", "rows", "classes", "heterogeneity")
NO_RESPONSES = {
    "study": (),
    "confidence": (),
    "federation": ("experiment", "counts", "centralised", *FACTS),
    "privacy": ("server_sees",),
}
"""Tables whose keys are not responses, and their keys."""
TABLES = ("study", "confidence", "federation", "at_least", "at_most", "privacy", "weights")
Known = tuple[float | None, float | None, float | None, float | None]


class Limit(NamedTuple):
    """One limit on a response: ``sign`` times a value must reach ``sign`` times the limit."""

    table: str
    response: str
    value: float
    sign: int


class Requirements(NamedTuple):
    """The requirements. The four facts are None if an experiment is named that has to be measured first."""

    study: str
    confidence: float
    nodes: float | None
    rows: float | None  # training rows of all nodes together
    classes: float | None  # None: unknown
    heterogeneity: float | None  # h
    centralised: float | None  # accuracy of pooled training, if known
    experiment: str | None
    at_least: dict[str, float]
    at_most: dict[str, float]
    server_sees: str
    weights: dict[str, float]  # by default only accuracy

    def limits(self) -> list[Limit]:
        """Return all limits."""
        both = (("at_least", self.at_least, 1), ("at_most", self.at_most, -1))
        return [Limit(table, name, x, sign) for table, found, sign in both for name, x in found.items()]

    def without(self, limit: Limit) -> Requirements:
        """Return the same requirements without a limit."""
        least, most = (
            {name: x for name, x in found.items() if (table, name) != limit[:2]}
            for table, found in (("at_least", self.at_least), ("at_most", self.at_most))
        )
        return self._replace(at_least=least, at_most=most)


def read_requirements(path: Path) -> Requirements:
    """Read the requirements of a file; a relative ``counts`` path starts in its folder."""
    return requirements(toml_of(path, "requirements")[1], path.parent)


def requirements(raw: Row, folder: Path = Path()) -> Requirements:
    """Return the requirements in the tables of a file."""
    _known_keys(raw)
    least, most, weights = (_numbers(raw, table) for table in ("at_least", "at_most", "weights"))
    _possible(least, most)
    confidence = _number("confidence", raw.get("confidence", 0.9))
    if not 0.5 <= confidence < 1:
        raise ConfigError(f"confidence is {confidence:g}: give a probability from 0.5 to below 1, such as 0.9.")
    if any(weight < 0 for weight in weights.values()) or (weights and not any(weights.values())):
        raise ConfigError(
            "[weights] are all 0 or one is negative: give at least one response a weight above 0, and none below."
        )
    sees = raw.get("privacy", {}).get("server_sees", SEES[0])
    if sees not in SEES:
        raise unknown_name("value of privacy.server_sees", str(sees), SEES)
    federation = raw.get("federation", {})
    told = {key: _number(f"federation.{key}", federation[key]) for key in (*FACTS, "centralised") if key in federation}
    centralised = told.pop("centralised", None)
    if centralised is not None and not 0 < centralised < 1:
        raise ConfigError(f"federation.centralised is {centralised:g}: give an accuracy between 0 and 1.")
    known, name = _facts(federation, told, folder), str(raw.get("study", "small"))
    experiment, weights = federation.get("experiment"), weights or {"accuracy": 1.0}
    return Requirements(name, confidence, *known, centralised, experiment, least, most, sees, weights)


def _known_keys(raw: Row) -> None:
    """Refuse unknown tables and keys, and those that this version does not support."""
    responses = [name for name, one in RESPONSES.items() if one.forecast]
    for table, inside in raw.items():
        if table not in TABLES:
            raise unknown_name("table of the requirements", table, TABLES)
        known = NO_RESPONSES.get(table, responses)
        if known and not isinstance(inside, Mapping):
            raise ConfigError(f"{table} is a table: write [{table}] with one line per key.")
        for key in inside if known else ():
            if key in LATER and table != "privacy":
                raise ConfigError(f"{table}.{key} is not supported in this version: leave it out.")
            if key not in known:
                raise unknown_name(f"key of [{table}]" if table in NO_RESPONSES else "response", key, known)


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(f"{name} is {value!r}: give a number.")
    return float(value)


def _numbers(raw: Row, table: str) -> dict[str, float]:
    return {key: _number(f"{table}.{key}", value) for key, value in sorted(raw.get(table, {}).items())}


def _possible(least: Mapping[str, float], most: Mapping[str, float]) -> None:
    """Refuse limits that no value can satisfy, singly or together."""
    for response, value in least.items():
        if response in most and value > most[response]:
            raise ConfigError(
                f"{response} at least {value:g} and at most {most[response]:g} exclude each other: change one."
            )
        if RESPONSES[response].scale == "logit" and value > 1:
            raise ConfigError(f"at_least.{response} is {value:g}: give a share, at most 1.")
    for response, value in most.items():
        if value < 0:
            raise ConfigError(f"at_most.{response} is {value:g}: give a limit of 0 or more.")


def _facts(federation: Row, told: Mapping[str, float], folder: Path) -> Known:
    """Return nodes, rows, classes and h: as given, as counted, or all None if an experiment provides them."""
    if "experiment" in federation:
        if told or "counts" in federation:
            raise ConfigError(
                "[federation] has an experiment, which provides the rest: leave out nodes, rows, classes, heterogeneity and counts."
            )
        return None, None, None, None
    if "counts" in federation:
        counts = read_counts(folder / str(federation["counts"]))
        if told.get("classes", counts.shape[1]) != counts.shape[1]:
            raise ConfigError(
                f"federation.counts has {counts.shape[1]} classes, but federation.classes is {told['classes']:g}: correct one."
            )
        if told.keys() - {"classes"}:
            raise ConfigError("[federation] has counts, which provide nodes, rows and heterogeneity: leave those out.")
        return float((counts.sum(axis=1) > 0).sum()), float(counts.sum()), float(counts.shape[1]), heterogeneity(counts)
    if missing := [key for key in ("nodes", "rows", "heterogeneity") if key not in told]:
        raise ConfigError(f"[federation] lacks {', '.join(missing)}: give them, or counts, or an experiment.")
    if told["nodes"] < 1 or told["rows"] < told["nodes"]:
        raise ConfigError(
            "federation.nodes must be at least 1, and federation.rows at least as large: rows are those of all nodes together."
        )
    if not 0 <= told["heterogeneity"] <= 1:
        raise ConfigError(
            f"federation.heterogeneity is {told['heterogeneity']:g}: give h, from 0 (IID) to 1 (one class per node)."
        )
    if told.get("classes", 2) < 2:
        raise ConfigError("federation.classes is below 2: studies cover only targets with classes.")
    return told["nodes"], told["rows"], told.get("classes"), told["heterogeneity"]

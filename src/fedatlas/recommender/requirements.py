"""A user's requirements: REQUIREMENTS.toml as typed values, and one sentence for each error in it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedatlas.errors import ConfigError, unknown_name
from fedatlas.registry import shown
from fedatlas.study.heterogeneity import heterogeneity, read_counts
from fedatlas.study.plain import Row, toml_of
from fedatlas.study.responses import RESPONSES

SEES = ("anything", "models", "sums", "noisy_sums")  # what the server may see of single clients, from most to least
LATER = ("joules", "leak", "profile", "server")  # known names not supported by this version
FACTS = ("nodes", "rows", "classes", "heterogeneity")
WHOLE = FACTS[:3]  # facts that count
ROWS_OF = ("all", "own")  # whose rows the experiment holds: those of all nodes, or one party's own
TOP = ("study", "confidence", "minutes", "work")
TABLES: dict[str, tuple[str, ...]] = {
    "federation": ("experiment", "counts", "centralised", "rows_of", *FACTS),
    "at_least": (),
    "at_most": (),
    "privacy": ("server_sees", "delta"),
    "weights": (),
}
"""Table -> its keys; of empty ones these are the responses (`keys_of`)."""
LARGEST = 1e300  # no number of a file is as large; also not infinity
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
    delta: float | None = None  # at which epsilon is stated; None: that of each choice
    only_computed: bool = (
        False  # every limit, and every weight that is given, is on a computed response: no run is needed
    )
    minutes: float = 10.0  # of a race, with an experiment; 0: no race, only what is known from other federations
    work: int | None = None  # of a race in rounds of runs, in place of minutes
    own_rows: bool = False  # whether the experiment holds one party's rows, dealt out, not those of all nodes

    @property
    def raced(self) -> bool:
        """Whether the choices are raced: they are to be compared by quality, and there is work for it."""
        quality = any(RESPONSES[name].quality for name in (*self.at_least, *self.at_most))
        return (self.minutes > 0 or self.work is not None) and (quality or not self.by_cost)

    @property
    def noise_asked(self) -> bool:
        """Whether choices that add noise may be recommended: only where epsilon, or noise on sums, is asked for."""
        return "epsilon" in self.at_most or bool(self.weights.get("epsilon")) or self.server_sees == SEES[-1]

    @property
    def by_cost(self) -> bool:
        """Whether choices are weighed by their costs only, so that which is best is computed."""
        return not any(RESPONSES[name].quality for name, weight in self.weights.items() if weight)

    def limits(self) -> list[Limit]:
        """Return all limits."""
        both = (("at_least", self.at_least, 1), ("at_most", self.at_most, -1))
        return [Limit(table, name, x, sign) for table, found, sign in both for name, x in found.items()]

    def on_costs(self) -> Requirements:
        """Return the same requirements without limits on quality."""
        least, most = (
            {name: x for name, x in found.items() if not RESPONSES[name].quality}
            for found in (self.at_least, self.at_most)
        )
        return self._replace(at_least=least, at_most=most)

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
    privacy, federation = raw.get("privacy", {}), raw.get("federation", {})
    sees = privacy.get("server_sees", SEES[0])
    if sees not in SEES:
        raise unknown_name("value of privacy.server_sees", shown(sees).strip("'"), SEES)
    delta = _number("privacy.delta", privacy["delta"]) if "delta" in privacy else None
    if delta is not None and not 0 < delta < 1:
        raise ConfigError(f"privacy.delta is {delta:g}: give a probability between 0 and 1, such as 1e-5.")
    told = {key: _number(f"federation.{key}", federation[key]) for key in (*FACTS, "centralised") if key in federation}
    centralised = told.pop("centralised", None)
    if centralised is not None and not 0 < centralised < 1:
        raise ConfigError(f"federation.centralised is {centralised:g}: give an accuracy between 0 and 1.")
    known, name = _facts(federation, told, folder), _text("study", raw.get("study", "small"))
    experiment = _text("federation.experiment", federation["experiment"]) if "experiment" in federation else None
    used = {*least, *most, *(name for name, weight in weights.items() if weight)}
    only_computed = bool(used) and not any(RESPONSES[name].quality for name in used)
    weights = weights or {"accuracy": 1.0}
    race = _race_asked(raw, federation, experiment)
    found = Requirements(
        name, confidence, *known, centralised, experiment, least, most, sees, weights, delta, only_computed, *race
    )
    if experiment is not None and "memory" in used and not found.raced:
        raise ConfigError(
            "only runs tell the memory that an experiment takes: give minutes above 0 and a limit or weight on quality, so that the "
            "choices are raced, or leave memory out."
        )
    return found


def _race_asked(raw: Row, federation: Row, experiment: str | None) -> tuple[float, int | None, bool]:
    """Return minutes, work, and whether the rows are one party's own."""
    given = [key for key in ("minutes", "work") if key in raw]
    given += ["federation.rows_of"] if "rows_of" in federation else []
    if experiment is None and given:
        raise ConfigError(f"{given[0]} is about a race on your rows: name an experiment in [federation] experiment.")
    if "minutes" in raw and "work" in raw:
        raise ConfigError("work replaces minutes: give one of them.")
    minutes, work, rows_of = _number("minutes", raw.get("minutes", 10.0)), raw.get("work"), federation.get("rows_of")
    if minutes < 0:
        raise ConfigError(f"minutes is {minutes:g}: give 0 for no race, or how long it may take.")
    if work is not None and (isinstance(work, bool) or not isinstance(work, int) or work < 1):
        raise ConfigError(f"work is {shown(work)}: give a whole number of rounds of runs, at least 1.")
    if rows_of not in (None, *ROWS_OF):
        raise unknown_name("value of federation.rows_of", shown(rows_of).strip("'"), ROWS_OF)
    return minutes, work, rows_of == ROWS_OF[1]


def _known_keys(raw: Row) -> None:
    """Refuse unknown tables and keys, those in a wrong place, and those that this version does not support."""
    for table, inside in raw.items():
        if table in TOP:
            continue
        if table not in TABLES:
            raise _misplaced(table, "") or unknown_name("table of the requirements", table, [*TOP, *TABLES])
        if not isinstance(inside, Mapping):
            raise ConfigError(f"{table} is a table: write [{table}] with one line per key.")
        for key in inside:
            if key in keys_of(table):
                continue
            if key in LATER and table != "privacy":
                raise ConfigError(f"{table}.{key} is not supported in this version: leave it out.")
            what = f"key of [{table}]" if TABLES[table] else "response"
            raise _misplaced(key, table) or unknown_name(what, key, keys_of(table))


def keys_of(table: str) -> tuple[str, ...]:
    """Return the keys of a table."""
    return TABLES[table] or tuple(name for name, one in RESPONSES.items() if one.forecast)


def _misplaced(key: str, table: str) -> ConfigError | None:
    """Return the error for a key that belongs elsewhere than in ``table`` ("": the top of the file); None for an unknown key."""
    here = f"under [{table}]" if table else "at the top of the file"
    if key in TOP:
        return ConfigError(f"'{key}' stands {here}: move it to the top of the file, before the first [table].")
    if key in TABLES:
        return ConfigError(f"the table '{key}' stands {here}: write it with a heading, [{key}].")
    places = [f"[{name}]" for name in TABLES if key in keys_of(name)]
    if not places:
        return None
    either = f"{', '.join(places[:-1])} or {places[-1]}" if places[1:] else places[0]
    return ConfigError(f"'{key}' stands {here}: write it under {either}.")


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(
            f"{name} is {shown(value)}: give the path of a file{' or the name of a study' * (name in TOP)}."
        )
    return value


def _number(name: str, value: Any) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST:
        return float(value)
    raise ConfigError(f"{name} is {shown(value)}: give a number.")


def _numbers(raw: Row, table: str) -> dict[str, float]:
    return {key: _number(f"{table}.{key}", value) for key, value in sorted(raw.get(table, {}).items())}


def _possible(least: Mapping[str, float], most: Mapping[str, float]) -> None:
    """Refuse limits that no value can satisfy, or that every value satisfies, singly or together."""
    for table, limits in (("at_least", least), ("at_most", most)):
        for response, value in limits.items():
            if RESPONSES[response].scale == "logit" and not 0 <= value <= 1:
                raise ConfigError(f"{table}.{response} is {value:g}: give a share, from 0 to 1.")
            if value < 0:
                raise ConfigError(f"{table}.{response} is {value:g}: give a limit of 0 or more.")
    for response, value in least.items():
        if response in most and value > most[response]:
            raise ConfigError(
                f"{response} at least {value:g} and at most {most[response]:g} exclude each other: change one."
            )


def _facts(federation: Row, told: Mapping[str, float], folder: Path) -> Known:
    """Return nodes, rows, classes and h: as given, as counted, or all None if an experiment provides them."""
    if "experiment" in federation:
        if told or "counts" in federation:
            raise ConfigError(
                "[federation] has an experiment, which provides the rest: leave out nodes, rows, classes, heterogeneity and counts."
            )
        return None, None, None, None
    if "counts" in federation:
        counts = read_counts(folder / _text("federation.counts", federation["counts"]))
        if counts.shape[1] < 2:
            raise ConfigError("federation.counts has one column: studies cover only targets with two or more classes.")
        if told.get("classes", counts.shape[1]) != counts.shape[1]:
            raise ConfigError(
                f"federation.counts has {counts.shape[1]} classes, but federation.classes is {told['classes']:g}: correct one."
            )
        if told.keys() - {"classes"}:
            raise ConfigError("[federation] has counts, which provide nodes, rows and heterogeneity: leave those out.")
        return float((counts.sum(axis=1) > 0).sum()), float(counts.sum()), float(counts.shape[1]), heterogeneity(counts)
    if missing := [key for key in ("nodes", "rows", "heterogeneity") if key not in told]:
        raise ConfigError(f"[federation] lacks {', '.join(missing)}: give them, or counts, or an experiment.")
    for key in WHOLE:
        if not told.get(key, 0.0).is_integer():
            raise ConfigError(f"federation.{key} is {told[key]:g}: give a whole number.")
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

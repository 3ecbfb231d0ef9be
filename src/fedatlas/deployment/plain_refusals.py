"""Refusals of a deployed run that follow from the plain values of an experiment.

They need no heavy import, so they take well under a second. The full check (`deployment.refusals`) calls the same
function. It looks names up in the registries. Here a shipped list is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedatlas import spelling
from fedatlas.errors import ConfigError
from fedatlas.wording import listed

MOST_JUDGED = 0.5  # share of a node's rows for judging: a larger one would let an operator single out rows
CHANGING = "feature_skew"  # the partition that changes rows as they are read
COLUMNS = (
    "partition.name = 'vertical' deals the columns of one table, and between real parties each has its own table: write [[parties]], "
    "each with the name of its node."
)


def check(path: Path | None, overrides: Sequence[str], nodes: int | None = None) -> None:
    """Raise the full check's ConfigError for experiments that no deployed run can do.

    An unreadable file is left to that check.

    ``nodes``: the number of nodes; None if it is not known yet.
    """
    values = spelling.values_of(path, overrides)
    if values is None:
        return
    for words in of_all(values) if of_columns(values) else (*of_all(values), *_of_names(values)):
        raise ConfigError(words)
    clients = _at(values, "partition", "clients")
    if nodes is not None and isinstance(clients, int) and clients != nodes and not of_columns(values):
        raise ConfigError(clients_refused(clients, nodes))


def check_trial(path: Path | None, overrides: Sequence[str], nodes: int | None) -> None:
    """Raise ConfigError as `check` does, for a trial, which deals rows.

    It sets partition.clients unless an override does.
    """
    given = any(text.partition("=")[0].strip() == "partition.clients" for text in overrides)
    check(path, overrides, nodes if given else None)
    name = _at(spelling.values_of(path, overrides) or {}, "partition", "name")
    if name == CHANGING:
        raise ConfigError(dealt_refused(CHANGING))


def clients_refused(clients: int, nodes: int) -> str:
    """Return the error if the number of clients differs from the number of nodes."""
    return (
        f"partition.clients = {clients}: the run has {nodes} nodes; write partition.clients = {nodes}, "
        "or name those that take part with --nodes."
    )


def dealt_refused(name: str) -> str:
    """Return the error for a partition whose rows cannot be dealt."""
    return f"partition.name = '{name}' changes rows as they are read: not in a trial; take another."


def of_columns(values: Mapping[str, Any]) -> bool:
    """Return whether parties hold columns, as far as the values tell."""
    return bool(values.get("parties")) or _at(values, "partition", "name") in {"vertical", "hybrid"}


def _of_names(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield why the named algorithm and mechanisms cannot be deployed, then the refusals of other values."""
    known = spelling.known()["deployment"]
    if isinstance(name := _at(values, "algorithm", "name"), str) and name in known["refused"]:
        yield algorithm_refused(name, known["refused"][name])
    held = values.get("privacy")
    for one in held if isinstance(held, list) else ():
        name = one.get("name") if isinstance(one, Mapping) else None
        if isinstance(name, str) and name in known["mechanisms"] and not known["mechanisms"][name]:
            yield mechanism_refused(name, [able for able, there in known["mechanisms"].items() if there])
    yield from of_rows(values)


def algorithm_refused(name: str, why: str) -> str:
    """Return the error for an algorithm."""
    return f"algorithm.name = '{name}': it {why}; choose another algorithm."


def mechanism_refused(name: str, able: Sequence[str]) -> str:
    """Return the error for a mechanism. ``able``: those that can be deployed."""
    known = listed([f"'{one}'" for one in able])
    return (
        f"[[privacy]] name = '{name}': not in this version of deployment; of the mechanisms it has {known}: take one of these, remove "
        "the table, or simulate it with fedatlas run."
    )


def of_all(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield why a run cannot be deployed, for rows and for columns."""
    if values.get("tracking") is not None:
        yield "[tracking]: a deployed run tells no tool in this version; remove the table."
    if _at(values, "partition", "name") in {"vertical", "hybrid"} and not values.get("parties"):
        yield COLUMNS


def of_rows(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield what real parties that hold rows cannot do, or cannot do yet.

    ``values``: all plain values, or only the given ones.
    """
    if values.get("seeds") is not None:
        yield "seeds: a deployed run has one seed; write seed = N."
    if _at(values, "model", "bn") == "local":
        yield "model.bn = 'local': not in this version of deployment; use 'average'."
    if values.get("models"):
        yield "[[models]]: nodes share one network in this version of deployment; use [model]."
    if values.get("public") is not None:
        yield "[public]: public rows do not travel in this version of deployment; remove the table."
    if (values.get("audit") or {}).get("canaries"):
        yield "audit.canaries are put into a simulation: not in a deployed run; set canaries = 0."
    if _at(values, "guard", "from") == "train":
        yield "guard.from = 'train': the server of a deployed run has test rows only (--test); use 'test'."
    if values.get("drift") is not None:
        yield "[drift] changes rows of a simulation: not between real parties, whose rows are their own; remove the table."
    if values.get("observe") is not None:
        yield "[observe] keeps views of a simulation: not in a deployed run in this version; remove the table."
    yield from _of_judging(values)
    if any(isinstance(one, Mapping) and one.get("noise") == "seed" for one in values.get("privacy") or ()):
        yield "[[privacy]] noise = 'seed' protects nobody: not between real parties; remove the key."
    if values.get("attack"):
        yield "[[attack]]: an experiment file makes nobody attack between real parties; remove the tables."
    if (rule := _at(values, "aggregation", "name")) not in {None, "mean"}:
        yield f"aggregation.name = '{rule}': not in this version of deployment; use 'mean'."
    if (pre := _at(values, "aggregation", "pre")) not in {None, "none"}:
        yield f"aggregation.pre = '{pre}': not in this version of deployment; remove the key."
    if _at(values, "engine", "plan") == "stacked":
        yield "engine.plan = 'stacked' trains several clients at once, and a node is one: remove the key."
    if _at(values, "engine", "cluster") is not None:
        yield "engine.cluster: parties of a deployed run train on their own machines; remove the key."


def _of_judging(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the refusals about judging, and about the rows that are judged or left out."""
    if _at(values, "evaluation", "drift") is True:
        yield "evaluation.drift = true looks into clients' labels: not in a deployed run; remove it."
    if _at(values, "evaluation", "clients"):
        yield "evaluation.clients: nodes hold out no rows in this version of deployment; remove it."
    if _at(values, "evaluation", "on") == "validation":
        yield "evaluation.on = 'validation': judging is on test rows in this version of deployment; remove it."
    test = _at(values, "data", "test")
    if isinstance(test, str) and test != "own":
        yield "data.test names a file: give it to the server (--test), or name a share that every node keeps for judging."
    if isinstance(test, float) and test > MOST_JUDGED:
        yield (
            f"data.test = {test:g} leaves few rows, and a node trains on half of its own at least: give {MOST_JUDGED} or less."
        )
    if _at(values, "data", "name") == "file" and _at(values, "data", "limit"):
        yield "data.limit takes a part of the rows, and a node trains on all of its own: remove it."


def _at(values: Mapping[str, Any], table: str, key: str) -> Any:
    """Return the value at ``table.key``; None if it is missing, or the table is not a table."""
    held = values.get(table)
    return held.get(key) if isinstance(held, Mapping) else None

"""What a study measured, as arrays: settings by choices by seeds, in an order that no file decides.

A table of runs is a dict of columns or a list of rows. Beside the factors (a column each with the name of the level, or all of them
as ``levels``, by name) and the responses at the last round it holds what the run's federation was: ``nodes``, ``rows`` (training rows
of all nodes), ``heterogeneity`` (h), ``classes``, ``data`` (the name of the data set); where known ``majority`` (the share of the
largest class) and ``server_sees``. ``curves`` holds pairs of round and value by response. A setting is given to the user, a choice is
what is recommended.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedatlas.errors import DataError, unknown_name

VERSION = 1  # of the table of runs; a newer one may mean other things by the same names
OUTCOMES = (
    "done",
    "diverged",
    "timeout",
    "memory",
)  # of cells that could run; refused ones could not, failed ones tell nothing
STATUSES = ("planned", "running", "refused", "failed", *OUTCOMES)
NEEDED = ("run_key", "kind", "status", "seed", "rounds")
FACTS = ("nodes", "rows", "heterogeneity", "classes")
SUMS = {"bytes": ("bytes_up", "bytes_down"), "messages": ("messages_up", "messages_down")}
ALIAS = {"client_accuracy_p10": "client_p10", "memory": "memory_mib"}
BY_ROUND = {"bytes_up", "bytes_down", "messages_up", "messages_down", "flops", "cpu_seconds"}  # add up over the rounds

Floats = NDArray[np.float64]
Run = Mapping[str, Any]
Table = Mapping[str, Sequence[Any]] | Sequence[Run]

ROUNDS = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50)


class Study(NamedTuple):
    """A table of runs and what its columns are: names of factors in the order of the alphabet, runs in one order."""

    name: str
    runs: list[Run]
    settings: tuple[str, ...]  # the factors that are given
    choices: tuple[str, ...]  # the factors that are recommended
    references: tuple[str, ...] = ("fedavg", "fedavg_secagg")  # FedAvg, then its twins that show less
    twins: Mapping[str, str] = {}  # choice -> the one whose quality it has by construction


def read_study(
    table: Table,
    settings: Sequence[str],
    choices: Sequence[str],
    *,
    name: str = "study",
    version: int = VERSION,
    references: Sequence[str] = ("fedavg", "fedavg_secagg"),
    twins: Mapping[str, str] | None = None,
) -> Study:
    """The study of a table; DataError for a table that is newer than this program or damaged."""
    if version > VERSION:
        raise DataError(
            f"the table of '{name}' is of version {version}, this program reads {VERSION}: update fedatlas."
        )
    rows = _rows(table, name)
    for row in rows:
        factors = settings if row.get("kind") == "baseline" else (*settings, *choices)
        missing = [key for key in NEEDED if key not in row] + [f for f in factors if f not in row.get("levels", row)]
        if missing or row["status"] not in STATUSES:
            what = f"no column '{missing[0]}'" if missing else f"the unknown status '{row['status']}'"
            raise DataError(
                f"the table of '{name}' is damaged ({what}): write it anew with fedatlas study --retry failed."
            )
    if not choices:
        raise DataError(f"the table of '{name}' has no factor with role choice: nothing can be recommended.")
    given, chosen = tuple(sorted(settings)), tuple(sorted(choices))
    rows.sort(
        key=lambda r: ([str(level(r, f)) for f in (*given, *chosen)], str(r["kind"]), str(r["seed"]), str(r["run_key"]))
    )
    return Study(name, rows, given, chosen, tuple(references), dict(twins or {}))


def _rows(table: Table, name: str) -> list[Run]:
    """The table as a list of rows."""
    if not isinstance(table, Mapping):
        return [dict(row) for row in table]
    if len({len(column) for column in table.values()}) > 1:
        raise DataError(
            f"the table of '{name}' is damaged: its columns differ in length; write it anew with --retry failed."
        )
    return [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]


def level(run: Run, factor: str) -> Any:
    """The level of a factor that a run has; "" where it has none, as a baseline has of a choice."""
    return run.get("levels", run).get(factor, "")


def setting_of(study: Study, run: Run) -> tuple[str, ...]:
    """The levels of the setting's factors."""
    return tuple(str(level(run, factor)) for factor in study.settings)


def choice_of(study: Study, run: Run) -> str:
    """The name of the choice: its level, or its levels joined by " + " where there are several factors."""
    return " + ".join(str(level(run, factor)) for factor in study.choices)


def cell_runs(study: Study) -> list[Run]:
    """The runs of the cells: no baselines, no runs that picked a rate, none kept from the recommender."""
    return [run for run in study.runs if run["kind"] == "cell"]


def setting_names(study: Study) -> list[tuple[str, ...]]:
    """All settings with a cell."""
    return sorted({setting_of(study, run) for run in cell_runs(study)})


def choice_names(study: Study) -> list[str]:
    """All choices with a finished cell: what was never measured is never recommended."""
    return sorted({choice_of(study, run) for run in cell_runs(study) if run["status"] == "done"})


def value_of(run: Run, response: str, rounds: int | None = None) -> float:
    """A response of a run at its last round or after ``rounds``; nan where it is not known.

    After fewer rounds than the run's it is the curve's; without a curve what adds up over rounds is taken in proportion, memory as it is,
    and epsilon, which only grows, as it is in the end: an upper bound. No epsilon is an infinite one.
    """
    if response in SUMS:
        return sum(value_of(run, part, rounds) for part in SUMS[response])
    name, last = ALIAS.get(response, response), int(run["rounds"])
    if name == "epsilon" and run.get(name) is None:
        return math.inf
    end = math.nan if run.get(name) is None else float(run[name])
    if rounds is None or rounds == last:
        return end
    if rounds > last:
        return math.nan
    curve = (run.get("curves") or {}).get(name)
    if curve is not None:
        return next((float(value) for at, value in curve if int(at) == rounds and value is not None), math.nan)
    if name in BY_ROUND:
        return end * rounds / last
    return end if name in {"epsilon", "memory_mib"} else math.nan


def finished(run: Run) -> bool:
    """Whether a run got somewhere: it is done and better than always naming the largest class."""
    majority, accuracy = run.get("majority"), run.get("accuracy")
    return run["status"] == "done" and not (majority is not None and accuracy is not None and accuracy <= majority)


def by_cell(study: Study, response: str, rounds: int | None = None) -> Floats:
    """(settings, choices, seeds) values of the runs that are done, nan elsewhere; seeds are paired over a setting's choices."""
    given, chosen = setting_names(study), choice_names(study)
    runs = cell_runs(study)
    seeds = sorted({str(run["seed"]) for run in runs})
    found = np.full((len(given), len(chosen), len(seeds)), np.nan)
    place = {name: i for i, name in enumerate(given)}, {name: i for i, name in enumerate(chosen)}
    for run in runs:
        if run["status"] == "done" and (choice := choice_of(study, run)) in place[1]:
            at = place[0][setting_of(study, run)], place[1][choice], seeds.index(str(run["seed"]))
            found[at] = value_of(run, response, rounds)
    return found


def baselines(study: Study, response: str) -> Floats:
    """(settings, seeds) a response of the centralised baseline at its last round, nan where it was not run."""
    given = {name: i for i, name in enumerate(setting_names(study))}
    seeds = sorted({str(run["seed"]) for run in cell_runs(study)})
    found = np.full((len(given), len(seeds)), np.nan)
    for run in study.runs:
        at = setting_of(study, run)
        if run["kind"] == "baseline" and run["status"] == "done" and at in given and str(run["seed"]) in seeds:
            found[given[at], seeds.index(str(run["seed"]))] = value_of(run, response)
    return found


def features(study: Study) -> tuple[Floats, list[str]]:
    """(settings, 4) log nodes, log rows a node, h, classes, each averaged over a setting's runs; and the data set of each setting."""
    given = setting_names(study)
    rows: dict[tuple[str, ...], list[Floats]] = {name: [] for name in given}
    data: dict[tuple[str, ...], str] = {}
    for run in cell_runs(study):
        at = setting_of(study, run)
        data[at] = str(run.get("data", ""))
        if all(run.get(fact) is not None for fact in FACTS):
            rows[at].append(describe(*(float(run[fact]) for fact in FACTS)))
    lacking = next((name for name, found in rows.items() if not found), None)
    if lacking is not None:
        raise DataError(
            f"the table of '{study.name}' is damaged (no run of {', '.join(lacking)} tells nodes, rows, h, classes)."
        )
    return np.array([np.mean(rows[name], axis=0) for name in given]), [data[name] for name in given]


def describe(nodes: float, rows: float, heterogeneity: float, classes: float) -> Floats:
    """(4,) the features of a federation."""
    return np.array([math.log(nodes), math.log(rows / nodes), heterogeneity, classes])


def known_choice(study: Study, name: str) -> str:
    """The choice of this name; the nearest one is named where there is none."""
    if name not in (names := choice_names(study)):
        raise unknown_name("choice", name, names)
    return name

"""The measurements of a study, as arrays: settings by choices by seeds, in an order independent of any file.

A run is a mapping: ``run_key kind status seed rounds``, the levels of its factors (one key each, or all of them as ``levels``),
the columns of its responses at the last round, and the facts of its federation (`responses.FACTS`, by the names of the analysis).
``curves`` holds pairs of round and value by column. A setting is given to the user, a choice is recommended.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedatlas.errors import DataError
from fedatlas.study.plain import Row, RunRow
from fedatlas.study.responses import RESPONSES

OUTCOMES = (
    "done",
    "diverged",
    "timeout",
    "memory",
)  # of cells that could run; refused and failed runs carry no information
FEATURES = ("nodes", "rows", "heterogeneity", "classes")
ROUNDS = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50)

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.intp]
Setting = tuple[str, ...]
"""The levels of a setting's factors, in the factors' order."""


class Measurements(NamedTuple):
    """The runs of a study and its factors; factors in alphabetical order, runs in one order (`measurements_of`)."""

    name: str
    runs: list[RunRow]
    settings: tuple[str, ...]  # the factors that are given
    choices: tuple[str, ...]  # the factors that are recommended
    references: tuple[str, ...] = ("fedavg", "fedavg_secagg")  # FedAvg, then its twin that reveals less
    twins: Mapping[str, str] = {}  # choice -> the one with the same quality by construction
    alone: Sequence[RunRow] = ()  # the baseline of each client alone, where it was trained

    def setting_of(self, run: RunRow) -> Setting:
        """Return the levels of the setting's factors."""
        return tuple(str(level(run, factor)) for factor in self.settings)

    def choice_of(self, run: RunRow) -> str:
        """Return the name of the choice: its level, or for several factors their levels joined by " + "."""
        return " + ".join(str(level(run, factor)) for factor in self.choices)

    def cells(self) -> list[RunRow]:
        """Return the runs of the cells: no baselines, no trials of rates, none held out."""
        return [run for run in self.runs if run["kind"] == "cell"]

    def pooled(self) -> list[RunRow]:
        """Return the finished runs of the centralised baseline."""
        return [run for run in self.runs if run["kind"] == "baseline" and run["status"] == "done"]

    def setting_names(self) -> list[Setting]:
        """Return all settings with a cell."""
        return sorted({self.setting_of(run) for run in self.cells()})

    def choice_names(self) -> list[str]:
        """Return all choices with a finished cell: only measured choices can be recommended."""
        return sorted({self.choice_of(run) for run in self.cells() if run["status"] == "done"})

    def reference(self) -> str | None:
        """Return the first of the references that was measured."""
        return next((name for name in self.references if name in self.choice_names()), None)

    def pairs(self, choices: Sequence[str]) -> list[tuple[int, int]]:
        """Return (index, index of the choice with the same quality by construction) for the twins among some choices."""
        return [(choices.index(a), choices.index(b)) for a, b in self.twins.items() if a in choices and b in choices]

    def seeds(self) -> list[str]:
        """Return the seeds of the cells."""
        return sorted({str(run["seed"]) for run in self.cells()})

    def collect(self, value: Callable[[RunRow], float], statuses: Collection[str] = ("done",)) -> Floats:
        """Return (settings, choices, seeds) values of the cells' runs with these statuses, nan elsewhere; seeds are paired over choices."""
        given, chosen, seeds = (_places(x) for x in (self.setting_names(), self.choice_names(), self.seeds()))
        found = np.full((len(given), len(chosen), len(seeds)), np.nan)
        for run in self.cells():
            if run["status"] in statuses and (choice := self.choice_of(run)) in chosen:
                found[given[self.setting_of(run)], chosen[choice], seeds[str(run["seed"])]] = value(run)
        return found

    def by_cell(self, response: str, rounds: int | None = None) -> Floats:
        """Return (settings, choices, seeds) a response of the cells' finished runs, at their last round or after ``rounds``."""
        return self.collect(lambda run: value_of(run, response, rounds))

    def baselines(self, response: str) -> Floats:
        """Return (settings, seeds) a response of the centralised baseline at its last round, nan if it was not run."""
        given, seeds = _places(self.setting_names()), _places(self.seeds())
        found = np.full((len(given), len(seeds)), np.nan)
        for run in self.pooled():
            if (at := self.setting_of(run)) in given and str(run["seed"]) in seeds:
                found[given[at], seeds[str(run["seed"])]] = value_of(run, response)
        return found

    def features(self) -> tuple[Floats, list[str]]:
        """Return (settings, 4) `features_of` each setting, averaged over its runs; and the data set of each setting."""
        rows: dict[Setting, list[Floats]] = {name: [] for name in self.setting_names()}
        data: dict[Setting, str] = {}
        for run in self.cells():
            at = self.setting_of(run)
            data[at] = str(run.get("data", ""))
            if all(run.get(fact) is not None for fact in FEATURES):
                rows[at].append(features_of(*(float(run[fact]) for fact in FEATURES)))
        if lacking := [", ".join(name) for name, found in rows.items() if not found]:
            raise DataError(
                f"the table of '{self.name}' is damaged (no run of {lacking[0]} has nodes, rows, h and classes)."
            )
        return np.array([np.mean(found, axis=0) for found in rows.values()]), [data[name] for name in rows]


def measurements_of(
    runs: Sequence[RunRow], settings: Sequence[str], choices: Sequence[str], **more: Any
) -> Measurements:
    """Return the measurements of some runs, in an order independent of theirs; ``more``: other fields of `Measurements`."""
    given, chosen = tuple(sorted(settings)), tuple(sorted(choices))

    def order(run: RunRow) -> tuple[Any, ...]:
        return [str(level(run, x)) for x in (*given, *chosen)], *(str(run[key]) for key in ("kind", "seed", "run_key"))

    return Measurements(**{"name": "study", **more}, runs=sorted(runs, key=order), settings=given, choices=chosen)


def _places(names: Sequence[Any]) -> dict[Any, int]:
    return {name: i for i, name in enumerate(names)}


def level(run: RunRow, factor: str) -> Any:
    """Return a run's level of a factor; "" for none, such as a choice in a baseline."""
    return run.get("levels", run).get(factor, "")


def levels_text(levels: Row | Iterable[tuple[str, Any]]) -> str:
    """Return levels as readable text: 'nodes 10, skew 0.2'."""
    return ", ".join(f"{factor} {name}" for factor, name in dict(levels).items()) or "the base"


def value_of(run: RunRow, response: str, rounds: int | None = None) -> float:
    """Return a response of a run at its last round or after ``rounds``; nan if unknown.

    After fewer rounds than the run's, the value comes from the curve. Without a curve, quantities that add up over rounds are taken in
    proportion; memory and epsilon, which never fall, keep their final value: an upper bound.
    """
    record = RESPONSES[response]
    if record.parts:
        return sum(value_of(run, part, rounds) for part in record.parts)
    column, last = record.column or response, int(run["rounds"])
    if run.get(column) is None:
        return record.missing
    end = float(run[column])
    if rounds is None or rounds == last:
        return end
    if rounds > last:
        return math.nan
    curve = (run.get("curves") or {}).get(column)
    if curve is not None:
        return next((float(value) for at, value in curve if int(at) == rounds and value is not None), math.nan)
    return {"last": math.nan, "whole": end}.get(record.over, end * rounds / last)


def beats_majority(run: RunRow) -> bool:
    """Return whether a run finished and is more accurate than always predicting the largest class."""
    majority, accuracy = run.get("majority"), run.get("accuracy")
    return run["status"] == "done" and not (majority is not None and accuracy is not None and accuracy <= majority)


def features_of(nodes: float, rows: float, heterogeneity: float, classes: float) -> Floats:
    """Return (4,) the features of a federation: log nodes, log rows per node, h, classes."""
    return np.array([math.log(nodes), math.log(rows / nodes), heterogeneity, classes])

"""The summary's ``drift``: how the model recovered from ``[drift]`` (X13), and when the server could have seen it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedatlas.metrics.metric import METRICS
from fedatlas.metrics.recovery import FALSE_ALARMS, Points, alarms, recovery
from fedatlas.setup.assembly import Setup
from fedatlas.setup.drifting_rows import DriftingRows
from fedatlas.setup.guard import METRIC


def summary(setup: Setup, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the summary's ``drift``; empty without one."""
    if not isinstance(setup.rows, DriftingRows) or setup.config.drift is None:
        return {}
    how, name = setup.config.drift, METRIC[setup.dataset.task]
    found = recovery(values_of(rows, name), how.at)
    return {
        "drift": {
            "kind": how.kind,
            "at": how.at,
            "ramp": how.ramp,
            "clients": len(setup.rows.joins),
            "figure": name,
            **(dict.fromkeys(("before", "depth", "rounds", "recovered", "area")) if found is None else found._asdict()),
            "alarms": {key: alarms(points, setup.config.rounds) for key, points in seen(setup, rows).items()},
            "false_alarms": FALSE_ALARMS,
        }
    }


def seen(setup: Setup, rows: Sequence[Mapping[str, Any]]) -> dict[str, Points]:
    """Map each figure that the server has of a round to its values, larger being better: the guard's score, the clients' mean loss."""
    if setup.algorithm.serverless:
        return {}
    guard = setup.config.guard
    lower = guard is not None and METRICS[guard.metric or METRIC[setup.dataset.task]].lower_is_better
    signed = {"score": -1.0 if lower else 1.0, "train_loss": -1.0}
    found = {key: [(number, sign * x) for number, x in values_of(rows, key)] for key, sign in signed.items()}
    return {key: points for key, points in found.items() if points}


def values_of(rows: Sequence[Mapping[str, Any]], key: str) -> Points:
    """Return the values of a figure in the rounds that have one."""
    return [(row["round"], float(row[key])) for row in rows if row.get(key) is not None]

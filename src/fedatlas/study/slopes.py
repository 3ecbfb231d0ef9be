"""How a response changes with nodes, rows and heterogeneity, on average over the choices and for each choice.

Within each data set, and for each choice, a cell's mean over its seeds is fitted to log2 of the nodes, log2 of the training rows and
h together, as they were measured. The slope of the study is the mean over its choices, and a pair's effect is how far the slope of a
choice lies from it. Data sets are random: intervals are over them, by leaving out each (the jackknife, Student's t); with fewer than
three, over settings, and then they do not speak of other data. All intervals of a response hold at once (Bonferroni). A fact that the
study did not vary within data sets has no slope, nor has one that its cells do not tell from another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from fedatlas.errors import DataError
from fedatlas.study.effects import RANDOM, TOLD
from fedatlas.study.measurements import Floats, Measurements

FACTS = {"nodes": 1.0, "rows": 1.0, "heterogeneity": 0.1}  # the step of which a slope is told: a doubling, or 0.1 of h
VARIED = {
    "nodes": 0.2,
    "rows": 0.2,
    "heterogeneity": 0.05,
}  # least range within data sets: less is chance of the partition


class Slope(NamedTuple):
    """The change of a response with a doubling of nodes or rows, or 0.1 more of h; of a choice, beyond the mean of all choices."""

    fact: str
    choice: str | None  # None: the mean of all choices
    estimate: float
    low: float | None
    high: float | None


class Slopes(NamedTuple):
    """All slopes that the cells tell, and the units whose variation makes their intervals."""

    slopes: list[Slope]
    over: Literal["data sets", "settings"]


def slopes(study: Measurements, response: str, level: float = 0.95) -> Slopes:
    """Return the slopes of a response."""
    from fedatlas.verdict.evidence import student  # of SciPy

    try:
        features, data = study.features()
    except DataError:  # a table without the facts of its federations
        return Slopes([], "settings")
    x = np.column_stack([features[:, 0], features[:, 0] + features[:, 1], features[:, 2] * math.log(2)]) / math.log(2)
    names, groups = list(FACTS), np.array(data)
    varied = [k for k, name in enumerate(names) if np.ptp(_centred(x[:, k : k + 1], groups)) >= VARIED[name]]
    x, names, chosen = x[:, varied], [names[k] for k in varied], study.choice_names()
    values = study.by_cell(response)
    there = np.isfinite(values)
    y = np.where(there, values, 0.0).sum(axis=2) / np.where(there.any(axis=2), there.sum(axis=2), np.nan)
    random = len(set(data)) >= RANDOM
    units = groups if random else np.arange(len(groups))
    every = _every(x, y, groups)
    told = np.isfinite(every)
    if not told.any():
        return Slopes([], "settings")
    each = sorted(set(units.tolist()))
    left = np.array([_every(x[units != unit], y[units != unit], groups[units != unit]) for unit in each])
    told &= np.isfinite(left).all(axis=0)
    number, freedom = len(each), len(each) - 1 - (0 if random else len(names) + len(set(data)) - 1)
    errors = np.sqrt((number - 1) / number * np.square(left - left.mean(axis=0)).sum(axis=0))
    factor = student(1 - (1 - level) / 2 / max(int(told.sum()), 1), freedom) if freedom > 0 else None
    found = []
    for row, choice in enumerate([None, *chosen]):
        for column in np.flatnonzero(told[row]):
            step = FACTS[names[column]]
            value, error = step * float(every[row, column]), step * float(errors[row, column])
            ends = (None, None) if factor is None else (value - factor * error, value + factor * error)
            found.append(Slope(names[column], choice, value, *ends))
    return Slopes(found, "data sets" if random else "settings")


def _centred(values: Floats, groups: np.ndarray) -> Floats:
    """Return (n, k) values minus the mean of their group."""
    found = np.array(values, dtype=float)
    for group in set(groups.tolist()):
        found[groups == group] -= found[groups == group].mean(axis=0)
    return found


def _every(x: Floats, y: Floats, groups: np.ndarray) -> Floats:
    """Return (1 + choices, facts) the mean slope, then that of each choice minus the mean; nan where the cells do not tell."""
    own = np.array([_of_choice(x, column, groups) for column in y.T]).reshape(y.shape[1], x.shape[1])
    found = np.vstack([own.mean(axis=0), own - own.mean(axis=0)]) if len(own) else np.full((1, x.shape[1]), np.nan)
    if len(own) == 1:
        found[1:] = np.nan
    return found


def _of_choice(x: Floats, y: Floats, groups: np.ndarray) -> Sequence[float] | Floats:
    """Return (facts,) the slopes of one choice within data sets; nan for one that its settings do not tell."""
    known = np.isfinite(y)
    z, target = _centred(x[known], groups[known]), _centred(y[known, None], groups[known])[:, 0]
    squares = z.T @ z
    inverse = np.linalg.pinv(squares, rcond=1e-8, hermitian=True)
    found: Floats = inverse @ z.T @ target
    found[np.abs(inverse @ squares - np.eye(len(squares))).max(axis=1, initial=0.0) > TOLD] = np.nan
    return found

"""The end statement: multiple comparisons with the best (Hsu 1981), the margin, the rows that a smaller one needs, chances.

For every arm i let c_i be the value below which the largest of (d_j - d_i) / s_ij over the other arms j lies with the probability
asked for, d the draws of `estimates` and s their standard deviations. If i is the best arm, then with that probability
m_i - m_j <= x_i - x_j + c_i s_ij for all j at once (m true, x measured accuracies). From this event alone follow both statements:
the best arm is among `among`, and each arm i lies at most `margin` i below it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedatlas.race.estimates import RaceEstimates, deviations
from fedatlas.study.measurements import Bools, Floats

CONFIDENCE = 0.95  # of the end statement, over all arms that started
LEVEL = 0.02
"""Chance of an error by the draws; less than the one that is stated, since three seeds hardly tell how much seeds differ.

Of 300 simulated races of each kind 95% or more are then right (tests/race/test_simulated_races.py).
"""


class EndStatement(NamedTuple):
    """Statements about J arms that hold together with 95% confidence."""

    among: Bools  # (J,) the arms among which the best one is
    margin: Floats  # (J,) how far each arm is at most below the best
    chance: Floats  # (J,) share of the draws in which it is the best
    critical: Floats  # (J,) c_i


def end_statement(found: RaceEstimates, started: int, level: float = LEVEL) -> EndStatement:
    """Return the statement about the arms that are left of ``started`` ones; those that were cut take their share of the error."""
    x, draws, errors = found.value, found.draws, found.errors()
    many = len(x)
    if many == 1:
        return EndStatement(np.ones(1, bool), np.zeros(1), np.ones(1), np.zeros(1))
    own = level * (many - 1) / max(started - 1, 1)
    critical = np.array([critical_value(draws, errors, i, own) for i in range(many)])
    ahead = (
        x[:, None] - x[None, :] + critical[:, None] * errors
    )  # (i, j): at most so far is i above j, if i is the best
    np.fill_diagonal(ahead, 0.0)
    among = np.asarray((ahead >= 0).all(axis=1))
    margin = np.maximum(ahead[among].max(axis=0), 0.0)
    return EndStatement(among, margin, chances(x, draws), critical)


def critical_value(draws: Floats, errors: Floats, i: int, level: float) -> float:
    """Return c_i; 0 if no arm differs from arm i on any row."""
    apart = errors[i] > 0
    if not apart.any():
        return 0.0
    largest = ((draws[:, apart] - draws[:, i : i + 1]) / errors[i, apart]).max(axis=1)
    return max(float(np.quantile(largest, 1 - level, method="higher")), 0.0)


def chances(x: Floats, draws: Floats) -> Floats:
    """Return (J,) the share of draws in which an arm is the best; equal ones share it."""
    drawn = x - draws
    best = drawn >= drawn.max(axis=1, keepdims=True) - 1e-12
    return np.asarray((best / best.sum(axis=1, keepdims=True)).mean(axis=0))


class NeededFor(NamedTuple):
    """By how many times rows, and seeds, would have to grow for a margin."""

    rows: float
    seeds: float  # 1: those that there are will do


def needed_for(found: RaceEstimates, told: EndStatement, arm: int, margin: float) -> NeededFor:
    """Return what ``margin`` would need for an arm of `among`, if the others of them were as good.

    Rows only, where the seeds leave less than half of its square by themselves; else rows and seeds, half each.
    """
    others = [int(j) for j in np.flatnonzero(told.among) if j != arm]
    squares = np.array([told.critical[j] ** 2 for j in others])
    by_rows, by_seeds = (squares * np.square(deviations(part))[arm, others] for part in (found.rows, found.seeds))
    half = margin**2 / 2
    if (by_seeds < half).all():
        return NeededFor(float((by_rows / (margin**2 - by_seeds)).max()), 1.0)
    return NeededFor(float((by_rows / half).max()), float((by_seeds / half).max()))

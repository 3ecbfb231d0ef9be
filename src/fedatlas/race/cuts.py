"""The cut of an arm at a look: even with all that it may still gain, it stays below the leader as it is now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

from fedatlas.race.estimates import CLIENTS, RaceEstimates
from fedatlas.study.measurements import Floats

LEVEL = 0.05  # chance that any cut of a whole race is wrong, but for the gain, which is a 95th percentile
GAIN = 0.95


class ArmCut(NamedTuple):
    """A cut: how far the arm lay below the leader, at least so far, and what it may have gained later."""

    arm: str
    leader: str
    rounds: int
    behind: float
    at_least: float
    gain: float


def cuts_at(
    names: Sequence[str], found: RaceEstimates, gain: Floats, rounds: int, *, tests: int, level: float = LEVEL
) -> list[ArmCut]:
    """Return the arms that are cut at a look.

    ``gain``: (J,) the most that each arm may gain later; nan: not known, so it is not cut. ``tests``: the number of comparisons
    in the whole race, looks by arms, among which the error is divided (Bonferroni).
    """
    errors, lead = found.errors(), int(np.argmax(found.value))
    df = found.units - 1 if found.unit == "client" else max(found.units - 1, CLIENTS)
    t, out = float(stdtrit(df, 1 - level / tests)), []
    for j, name in enumerate(names):
        behind = float(found.value[lead] - found.value[j])
        at_least = behind - t * float(errors[lead, j])
        if j != lead and np.isfinite(gain[j]) and at_least > gain[j]:
            out.append(ArmCut(name, names[lead], rounds, behind, at_least, float(gain[j])))
    return out


def later_gain(accuracy: Floats, rounds: Sequence[int], now: int, end: int) -> float:
    """Return the 95th percentile of what an arm gained from ``now`` to ``end`` elsewhere; nan beyond what was measured.

    ``accuracy``: (n, R) of n federations after ``rounds``. Where a round was not measured, the one before ``now`` and the one
    behind ``end`` stand for them, so that the gain is never too small.
    """
    if end <= now:
        return 0.0
    before = [i for i, r in enumerate(rounds) if r <= now]
    after = [i for i, r in enumerate(rounds) if r >= end]
    if not before or not after:
        return float("nan")
    gained = accuracy[:, after[0]] - accuracy[:, before[-1]]
    known = gained[np.isfinite(gained)]
    return max(float(np.quantile(known, GAIN, method="higher")), 0.0) if len(known) else float("nan")

"""The depth of a drop, how long a figure takes to recover, the area lost (X13); and alarms for a sudden drop."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

BEFORE, STAYS, SHARE = 5, 3, 0.95  # values before; values in a row; share of the mean before that counts as recovered
WINDOW, FALSE_ALARMS = 10, 0.05  # changes compared with; chance of an alarm in a run without cause
LEAST = 0.01  # the least spread of changes, as a share of the figure

Points = Sequence[tuple[int, float]]
"""(round, figure), ascending; larger figures are better."""


class Recovery(NamedTuple):
    """The cost of a drop."""

    before: float  # mean of the last values before it
    depth: float  # from that to the lowest value since
    rounds: int  # until recovered; to the end if never
    recovered: bool
    area: float  # figure times rounds below the value before


def recovery(points: Points, at: int) -> Recovery | None:
    """Return how a figure recovered from a change in round ``at``; None without values before and since.

    Recovered is the first round from which `STAYS` values in a row are at least `SHARE` of the mean of the `BEFORE`
    values before. Round 0, the initial model, counts before only if it is the only one. A value stands for the rounds
    since the one before it.
    """
    earlier = [value for number, value in points if 0 < number < at] or [
        value for number, value in points if number < at
    ]
    since = [(number, value) for number, value in points if number >= at]
    if not earlier or not since:
        return None
    before = float(np.mean(earlier[-BEFORE:]))
    fine = [value >= SHARE * before for _, value in since]
    back = next((since[i][0] for i in range(len(since) - STAYS + 1) if all(fine[i : i + STAYS])), None)
    widths = np.diff([at - 1, *(number for number, _ in since)])
    area = float(sum(w * max(before - value, 0.0) for w, (_, value) in zip(widths, since, strict=True)))
    depth = max(before - min(value for _, value in since), 0.0)
    return Recovery(before, depth, (since[-1][0] if back is None else back) - at, back is not None, area)


def alarms(points: Points, rounds: int) -> list[int]:
    """Return the rounds in which a figure falls as chance hardly makes it fall.

    The change of each round is compared with the `WINDOW` changes before it: an alarm lies below their one-sided
    prediction bound by Student's t, and its figure below the last `BEFORE` ones. The level of the bound shares
    `FALSE_ALARMS` among the tests that ``rounds`` rounds make. So in a run whose changes are independent and normal the
    chance of any false alarm is at most that. After an alarm the changes are collected anew. A spread below `LEAST` of
    the figure counts as that much, since figures of few rows may stand still.
    """
    bound = float(stdtrit(WINDOW - 1, 1 - FALSE_ALARMS / max(rounds - WINDOW, 1))) * math.sqrt(1 + 1 / WINDOW)
    found, changes, lately = list[int](), deque[float](maxlen=WINDOW), deque[float](maxlen=BEFORE)
    for number, value in points:
        change = value - lately[-1] if lately else math.nan
        if len(changes) == WINDOW and value < min(lately):
            spread = max(float(np.std(changes, ddof=1)), LEAST * abs(lately[-1]))
            if change < np.mean(changes) - bound * spread:
                found.append(number)
                changes.clear()
                change = math.nan
        if not math.isnan(change):
            changes.append(change)
        lately.append(value)
    return found

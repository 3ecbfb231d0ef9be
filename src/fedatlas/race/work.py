"""The work of a race: what runs cost, which arms are tried, and how far all of them can be run.

Work is measured in rounds of runs, or in seconds of them where the user gave minutes: then each arm is timed for one round, and
again by its runs after every stage. Both are in the table of runs, so that the same table gives the same race.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

FIRST = 20  # rounds that every arm is tuned for; no arm is cut before
LOOKS = (FIRST, 30, 50, 75, 100, 150, 200)
FURTHEST = LOOKS[-1]
TUNED_ON, PICKED_ON, TOLD_ON = 1, (1, 2), (3, 4, 5)  # folds: for rates; for cuts; for the end statement
THIRD = 1 / 3  # of the work, in which all arms that are tried reach `FIRST` with all tuning points


class ArmCost(NamedTuple):
    """The cost of an arm's runs."""

    start: float = 0.0  # of a run, before its first round
    round: float = 1.0

    def run(self, first: int, last: int) -> float:
        """Return the cost of going from one round to another; 0 if there is nothing to run."""
        return self.start + self.round * (last - first) if last > first else 0.0


class ArmWork(NamedTuple):
    """An arm, as far as its work counts: how many rounds its limits allow, and what they cost."""

    most: int
    cost: ArmCost

    def end(self, look: int) -> int:
        """Return the rounds of the arm at a look."""
        return min(look, self.most)


def tuning_cost(one: ArmWork, points: int) -> float:
    """Return the cost of an arm's tuning."""
    return points * one.cost.run(0, one.end(FIRST))


def tried(order: Sequence[str], arms: Mapping[str, ArmWork], points: int, room: float) -> list[str]:
    """Return the arms whose tuning fits into ``room``, together, by the order given; a later, cheaper one may still fit."""
    out = []
    for name in order:
        need = tuning_cost(arms[name], points)
        if need <= room + 1e-9:
            out.append(name)
            room -= need
    return out


def advance_cost(arms: Sequence[ArmWork], now: int, look: int) -> float:
    """Return the cost of taking arms from one look to another, on the folds for cuts."""
    return sum(len(PICKED_ON) * one.cost.run(one.end(now), one.end(look)) for one in arms)


def ending_cost(arms: Sequence[ArmWork], look: int) -> float:
    """Return the cost of the end statement at a look, and of the run of the answer's file, which any arm may turn out to be."""
    each = [one.cost.run(0, one.end(look)) for one in arms]
    return len(TOLD_ON) * sum(each) + max(each, default=0.0)


def furthest(arms: Sequence[ArmWork], now: int, room: float) -> int:
    """Return the last look that all arms reach, each as far as its limits allow, with the end statement; ``now`` if none."""
    out, spent, at = now, 0.0, now
    for look in LOOKS:
        if look <= now or all(one.most <= at for one in arms):
            continue
        spent += advance_cost(arms, at, look)
        at = look
        if spent + ending_cost(arms, look) <= room + 1e-9:
            out = look
    return out


def deciding(order: Sequence[str], arms: Mapping[str, ArmWork], points: int, timing: float, least: float) -> float:
    """Return the work, at least ``least``, with which a race of these arms comes to its end statement.

    With more work more arms may start, and these need more.
    """
    while True:
        started = [arms[name] for name in tried(order, arms, points, least * THIRD - timing)]
        looked = sum((len(PICKED_ON) - 1) * one.cost.run(0, one.end(FIRST)) for one in started)
        needed = timing + sum(tuning_cost(one, points) for one in started) + looked + ending_cost(started, FIRST)
        if needed <= least + 1e-9:
            return least
        least = needed

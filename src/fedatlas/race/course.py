"""The course of a race, as a function of what runs reach: tuning, looks, cuts, and the end statement.

The runs are made by a `Measure`, which the race asks for several at once: those of a study's table (`runs`), or drawn ones in a
simulation. Arms are taken in the order of their names, so that their order elsewhere changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedatlas.race.best import EndStatement, end_statement
from fedatlas.race.cuts import ArmCut, cuts_at
from fedatlas.race.estimates import ArmRows, RaceEstimates, estimated
from fedatlas.race.work import (
    FIRST,
    FURTHEST,
    LOOKS,
    PICKED_ON,
    THIRD,
    TOLD_ON,
    TUNED_ON,
    ArmCost,
    ArmWork,
    advance_cost,
    ending_cost,
    furthest,
    tried,
    tuning_cost,
)
from fedatlas.study.measurements import Floats, Ints


class RaceArm(NamedTuple):
    """A configuration in a race."""

    name: str
    most: int  # rounds that its limits allow
    prior: float  # what is foreseen of it, to order the arms; nan: last
    gain: Callable[[int, int], float]  # the most it may gain from one round to another; nan if not known


class AskedRun(NamedTuple):
    """A run that a race needs: an arm with one of its tuning points, on a fold, up to a round."""

    arm: str
    point: int
    fold: int
    rounds: int


class FoldRows(NamedTuple):
    """The judged rows of a fold, the same for all arms, and what a model said of them."""

    score: Floats  # (n,)
    constant: Floats  # (n,) of always naming the class that is most frequent in training
    weight: Floats  # (n,)
    client: Ints  # (n,)


Measure = Callable[[Sequence[AskedRun]], Mapping[AskedRun, FoldRows | None]]
"""Makes runs, and returns what each reached; None for one without a model (refused, diverged, stopped for its time).

Of each fold at least one of all runs asked for has a model.
"""


class RaceWork(NamedTuple):
    """The work that a race may take."""

    total: float
    costs: Mapping[str, ArmCost]
    timing: float = 0.0  # spent on the runs that the costs are known from


class LookTaken(NamedTuple):
    """A look: the arms that were left, and their accuracies on the folds for cuts."""

    rounds: int
    arms: list[str]
    value: list[float]


class RaceEnd(NamedTuple):
    """A race that has ended."""

    started: list[str]
    not_tried: list[str]
    picked: dict[str, int]  # arm -> its tuning point
    looks: list[LookTaken]
    cut: list[ArmCut]
    left: list[str]  # arms at the end
    rounds: dict[str, int]  # arm -> its rounds, at the end or when it was cut
    found: (
        RaceEstimates | None
    )  # of the arms that are left, on rows that no rate and no cut has seen; None: the work was up
    told: EndStatement | None
    found_here: RaceEstimates | None  # the same for these clients, on other rows, where ``found`` is for other clients
    told_here: EndStatement | None
    rows: ArmRows | None  # behind `found`
    failed: dict[str, int]  # arm -> how many of its runs ended without a model
    spent: float
    needed: float  # work for an end statement, if it was up


def race(arms: Sequence[RaceArm], points: int, work: RaceWork, measure: Measure, seed: int = 0) -> RaceEnd:
    """Return the end of a race of these arms, each with ``points`` tuning points. ``seed``: of the draws for the errors."""
    return RaceCourse(arms, points, work, measure, seed).run()


class RaceCourse:
    """A race on its way."""

    def __init__(self, arms: Sequence[RaceArm], points: int, work: RaceWork, measure: Measure, seed: int = 0) -> None:
        self.arms = {one.name: one for one in sorted(arms, key=lambda one: one.name)}
        self.work = {name: ArmWork(one.most, work.costs[name]) for name, one in self.arms.items()}
        self.points, self.total, self.measure, self.seed = points, work.total, measure, seed
        self.spent = work.timing
        order = sorted(self.arms.values(), key=lambda one: (-np.nan_to_num(one.prior, nan=-np.inf), one.name))
        self.started = sorted(tried([one.name for one in order], self.work, points, work.total * THIRD - work.timing))
        self.left, self.picked = list(self.started), dict[str, int]()
        self.looks, self.cut, self.failed = list[LookTaken](), list[ArmCut](), dict[str, int]()
        self.until = FURTHEST  # the last look that the cuts so far allow for
        self.rounds = {name: self.work[name].end(FIRST) for name in self.started}

    def run(self) -> RaceEnd:
        """Run the race to its end."""
        if not self.started:
            return self.ended(None)
        self.tune()
        now = FIRST
        while self.look(now):
            following = next(look for look in LOOKS if look > now)
            self.spent += advance_cost(self.works(), now, following)
            now = following
        if self.spent + ending_cost(self.works(), now) > self.total + 1e-9:
            return self.ended(None, self.spent + ending_cost(self.works(), now))
        self.spent += ending_cost(self.works(), now)
        return self.ended(self.rows(TOLD_ON, self.rounds))

    def works(self) -> list[ArmWork]:
        """Return the work of the arms that are left."""
        return [self.work[name] for name in self.left]

    def tune(self) -> None:
        """Pick each arm's tuning point: the one that does best on the first fold, the earlier among equals."""
        asked = [
            AskedRun(name, point, TUNED_ON, self.rounds[name]) for name in self.started for point in range(self.points)
        ]
        self.spent += sum(tuning_cost(self.work[name], self.points) for name in self.started)
        found = filled(self.measure(asked))
        for name in self.started:
            mine = [found[one] for one in asked if one.arm == name]
            self.picked[name] = int(np.argmax([score @ fold.weight for score, fold in mine]))
        fresh = [fold for fold in PICKED_ON if fold != TUNED_ON]
        self.spent += sum(len(fresh) * self.work[name].cost.run(0, self.rounds[name]) for name in self.started)

    def look(self, now: int) -> bool:
        """Compare the arms that are left at a look, and cut; return whether they go on to the next.

        Where the work takes all of them beyond what the study knows, none is cut before the end, since no gain is known there.
        """
        self.rounds |= {name: self.work[name].end(now) for name in self.left}
        rows = self.rows(PICKED_ON, self.rounds)
        found = estimated(rows, self.seed)
        self.looks.append(LookTaken(now, list(self.left), [float(x) for x in found.value]))
        far = min(furthest(self.works(), now, self.total - self.spent), self.until)
        known = self.known_until()
        until = now if far <= now else max(far, known)
        ends = {name: self.work[name].end(until) for name in self.left}
        gains = [self.arms[name].gain(self.rounds[name], ends[name]) for name in self.left]
        tests = len(LOOKS) * max(len(self.started) - 1, 1)
        new = cuts_at(self.left, found, np.array(gains), now, tests=tests)
        if far > now and any(self.work[one.arm].most > ends[one.arm] for one in new):
            self.until = until  # what was cut might have caught up later
        self.cut += new
        self.left = [name for name in self.left if name not in {one.arm for one in new}]
        return far > now and any(one.most > now for one in self.works())

    def known_until(self) -> int:
        """Return the last look up to which the later gain of some arm that is left is known."""
        known = (look for look in LOOKS if any(np.isfinite(self.arms[name].gain(FIRST, look)) for name in self.left))
        return max(known, default=FIRST)

    def rows(self, folds: Sequence[int], rounds: Mapping[str, int]) -> ArmRows:
        """Make the runs of the arms that are left on some folds, and return their rows side by side."""
        asked = {
            (name, fold): AskedRun(name, self.picked[name], fold, rounds[name]) for name in self.left for fold in folds
        }
        found = filled(self.measure(list(asked.values())))
        for name in self.left:
            self.failed[name] = sum(
                found[asked[name, fold]][0] is found[asked[name, fold]][1].constant for fold in folds
            )
        each = [[found[asked[name, fold]] for fold in folds] for name in self.left]
        shared = [fold for _, fold in each[0]]
        return ArmRows(
            np.stack([np.concatenate([score for score, _ in mine]) for mine in each]),
            np.concatenate([fold.weight for fold in shared]),
            np.concatenate([np.full(len(fold.weight), number) for number, fold in zip(folds, shared, strict=True)]),
            np.concatenate([fold.client for fold in shared]),
        )

    def ended(self, rows: ArmRows | None, needed: float = 0.0) -> RaceEnd:
        """Return the end; ``rows``: those of the end statement."""
        found = None if rows is None else estimated(rows, self.seed)
        told = None if found is None else end_statement(found, len(self.started))
        out = [name for name in self.arms if name not in self.started]
        here = None if rows is None else estimated(rows, self.seed, same_clients=True)
        told_here = None if here is None else end_statement(here, len(self.started))
        state = (self.started, out, self.picked, self.looks, self.cut, self.left, self.rounds)
        return RaceEnd(*state, found, told, here, told_here, rows, self.failed, self.spent, needed)


def filled(
    found: Mapping[AskedRun, FoldRows | None],
) -> dict[AskedRun, tuple[Floats, FoldRows]]:
    """Return the scores of each run, those of the constant model where there is no other."""
    known = {asked.fold: rows for asked, rows in found.items() if rows is not None}
    out = {}
    for asked, rows in found.items():
        here = rows or known[asked.fold]
        out[asked] = (here.constant if rows is None else rows.score, here)
    return out

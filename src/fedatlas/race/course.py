"""The course of a race, as a function of what runs reach: tuning, looks, cuts, and the end statement.

The runs are made by a `Measure`, which the race asks for several at once: those of a study's table (`runs`), or drawn ones in a
simulation. Arms are taken in the order of their names, so that their order elsewhere changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedatlas.errors import DataError
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
    deciding,
    ending_cost,
    furthest,
    tried,
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
"""Makes runs, and returns what each reached; None for one without a model (refused, diverged, stopped for its time)."""


class RaceWork(NamedTuple):
    """The work that a race may take."""

    total: float
    costs: Mapping[str, ArmCost]
    timing: float = 0.0  # spent on the runs that the costs are known from
    again: Callable[[Mapping[AskedRun, int]], Mapping[str, ArmCost]] | None = None
    """The costs by runs that were made, each with the rounds that an earlier run had made of it; None: they stay as they are."""


class LookTaken(NamedTuple):
    """A look: the arms that were left, and their accuracies on the folds for cuts."""

    rounds: int
    arms: list[str]
    value: list[float]


class RaceFigures(NamedTuple):
    """Figures of the judged rows about the arms that are left at the end."""

    rows: ArmRows
    found: RaceEstimates
    told: EndStatement
    found_here: RaceEstimates  # the same for these clients, on other rows, where ``found`` is for other clients
    told_here: EndStatement


class RaceEnd(NamedTuple):
    """A race that has ended."""

    started: list[str]
    not_tried: list[str]
    given_up: list[str]  # begun with one tuning point, whose runs then proved too slow
    picked: dict[str, int]  # arm -> its tuning point
    looks: list[LookTaken]
    cut: list[ArmCut]
    left: list[str]  # arms at the end
    rounds: dict[str, int]  # arm -> its rounds, at the end or when it was cut
    failed: dict[str, int]  # arm -> how many of its runs ended without a model
    decided: bool  # with an end statement, on rows that no rate and no cut has seen
    figures: RaceFigures | None  # of the end statement, or else of the last look; None: no arm started
    costs: dict[str, ArmCost]  # by the runs of the race
    spent: float
    foreseen: float  # the same by the costs given
    needed: float  # work with which such a race comes to its end statement, if this one did not


def race(arms: Sequence[RaceArm], points: int, work: RaceWork, measure: Measure, seed: int = 0) -> RaceEnd:
    """Return the end of a race of these arms, each with ``points`` tuning points. ``seed``: of the draws for the errors."""
    return RaceCourse(arms, points, work, measure, seed).run()


class RaceCourse:
    """A race on its way."""

    def __init__(self, arms: Sequence[RaceArm], points: int, work: RaceWork, measure: Measure, seed: int = 0) -> None:
        self.arms = {one.name: one for one in sorted(arms, key=lambda one: one.name)}
        self.work = {name: ArmWork(one.most, work.costs[name]) for name, one in self.arms.items()}
        self.points, self.given, self.measure, self.seed = points, work, measure, seed
        order = sorted(self.arms.values(), key=lambda one: (-np.nan_to_num(one.prior, nan=-np.inf), one.name))
        self.order = [one.name for one in order]
        self.asked: dict[AskedRun, int] = {}  # run -> the rounds that an earlier one had made of it
        self.begun = self.fitting(self.order)
        self.started, self.picked = list[str](), dict[str, int]()
        self.left, self.looks, self.cut, self.failed = list[str](), list[LookTaken](), list[ArmCut](), dict[str, int]()
        self.until = FURTHEST  # the last look that the cuts so far allow for
        self.rounds: dict[str, int] = {}

    def run(self) -> RaceEnd:
        """Run the race to its end."""
        self.tune()
        if not self.started:
            return self.ended(None)
        now = FIRST
        while (rows := self.look(now)) is None:
            now = next(look for look in LOOKS if look > now)
        needed = self.spent() + ending_cost(self.works(), now)
        if needed > self.given.total + 1e-9:
            return self.ended(rows, needed)
        return self.ended(self.rows(TOLD_ON))

    def fitting(self, names: Sequence[str]) -> list[str]:
        """Return the arms, in the order of the prior, whose tuning fits into a third of the work."""
        return tried(names, self.work, self.points, self.given.total * THIRD - self.given.timing)

    def works(self) -> list[ArmWork]:
        """Return the work of the arms that are left."""
        return [self.work[name] for name in self.left]

    def spent(self, costs: Mapping[str, ArmCost] | None = None) -> float:
        """Return what the runs so far cost, by what is known of it now."""
        costs = costs or {name: one.cost for name, one in self.work.items()}
        return self.given.timing + sum(costs[one.arm].run(first, one.rounds) for one, first in self.asked.items())

    def made(self, asked: Sequence[AskedRun]) -> Mapping[AskedRun, FoldRows | None]:
        """Make runs, and learn from them what runs cost."""
        before = {one[:3]: one.rounds for one in self.asked}
        found = self.measure(asked) if asked else {}
        self.asked |= {one: before.get(one[:3], 0) for one in asked if one not in self.asked}
        if asked and self.given.again is not None:
            costs = self.given.again(self.asked)
            self.work = {name: one._replace(cost=costs.get(name, one.cost)) for name, one in self.work.items()}
        return found

    def tune(self) -> None:
        """Pick each arm's tuning point: the one that does best on the first fold, the earlier among equals.

        Arms whose runs at the first point prove too slow for a third of the work are given up, before the other points are run.
        """
        self.rounds = {name: self.work[name].end(FIRST) for name in self.begun}
        if self.given.again is not None:
            self.made([AskedRun(name, 0, TUNED_ON, self.rounds[name]) for name in sorted(self.begun)])
        self.started = sorted(self.fitting(self.begun))
        self.left, self.rounds = list(self.started), {name: self.rounds[name] for name in self.started}
        asked = [
            AskedRun(name, point, TUNED_ON, self.rounds[name]) for name in self.started for point in range(self.points)
        ]
        found = filled(self.made(asked))
        for name in self.started:
            mine = [found[one] for one in asked if one.arm == name]
            self.picked[name] = int(np.argmax([score @ fold.weight for score, fold in mine]))

    def look(self, now: int) -> ArmRows | None:
        """Compare the arms that are left at a look, and cut; return the rows of those left if it is the last, None if they go on.

        Where the work takes all of them beyond what the study knows, none is cut before the end, since no gain is known there.
        """
        self.rounds |= {name: self.work[name].end(now) for name in self.left}
        rows = self.rows(PICKED_ON)
        found = estimated(rows, self.seed)
        self.looks.append(LookTaken(now, list(self.left), [float(x) for x in found.value]))
        far = min(furthest(self.works(), now, self.given.total - self.spent()), self.until)
        known = self.known_until()
        until = now if far <= now else max(far, known)
        ends = {name: self.work[name].end(until) for name in self.left}
        gains = [self.arms[name].gain(self.rounds[name], ends[name]) for name in self.left]
        tests = len(LOOKS) * max(len(self.started) - 1, 1)
        new = cuts_at(self.left, found, np.array(gains), now, tests=tests)
        if far > now and any(self.work[one.arm].most > ends[one.arm] for one in new):
            self.until = until  # what was cut might have caught up later
        self.cut += new
        kept = [j for j, name in enumerate(self.left) if name not in {one.arm for one in new}]
        self.left = [self.left[j] for j in kept]
        return None if far > now and any(one.most > now for one in self.works()) else rows.arms(np.array(kept))

    def known_until(self) -> int:
        """Return the last look up to which the later gain of some arm that is left is known."""
        known = (look for look in LOOKS if any(np.isfinite(self.arms[name].gain(FIRST, look)) for name in self.left))
        return max(known, default=FIRST)

    def rows(self, folds: Sequence[int]) -> ArmRows:
        """Make the runs of the arms that are left on some folds, and return their rows side by side."""
        asked = {
            (name, fold): AskedRun(name, self.picked[name], fold, self.rounds[name])
            for name in self.left
            for fold in folds
        }
        found = filled(self.made(list(asked.values())))
        each = [[found[asked[name, fold]] for fold in folds] for name in self.left]
        self.failed |= {
            name: sum(score is fold.constant for score, fold in mine)
            for name, mine in zip(self.left, each, strict=True)
        }
        shared = [fold for _, fold in each[0]]
        return ArmRows(
            np.stack([np.concatenate([score for score, _ in mine]) for mine in each]),
            np.concatenate([fold.weight for fold in shared]),
            np.concatenate([np.full(len(fold.weight), number) for number, fold in zip(folds, shared, strict=True)]),
            np.concatenate([fold.client for fold in shared]),
        )

    def ended(self, rows: ArmRows | None, needed: float = 0.0) -> RaceEnd:
        """Return the end; ``rows``: those of the end statement, or of the last look where the work was up (``needed``)."""
        figures, decided = None if rows is None else self.figures(rows), rows is not None and not needed
        costs, last = {name: one.cost for name, one in self.work.items()}, self.left if decided else []
        spent, foreseen = (
            self.spent(by) + max((by[name].run(0, self.rounds[name]) for name in last), default=0.0)
            for by in (costs, self.given.costs)
        )
        if needed:
            needed = deciding(self.order, self.work, self.points, self.given.timing, needed)
        return RaceEnd(
            self.started,
            [name for name in self.arms if name not in self.begun],
            [name for name in self.arms if name in self.begun and name not in self.started],
            self.picked,
            self.looks,
            self.cut,
            self.left,
            self.rounds,
            self.failed,
            decided,
            figures,
            costs,
            spent,
            foreseen,
            needed,
        )

    def figures(self, rows: ArmRows) -> RaceFigures:
        """Return what the rows of the arms that are left tell about them."""
        found = estimated(rows, self.seed)
        here = found if found.unit == "row" else estimated(rows, self.seed, same_clients=True)
        told, told_here = (end_statement(one, len(self.started)) for one in (found, here))
        return RaceFigures(rows, found, told, here, told_here)


def filled(found: Mapping[AskedRun, FoldRows | None]) -> dict[AskedRun, tuple[Floats, FoldRows]]:
    """Return the scores of each run, those of the constant model where there is no other; DataError if a fold has no model at all."""
    known = {asked.fold: rows for asked, rows in found.items() if rows is not None}
    out = {}
    for asked, rows in found.items():
        if asked.fold not in known:
            many = sum(one.fold == asked.fold for one in found)
            raise DataError(
                f"the race has no run with a model to compare, of {many}: its table of runs gives the reasons."
            )
        here = rows or known[asked.fold]
        out[asked] = (here.constant if rows is None else rows.score, here)
    return out

"""Races whose runs are drawn, not trained: rows that are right or wrong under arms of known accuracy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from fedatlas.race.course import AskedRun, FoldRows, RaceArm, RaceWork
from fedatlas.race.work import ArmCost
from fedatlas.rng import numpy_stream
from fedatlas.study.measurements import Floats

Curve = Callable[[int], float]


class DrawnRace(NamedTuple):
    """A federation in which each arm has a true accuracy after each round."""

    curves: Mapping[str, Curve]  # at the best tuning point
    seed: int = 0
    rows: int = 120  # of a fold
    clients: int = 5
    sd_seed: float = 0.01  # of an arm's accuracy between seeds
    sd_client: float = 0.0  # of an arm's accuracy between clients
    alike: float = 0.6  # how much of a row's difficulty all arms share
    points: Sequence[float] = (-0.05, 0.0, -0.02)  # what a tuning point does to the accuracy
    failing: frozenset[tuple[str, int]] = frozenset()  # (arm, fold) without a model

    def measure(self, asked: Sequence[AskedRun]) -> dict[AskedRun, FoldRows | None]:
        """Return what the runs reach, the same however often and in whichever order they are asked for."""
        return {one: None if (one.arm, one.fold) in self.failing else self.drawn(one) for one in asked}

    def drawn(self, one: AskedRun) -> FoldRows:
        """Return the judged rows of a run."""
        client = np.arange(self.rows) % self.clients
        hard = numpy_stream(self.seed, "test", "rows", one.fold).standard_normal(self.rows)
        own = numpy_stream(self.seed, "test", one.arm, one.fold)
        by_seed = self.sd_seed * own.standard_normal()
        mine = own.standard_normal(self.rows)
        by_client = self.sd_client * numpy_stream(self.seed, "test", one.arm, "clients").standard_normal(self.clients)
        p = self.curves[one.arm](one.rounds) + self.points[one.point] + by_seed + by_client[client]
        difficulty = np.sqrt(self.alike) * hard + np.sqrt(1 - self.alike) * mine
        score = (difficulty < ndtri(np.clip(p, 1e-6, 1 - 1e-6))).astype(float)
        return FoldRows(score, (hard < -1.0).astype(float), np.ones(self.rows), client)


def flat(accuracy: float) -> Curve:
    """Return the curve of an arm that has learnt all by the first look."""
    return lambda rounds: accuracy


def no_gain(now: int, end: int) -> float:
    """Return the later gain of an arm of which it is known that it gains nothing."""
    return 0.0


def unknown_gain(now: int, end: int) -> float:
    """Return the later gain of an arm that no study has measured."""
    return 0.0 if end <= now else float("nan")


def known_gain(gained: float, until: int = 50) -> Callable[[int, int], float]:
    """Return a later gain that is known up to a round."""
    return lambda now, end: 0.0 if end <= now else gained if end <= until else float("nan")


def arms(names: Sequence[str], gain: Callable[[int, int], float] = no_gain, most: int = 50) -> list[RaceArm]:
    """Return arms by name; the prior puts them in this order."""
    return [RaceArm(name, most, -float(i), gain) for i, name in enumerate(names)]


def enough(names: Sequence[str], total: float = 1e6) -> RaceWork:
    """Return work in rounds of runs."""
    return RaceWork(total, {name: ArmCost() for name in names})


def truth(curves: Mapping[str, Curve], rounds: int) -> Floats:
    """Return the true accuracies, by name."""
    return np.array([curves[name](rounds) for name in sorted(curves)])

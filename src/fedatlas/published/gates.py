"""A published experiment as a record: its parts, and gates, rules that an outcome meets or misses (floors, orders, margins).

A gate combines a figure of a part's runs with a rule on the figures of several parts. `gate_of_means` applies the rule
to means over seeds, `gate_in_seeds` to each seed. Any other check is a function of all parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from fedatlas.study.plain import Row

SOME = 0.8  # an order holds if it does in at least this share of the paired seeds


Measure = Callable[[int], list[dict[str, Any]]]
"""The seed -> rows of figures, in the place of a run's rows."""


class Part(NamedTuple):
    """One experiment of a target: a configuration run once with every seed."""

    name: str
    tables: Row
    seeds: tuple[int, ...] = (1,)
    cell: Any = None  # of a matrix: its cell
    measure: Measure | None = None  # of a part that is measured instead of run; ``tables`` then describe it


class PartRuns(NamedTuple):
    """The rows of one part, by seed."""

    rows: Mapping[int, Sequence[Row]]

    def curve(self, seed: int, key: str) -> list[float | None]:
        """Return one figure over the rounds, row 0 included."""
        return [row.get(key) for row in self.rows[seed]]

    def known(self, seed: int, key: str = "accuracy") -> list[tuple[int, float]]:
        """Return (round, figure) for the evaluated rounds."""
        return [(row["round"], float(row[key])) for row in self.rows[seed] if row.get(key) is not None]

    def rounds_to(self, seed: int, level: float, key: str = "accuracy") -> int | None:
        """Return the first evaluated round in which a figure is at least ``level``; None if there is none."""
        return next((number for number, value in self.known(seed, key) if value >= level), None)

    def at(self, seed: int, number: int, key: str = "accuracy") -> float:
        """Return a figure after round ``number``; a negative number counts rows from the end."""
        rows = self.rows[seed]
        row = rows[number] if number < 0 else next((row for row in rows if row["round"] == number), None)
        if row is None:
            raise IndexError(f"there is no row of round {number}")
        return float(row[key])

    def mean(self, figure: Figure) -> float:
        """Return the mean of a figure over the seeds."""
        values = [figure(self, seed) for seed in self.rows]
        return math.fsum(values) / len(values)


Figure = Callable[[PartRuns, int], float]
"""A figure of a part's run with a seed."""
Runs = Mapping[str, PartRuns]
"""Part -> its runs."""
Text = Callable[[Runs, Sequence[float]], str]
"""The words of a verdict, from the runs and the mean figures of the parts."""


class GateVerdict(NamedTuple):
    """The outcome of a gate."""

    obtained: str
    passed: bool | None  # None: reported, not gated


class Gate(NamedTuple):
    """A published statement and its rule. ``parts`` are those it needs; it stays open while one of them is missing.

    If data or rounds only substitute for the published ones (``stand_in``), the verdict reports whether the rule holds, but nothing passes.
    """

    name: str
    published: str
    rule: str
    parts: tuple[str, ...]
    check: Callable[[Runs], GateVerdict]
    stand_in: bool = False

    def judged(self, runs: Runs) -> GateVerdict:
        """Return the verdict, as a report only for a stand-in."""
        found = self.check(runs)
        if not self.stand_in or found.passed is None:
            return found
        return GateVerdict(f"{found.obtained}; the rule {'holds' if found.passed else 'does not hold'}", None)


class CurvePicture(NamedTuple):
    """Accuracy against rounds: one line per part, and its published values as single points."""

    name: str  # suffix of its file name, after the record's; "" for a single picture
    title: str
    lines: Mapping[str, str]  # part -> label of its line
    published: Mapping[str, Sequence[tuple[int, float]]] = {}  # part -> (round, accuracy)


class FigurePicture(NamedTuple):
    """A figure of several parts against a quantity: one line per label, and a point per part."""

    name: str  # suffix of its file name, after the record's
    title: str
    x: str
    y: str
    lines: Mapping[str, Sequence[tuple[str, float]]]  # label -> (part, its quantity)
    figure: Figure


class Target(NamedTuple):
    """A published experiment. With ``curves``, the record keeps only their points from the rows."""

    name: str
    title: str
    source: str
    parts: tuple[Part, ...]
    gates: tuple[Gate, ...]
    notes: tuple[str, ...] = ()
    record: str = ""  # name of its record in docs/results, if it is not the target's
    curves: tuple[CurvePicture, ...] = ()
    pictures: tuple[FigurePicture, ...] = ()
    keeps: tuple[str, ...] = ()  # the fields of rows that the record keeps, if not the usual ones
    of_summary: Callable[[Row], Row] = (
        lambda summary: {}
    )  # a run's summary -> figures that the record keeps in the last row
    smaller: str = ""  # how it is smaller than the published experiment: 'quick-60-rounds'

    @property
    def label(self) -> str:
        """Name of its record."""
        return "-".join(filter(None, (self.record or self.name, self.smaller)))


# ---------------------------------------------------------------------- figures


def last(key: str = "accuracy") -> Figure:
    """Return the figure at its last evaluation."""
    return lambda runs, seed: runs.known(seed, key)[-1][1]


def at_round(number: int, key: str = "accuracy") -> Figure:
    """Return the figure after a round; a negative number counts rows from the end."""
    return lambda runs, seed: runs.at(seed, number, key)


def best_of_last(rounds: int, key: str = "accuracy") -> Figure:
    """Return the largest figure of the last rounds."""
    return lambda runs, seed: max(runs.at(seed, -i, key) for i in range(1, rounds + 1))


def mean_of_last(rounds: int, key: str = "accuracy") -> Figure:
    """Return the mean figure of the last evaluated rounds, since single rounds fluctuate."""

    def figure(runs: PartRuns, seed: int) -> float:
        found = [value for _, value in runs.known(seed, key)[-rounds:]]
        return sum(found) / len(found)

    return figure


# ---------------------------------------------------------------------- gates


def gate_of_means(
    name: str,
    published: str,
    rule: str,
    parts: Sequence[str],
    figure: Figure,
    holds: Callable[[Sequence[float]], bool | None],
    text: Text | None = None,
    *,
    stand_in: bool = False,
) -> Gate:
    """Return a gate with a rule on the parts' figures, means over seeds; ``text``: the words, by default names and percentages."""

    def check(runs: Runs) -> GateVerdict:
        found = [runs[part].mean(figure) for part in parts]
        return GateVerdict((text or named(parts))(runs, found), holds(found))

    return Gate(name, published, rule, tuple(parts), check, stand_in)


def gate_in_seeds(
    name: str,
    published: str,
    rule: str,
    parts: Sequence[str],
    holds: Callable[[Runs, int], bool],
    text: Callable[[Runs, float, int], str],
    *,
    stand_in: bool = False,
) -> Gate:
    """Return a gate whose rule must hold in `SOME` of the seeds common to all parts; ``text`` gets that share and their number."""

    def check(runs: Runs) -> GateVerdict:
        seeds = set.intersection(*(set(runs[part].rows) for part in parts))
        share = sum(holds(runs, seed) for seed in seeds) / len(seeds)
        return GateVerdict(text(runs, share, len(seeds)), share >= SOME)

    return Gate(name, published, rule, tuple(parts), check, stand_in)


def reported(found: Sequence[float]) -> None:
    """Apply no rule: the figures are only reported."""


def near(value: float, by: float) -> Callable[[Sequence[float]], bool]:
    """Return the rule that one figure is within ``by`` of a value."""
    return lambda found: abs(found[0] - value) <= by


def at_least(level: float) -> Callable[[Sequence[float]], bool]:
    """Return the rule that every figure reaches a level."""
    return lambda found: min(found) >= level


def apart_at_most(most: float) -> Callable[[Sequence[float]], bool]:
    """Return the rule that the figures differ by at most ``most``."""
    return lambda found: max(found) - min(found) <= most


# ---------------------------------------------------------------------- words


def percent(value: float) -> str:
    """Return a percentage: 0.9712 -> '97.1%'."""
    return f"{100 * value:.1f}%"


def points(value: float) -> str:
    """Return points: 0.153 -> '15.3 points'."""
    return f"{100 * value:.1f} points"


def listed(names: Sequence[str], values: Sequence[float], text: Callable[[float], str] = percent) -> str:
    """Return names with values: 'K-1 81.0%, K-10 79.2%'."""
    return ", ".join(f"{name} {text(value)}" for name, value in zip(names, values, strict=True))


def named(names: Sequence[str], text: Callable[[float], str] = percent) -> Text:
    """Return the words for figures with the names of their parts."""
    return lambda runs, found: listed(names, found, text)


def difference(runs: Runs, found: Sequence[float]) -> str:
    """Return how far the first figure is above the second, in points."""
    return points(found[0] - found[1])


def alone(text: Callable[[float], str] = percent) -> Text:
    """Return the words for a single figure."""
    return lambda runs, found: text(found[0])

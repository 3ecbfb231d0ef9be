"""A published statement as a rule that an outcome meets or misses (floors, orders, margins)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

Curve = Sequence[float | None]


class Part(NamedTuple):
    """One experiment of a study: a configuration run once for every seed."""

    name: str
    tables: Mapping[str, Any]
    seeds: tuple[int, ...]


class Outcome(NamedTuple):
    """The rows of one part, by seed."""

    rows: Mapping[int, Sequence[Mapping[str, Any]]]

    def curve(self, seed: int, key: str) -> list[float | None]:
        """One figure over the rounds, row 0 included."""
        return [row.get(key) for row in self.rows[seed]]

    def known(self, seed: int, key: str) -> list[tuple[int, float]]:
        """(round, figure) where it was evaluated."""
        return [(row["round"], float(row[key])) for row in self.rows[seed] if row.get(key) is not None]

    def last(self, seed: int, key: str) -> float:
        """A figure where it was evaluated last."""
        return self.known(seed, key)[-1][1]

    def rounds_to(self, seed: int, key: str, level: float) -> int | None:
        """The first evaluated round in which a figure is at least ``level``; None if none is."""
        return next((number for number, value in self.known(seed, key) if value >= level), None)

    def at(self, seed: int, key: str, number: int) -> float:
        """A figure after round ``number``; negative counts rows from the end."""
        rows = self.rows[seed]
        row = rows[number] if number < 0 else next((row for row in rows if row["round"] == number), None)
        if row is None:
            raise IndexError(f"there is no row of round {number}")
        return float(row[key])

    def mean(self, figure: Callable[[int], float]) -> float:
        """Mean of a figure over the seeds."""
        values = [figure(seed) for seed in self.rows]
        return math.fsum(values) / len(values)


Outcomes = Mapping[str, Outcome]


class Verdict(NamedTuple):
    """What came of a gate."""

    obtained: str
    passed: bool | None  # None: reported, not gated


class Gate(NamedTuple):
    """A published statement and its rule. ``parts`` are those it needs; it is left open while one of them is missing.

    Where the data stand in for the published ones (``stand_in``), it is said whether the rule holds, but nothing passes.
    """

    name: str
    published: str
    rule: str
    parts: tuple[str, ...]
    check: Callable[[Outcomes], Verdict]
    stand_in: bool = False

    def judged(self, parts: Outcomes) -> Verdict:
        """The verdict, with what a stand-in does not pass told as reported."""
        found = self.check(parts)
        if not self.stand_in or found.passed is None:
            return found
        return Verdict(f"{found.obtained}; the rule {'holds' if found.passed else 'does not hold'}", None)


class Picture(NamedTuple):
    """Accuracy against rounds: a line a part, and what was published of it as single points."""

    name: str  # of its file, behind the record's; "" where it is the only one
    title: str
    lines: Mapping[str, str]  # part -> what its line is called
    published: Mapping[str, Sequence[tuple[int, float]]] = {}  # part -> (round, accuracy)


class Study(NamedTuple):
    """A published experiment. Of one with ``curves`` the record keeps their points and nothing else of the rows."""

    name: str
    title: str
    source: str
    parts: tuple[Part, ...]
    gates: tuple[Gate, ...]
    notes: tuple[str, ...] = ()
    record: str = ""  # name of its record in docs/results, where it is not the study's
    curves: tuple[Picture, ...] = ()


def share_of_seeds(parts: Outcomes, names: Sequence[str], holds: Callable[[int], bool]) -> tuple[float, int]:
    """In which share of the seeds that all parts were run with the statement holds, and how many seeds these are."""
    seeds = set.intersection(*(set(parts[name].rows) for name in names))
    held = [holds(seed) for seed in sorted(seeds)]
    return sum(held) / len(held), len(held)


def ends(parts: Outcomes, names: Sequence[str], key: str = "accuracy") -> list[float]:
    """A figure where it was evaluated last, the mean over a part's seeds, part by part."""
    return [parts[name].mean(partial(parts[name].last, key=key)) for name in names]


def listed(names: Sequence[str], values: Sequence[float], text: Callable[[float], str] | None = None) -> str:
    """'K-1 81.0%, K-10 79.2%'."""
    return ", ".join(f"{name} {(text or percent)(value)}" for name, value in zip(names, values, strict=True))


def percent(value: float) -> str:
    """0.9712 -> '97.1%'."""
    return f"{100 * value:.1f}%"

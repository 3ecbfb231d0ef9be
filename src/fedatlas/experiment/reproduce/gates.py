"""A published statement as a rule that an outcome meets or misses (the kinds of gate of TARGETS.md)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
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

    def at(self, seed: int, key: str, number: int) -> float:
        """A figure after round ``number``; negative counts from the end."""
        return float(self.rows[seed][number][key])

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
    """A published statement and its rule. ``parts`` are those it needs; it is left open while one of them is missing."""

    name: str
    published: str
    rule: str
    parts: tuple[str, ...]
    check: Callable[[Outcomes], Verdict]


class Study(NamedTuple):
    """A published experiment."""

    name: str
    title: str
    source: str
    parts: tuple[Part, ...]
    gates: tuple[Gate, ...]
    notes: tuple[str, ...] = ()
    record: str = ""  # name of its record in docs/results, where it is not the study's


def share_of_seeds(parts: Outcomes, names: Sequence[str], holds: Callable[[int], bool]) -> tuple[float, int]:
    """In which share of the seeds that all parts were run with the statement holds, and how many seeds these are."""
    seeds = set.intersection(*(set(parts[name].rows) for name in names))
    held = [holds(seed) for seed in sorted(seeds)]
    return sum(held) / len(held), len(held)


def percent(value: float) -> str:
    """0.9712 -> '97.1%'."""
    return f"{100 * value:.1f}%"

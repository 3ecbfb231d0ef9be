"""Cautions about a tuning's winner: values at the end of a range, and trials whose order may be chance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedatlas.comparison.draws import Searched
from fedatlas.verdict.evidence import Difference
from fedatlas.wording import count, number, signed

NEAR = 0.1  # of a range on a log scale
SURE = 1.96  # standard errors


def near_end(keys: Sequence[Searched], values: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each value of the winner near an end of its range."""
    out = []
    for one in keys:
        if one.ends is None:
            continue
        (low, high), value = one.ends, float(values[one.key])
        place = math.log(value / low) / math.log(high / low)
        if min(place, 1 - place) <= NEAR:
            end, range_ = ("lower", "smaller") if place < 0.5 else ("upper", "larger")
            out.append(
                f"{one.key}={values[one.key]} is near the {end} end of its range, {low:g}..{high:g}: {range_} values may do better."
            )
    return out


def told_apart(best: Sequence[Mapping[str, Any]], gap: Difference | None = None) -> list[str]:
    """Return whether the winner can be told apart from the next trial. ``best``: trials with a figure, the best first.

    ``gap``: their difference by paired draws of the validation rows. Trials of an older version lack it. Then
    accuracies are compared by the standard error of two shares, as if their rows were different ones. For other figures
    too little is kept.
    """
    if len(best) < 2 or not best[0].get("rows"):
        return []
    first, second, rows = best[0]["validation"], best[1]["validation"], best[0]["rows"]
    shown = f"{best[0]['figure']} {number(first)} and {number(second)} on {count(rows, 'validation row')}"
    if gap is not None:
        low, high = gap.ends()
        apart, ends = low > 0 or high < 0, f"a difference of {signed(gap.value)}, {signed(low)} to {signed(high)}"
        return [f"The winner {'can' if apart else 'cannot'} be told apart from the next: {shown} ({ends})."]
    if best[0]["figure"] != "accuracy":
        return [f"Whether the winner is better than the next cannot be said from their figures alone: {shown}."]
    error = math.sqrt(sum(max(p * (1 - p), 0.25 / rows) for p in (first, second)) / rows)
    told = first - second > SURE * error
    return [f"The winner {'can' if told else 'cannot'} be told apart from the next: {shown}."]

"""The epsilon of several seeds together: a page of all of them shows more than the epsilon of each."""

from __future__ import annotations

from collections.abc import Sequence

from fedatlas.privacy.terms import UNITS
from fedatlas.reporting.blocks import Block, Key, KeyFigures, Text
from fedatlas.reporting.entries import Entry
from fedatlas.wording import count, number

ADDED = (
    "The seeds of an experiment are runs on the same rows, so what they release adds up. The epsilon in the section of a run is that of "
    "this run only."
)


def seeds_blocks(entries: Sequence[Entry]) -> list[Block]:
    """Return the section over all runs of a page; empty if no folder holds several seeds that add noise."""
    keys = [key for entry in entries for key in _keys(entry, f" of {entry.label}" if len(entries) > 1 else "")]
    return [KeyFigures(keys), Text(ADDED)] if keys else []


def _keys(entry: Entry, whose: str) -> list[Key]:
    """Return a figure for each account of a folder's seeds."""
    found = []
    for i, one in enumerate(entry.summary.get("epsilon_together", ())):
        at = f"epsilon_together.{i}.epsilon"
        body = one["epsilon"] if isinstance(one["epsilon"], str) else entry.printed(at)
        bound = "an upper bound, " if one["upper_bound"] else ""
        note = f"{bound}of {one['covers'] or UNITS[one['unit']]}, at delta = {number(one['delta'])}"
        found.append(Key(f"epsilon of {count(one['seeds'], 'seed')} together{whose}", body, note))
    return found

"""The way of a party without the label from a level of the trees to the next: rows move by the splits that it is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedatlas.vertical.letters import blamed, taken, unusable
from fedatlas.vertical.parties import Columns
from fedatlas.vertical.trees.letter_parts import LEVEL, SPLIT, of_level
from fedatlas.vertical.trees.nodes import moved


def descended(depth: int, data: Columns, message: Any, now: Mapping[str, Any]) -> tuple[dict[str, Any], list[int]]:
    """Return (the trees on the next level, its open nodes), from the letters of the party with the label and of the owners of splits.

    ``now`` holds at least "level", "at" (trees, rows), and "divided": whether this party divided nodes of the level.

    PartyLeft for letters that cannot be used.
    """
    level, at = now["level"], now["at"]
    sizes = of_level(depth, level, len(at))
    said = taken(data, message, data.active, LEVEL, level, parties=len(data.parties), **sizes)
    if data.party in said["owners"] and not now["divided"]:
        why = f"it says that '{data.name}' divides nodes, which '{data.name}' was not asked to"
        raise unusable(data.parties[data.active], LEVEL.topic, why)
    with blamed(data, data.active, LEVEL):
        at = moved(at, [said["told"]])
    for k in said["owners"]:
        if k != data.party:
            told = taken(data, message, k, SPLIT, level, **sizes)["told"]
            with blamed(data, k, SPLIT):
                at = moved(at, [told])
    return {**now, "at": at, "level": level + 1, "divided": False}, list(said["open"])

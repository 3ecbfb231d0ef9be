"""Which rows of a node a party was told while trees grew, from the letters that it received and sent.

A party without the label can always put these together: the rows that a tree is grown on, and its finest division of
all common rows into nodes. The report measures what they tell of labels (`guesses`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from fedatlas.vertical.boosting.letter_kinds import GRADIENTS, LEVEL, SPLIT
from fedatlas.vertical.boosting.nodes import moved
from fedatlas.vertical.letters import Letter
from fedatlas.vertical.parties import Whole


class Told(NamedTuple):
    """One tree, as a party was told of it."""

    tree: int  # from 1
    rows: Whole | None  # places of the rows that it is grown on; None: all training rows
    at: Whole  # (N,) the deepest node of each common row that the party knows of; 1: the root


def trees_told(party: int, letters: Iterable[Letter], common: int) -> list[Told]:
    """Return the trees of which a party was told; ``letters``: those that it received or sent, in their order.

    ``common``: the number of common rows.
    """
    found: list[Told] = []
    for one in letters:
        content = one["content"]
        if one["topic"] == GRADIENTS:
            rows = None if content["rows"] is None else content["rows"].numpy()
            found.append(Told(content["tree"], rows, np.ones(common, np.int64)))
        elif one["topic"] == LEVEL.topic or (one["topic"] == SPLIT.topic and (one["from"] != party or "records" in content)):
            found[-1] = found[-1]._replace(at=moved(found[-1].at, [content["told"]]))
    return found

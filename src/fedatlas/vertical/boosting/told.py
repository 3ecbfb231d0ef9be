"""Which rows of a node a party was told while trees grew, from the letters that it received and sent.

A party without the label can always put these together: the rows that a tree is grown on, and its finest division of
all common rows into nodes. The report measures what they tell of labels (`guesses`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from fedatlas.vertical.boosting.letter_kinds import BY_CLASS, GRADIENTS
from fedatlas.vertical.boosting.settings import SecureBoost
from fedatlas.vertical.letters import Letter
from fedatlas.vertical.parties import Whole
from fedatlas.vertical.trees.letter_parts import LEVEL, SPLIT
from fedatlas.vertical.trees.nodes import begun, moved, roots


class RoundTold(NamedTuple):
    """One round, as a party was told of it."""

    number: int  # from 1
    rows: Whole | None  # places of the rows that its trees are grown on; None: all training rows
    at: Whole  # (trees, N) the deepest node of each common row that the party knows of

    @property
    def trees(self) -> list[Whole]:
        """By tree (N,) the node of each row, numbered as in a tree by itself: the root is 1."""
        return [_by_itself(own, root) for own, root in zip(self.at, roots(len(self.at)), strict=True)]


def _by_itself(at: Whole, root: int) -> Whole:
    depth = np.frexp(at.astype(np.float64))[1] - root.bit_length()  # 0: the root
    found: Whole = at - (root << depth) + (1 << depth)
    return found


def rounds_told(how: SecureBoost, party: int, letters: Iterable[Letter], common: int) -> list[RoundTold]:
    """Return the rounds of which a party was told; ``letters``: those that it received or sent, in their order.

    ``common``: the number of common rows.
    """
    found: list[RoundTold] = []
    for one in letters:
        content, topic = one["content"], one["topic"]
        if topic in {GRADIENTS, BY_CLASS}:
            rows = None if content["rows"] is None else content["rows"].numpy()
            found.append(RoundTold(content["tree"], rows, begun(how.forest(content.get("classes", 1)), common)))
        elif topic == LEVEL.topic or (topic == SPLIT.topic and (one["from"] != party or "records" in content)):
            found[-1] = found[-1]._replace(at=moved(found[-1].at, [content["told"]]))
    return found

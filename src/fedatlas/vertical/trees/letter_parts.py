"""Letters about the nodes of a tree and the rows at them, and forms of such letters and of answers to the coordinator.

Nodes of a level are from ``lowest`` to below ``highest``, and their children from ``youngest`` to below ``deepest`` (`of_level`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from fedatlas.algorithm import State
from fedatlas.vertical.forms import Form, ListOf, Numbers, WholeNumber
from fedatlas.vertical.letters import LetterKind
from fedatlas.vertical.parties import order
from fedatlas.vertical.trees.nodes import roots

MANY = 1 << 16  # more classes than any label has
BYTES = Numbers(torch.uint8, (None,))
TOLD: Form = {"nodes": ListOf(WholeNumber("lowest", "highest"), "told", once=True), "left": ListOf(BYTES, "told")}
LEVEL = LetterKind(
    "level",
    {
        "told": TOLD,
        "open": ListOf(WholeNumber("youngest", "deepest"), once=True),
        "owners": ListOf(WholeNumber(0, "parties"), once=True),
    },
)
SPLIT = LetterKind("split", {"told": TOLD})
OWNERS: Mapping[str, Form] = {"owners": ListOf(WholeNumber(0, "parties"), once=True)}


def grown(depth: int, names: Sequence[str], trees: int = 1) -> Form:
    """Return the form of the answer about a round's trees: the number of nodes of each party, and of leaves."""
    return {"nodes": dict.fromkeys((*names, "leaves"), WholeNumber(0, trees * (1 << depth) + 1))}


def of_level(depth: int, level: int, trees: int = 1) -> dict[str, int]:
    """Return the sizes that name the nodes of a level, from 1, and their children; the deepest level has no children."""
    first, last = roots(trees)[0], roots(trees)[-1] + 1
    young, deep = first << level, (last << level) if level < depth else first << level
    return {"lowest": first << (level - 1), "highest": last << (level - 1), "youngest": young, "deepest": deep}


def common(state: State) -> int:
    """Return how many rows all parties have."""
    return len(order(state))

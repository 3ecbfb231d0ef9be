"""The letters of Federated Forest and their forms.

Sizes that receivers know: ``parties``, ``rows`` (that train), ``trees`` (one more than are grown), ``columns`` (of the
receiver), ``open`` (nodes), ``width`` (entries of a sum), ``sets`` (trees asked about), ``packed`` (bytes of all rows),
``above`` (all nodes of a tree); nodes of a level as in `letter_parts.of_level`.
"""

from __future__ import annotations

import torch

from fedatlas.vertical.forest.coding import LIMIT
from fedatlas.vertical.forms import ListOf, Numbers, WholeNumber
from fedatlas.vertical.letters import LetterKind
from fedatlas.vertical.trees.letter_parts import MANY

MOST = 1 << 31  # columns of a party

WIDTH = LetterKind("number of columns", {"columns": WholeNumber(0, MOST)})
LABELS = LetterKind(
    "labels", {"classes": WholeNumber(0, MANY), "labels": Numbers(torch.int64, ("rows",), -LIMIT, LIMIT)}
)
TREE = LetterKind("tree", {"tree": WholeNumber(1, "trees"), "columns": ListOf(WholeNumber(0, "columns"), once=True)})
BEST = LetterKind("best", {"left": Numbers(torch.int64, ("open", "width"))})
WANTED = LetterKind(
    "wanted",
    {
        "nodes": ListOf(WholeNumber("lowest", "highest"), once=True),
        "passed": ListOf(WholeNumber("lowest", "highest"), once=True),
    },
)
SHAPE = LetterKind("shape", {"inner": ListOf(WholeNumber(1, "above"), once=True)})
SETS = LetterKind("leaf sets", {"sets": ListOf(Numbers(torch.uint8, (None, "packed")), "sets")})

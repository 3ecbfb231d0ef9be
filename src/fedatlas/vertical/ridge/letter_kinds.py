"""Letters of private ridge regression, with the form that each must have. The coordinator reads none of them."""

from __future__ import annotations

import torch

from fedatlas.vertical.forms import Form, Numbers, ShortText, WholeNumber
from fedatlas.vertical.letters import LetterKind
from fedatlas.vertical.ridge.numbers import FEWEST, MOST, NOTHING

LARGEST = 1025  # above the exponent of every double
EXTENT = LetterKind("extent", {"rows": WholeNumber(1), "largest": Numbers(torch.int64, ("columns",), NOTHING, LARGEST)})
PLAN = LetterKind(
    "plan",
    {
        "rows": WholeNumber(1),
        "precision": WholeNumber(FEWEST, MOST + 1),
        "largest": Numbers(torch.int64, ("columns",), NOTHING, LARGEST),
    },
)
KEY = LetterKind("key", {"n": Numbers(torch.uint8, ("n",)), "h": Numbers(torch.uint8, (None,)), "bits": WholeNumber(1)})
SEALED: dict[str, Form] = {"key": ShortText(16), "ciphertexts": Numbers(torch.uint8, ("count", "width"))}
EQUATIONS = LetterKind("equations", SEALED)
MASKED = LetterKind("masked equations", {"columns": WholeNumber(2), **SEALED})
SOLUTION = LetterKind("masked solution", {"solution": Numbers(torch.uint8, ("entries", "bytes"))})
MASKS = LetterKind(
    "masks",
    {"matrix": Numbers(torch.uint8, ("square", "bytes")), "shift": Numbers(torch.uint8, ("entries", "bytes"))},
)
COEFFICIENTS = LetterKind("coefficients", {"coefficients": Numbers(torch.float64, ("columns", "targets"))})

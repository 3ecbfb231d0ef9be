"""The letters of split learning and their forms. Sizes that receivers know: ``rows``, ``width`` (of an embedding)."""

from __future__ import annotations

import torch

from fedatlas.vertical.forms import Numbers
from fedatlas.vertical.letters import LetterKind

EMBEDDED, CUT, JUDGED, ASKED = "embeddings", "cut gradients", "embeddings to judge", "embeddings asked about"


def numbers(topic: str, dtype: torch.dtype) -> LetterKind:
    """Return the kind of a letter with the embeddings of some rows, or the gradients there."""
    return LetterKind(topic, {"rows": Numbers(dtype, ("rows", "width"))})


def asked(dtype: torch.dtype) -> LetterKind:
    """Return the kind of a letter with the embeddings of rows to predict, and which of them the party has."""
    return LetterKind(ASKED, {"rows": Numbers(dtype, ("rows", "width")), "has": Numbers(torch.bool, ("rows",))})

"""The letters of split learning and their forms. Sizes that receivers know: ``rows``, ``width`` (of an embedding)."""

from __future__ import annotations

import torch

from fedatlas.vertical.forms import Numbers
from fedatlas.vertical.letters import LetterKind

EMBEDDED, CUT, JUDGED = "embeddings", "cut gradients", "embeddings to judge"


def numbers(topic: str, dtype: torch.dtype) -> LetterKind:
    """Return the kind of a letter with the embeddings of some rows, or the gradients there."""
    return LetterKind(topic, {"rows": Numbers(dtype, ("rows", "width"))})

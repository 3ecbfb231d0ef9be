"""A backdoor: a white patch in a corner of pictures, which makes a model take them for one class (B18)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Backdoor(NamedTuple):
    """The patch, the class that it stands for, and how much of a batch attackers give to it."""

    target: int
    poisoned: float  # share of each batch
    side: int  # pixels
    white: Tensor | None = None  # as the network reads it, to be broadcast over (channels, h, w); None: not known yet

    def patched(self, x: Tensor) -> Tensor:
        """Return pictures (n, channels, h, w) with the patch, as a copy."""
        assert self.white is not None
        out, side = x.clone(), self.side
        white = self.white.to(x).expand(x.shape[1:])
        out[..., -side:, -side:] = white[..., -side:, -side:]
        return out

    def poisoned_rows(self, x: Tensor, y: Tensor, batches: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return an epoch's pictures and labels with the first of each batch poisoned, as copies.

        ``batches``: how many rows each has. Rows come shuffled, so the first ones are drawn at random.
        """
        first = [torch.arange(n) < math.floor(self.poisoned * n + 0.5) for n in batches]
        mine = torch.cat(first).to(x.device) if first else torch.zeros(0, dtype=torch.bool, device=x.device)
        x, y = x.clone(), y.clone()
        x[mine] = self.patched(x[mine])
        y[mine] = self.target
        return x, y

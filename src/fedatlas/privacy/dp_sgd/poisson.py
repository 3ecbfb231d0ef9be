"""The batches of DP-SGD: who is in each, drawn row by row, and the noise of its step."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from fedatlas.algorithm import Budget
from fedatlas.privacy.dp_sgd.schedule import schedule
from fedatlas.privacy.mechanism import Noise
from fedatlas.privacy.noise import gaussian, gaussian32, words
from fedatlas.privacy.protocol import Doing
from fedatlas.tree import Tree

NOISE, SIZE = "dp_sgd.noise", "dp_sgd.size"
MOST = 1024  # rows of a pass: a longer batch takes several passes


class Poisson:
    """The batches of one visit (`data.batches.Sampling`). Each row is in each batch with probability q, by itself.

    ``std``: standard deviation of the noise on a step's sum. ``params``: the trained tensors, which the noise covers.
    """

    def __init__(self, doing: Doing, budget: Budget, batch_size: int, params: Tree, std: float, noise: Noise) -> None:
        found = schedule(budget, doing.rows, batch_size)
        self.steps, self.size, self.rate, self.n = found.steps, found.size, found.rate, doing.rows
        self.room = min(room_of(found.size, found.rate), MOST)
        self.dtype = next((x.dtype for x in params.values()), torch.float32)
        self.numbers = sum(x.numel() for x in params.values())
        self.std, self.noise = std, noise
        self.key = ("dp_sgd", doing.what, doing.round, doing.client, doing.visit)

    def chosen(self, step: int) -> Tensor:
        """Return the rows of a step's batch, ascending; there may be none. Under "os" nobody can know or repeat the draw.

        Without that secrecy the sampling would amplify nothing.
        """
        if self.rate == 1:
            return torch.arange(self.n)
        drawn = words(self.noise, self.n, "rows", *self.key, step) < np.uint64(math.floor(self.rate * 2**64))
        return torch.from_numpy(np.flatnonzero(drawn))

    def beside(self, step: int) -> Mapping[str, Tensor]:
        """Return the inputs of a step besides its rows: the noise of all numbers, and B."""
        draw = gaussian if self.dtype == torch.float64 else gaussian32
        drawn = draw(self.numbers, self.std, self.noise, "step", *self.key, step)
        return {NOISE: drawn.to(self.dtype), SIZE: torch.tensor(float(self.size), dtype=self.dtype)}


def room_of(size: int, rate: float) -> int:
    """Return the rows to which a batch is padded: two standard deviations above B, so that few batches take two passes."""
    return size if rate == 1 else size + math.ceil(2 * math.sqrt(size * (1 - rate)))

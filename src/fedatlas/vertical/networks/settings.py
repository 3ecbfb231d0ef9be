"""The keys of split learning."""

from __future__ import annotations

from typing import NamedTuple

import torch

from fedatlas.errors import ConfigError
from fedatlas.models.dense import Widths
from fedatlas.registry import Positive, Whole


class SplitLearning(NamedTuple):
    """Settings by which the parties train their networks and the fusion."""

    rounds: int
    hidden: tuple[int, ...]
    learning_rate: float
    batch_size: int
    bits: int = 32  # of a number; 64 where tests compare

    @property
    def dtype(self) -> torch.dtype:
        """The type of weights, embeddings and gradients."""
        return torch.float64 if self.bits == 64 else torch.float32

    @property
    def width(self) -> int:
        """Numbers in the embedding of a row, of each party."""
        return self.hidden[-1]


def split_learning(
    *, rounds: Whole = 30, hidden: Widths = (32, 16), learning_rate: Positive = 0.01, batch_size: Whole = 32
) -> SplitLearning:
    """A neural network cut between parties: each has a network on its own columns, the one with the label joins them.

    rounds: passes over the training rows, one per row of metrics.jsonl.
    hidden: units of each layer of a party's network; the last are its embedding of a row, which it sends.
    learning_rate: rate of plain SGD, at all parties.
    batch_size: training rows of a step.
    """
    if min(hidden, default=0) < 1:
        raise ConfigError(f"algorithm.hidden = {list(hidden)}: give one layer or more, each with at least 1 unit.")
    return SplitLearning(rounds, tuple(hidden), learning_rate, batch_size)

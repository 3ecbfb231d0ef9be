"""The keys of split learning and of hybrid federation."""

from __future__ import annotations

from typing import NamedTuple

import torch

from fedatlas.errors import ConfigError
from fedatlas.models.dense import Widths
from fedatlas.registry import Positive, Whole


class CutNetworks(NamedTuple):
    """Settings by which the parties train their networks and the fusion."""

    rounds: int
    hidden: tuple[int, ...]
    learning_rate: float
    batch_size: int
    shared: tuple[int, ...] = ()  # units of the layers of the network on shared columns; (): there is none
    tune_shared: bool = True
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
) -> CutNetworks:
    """A neural network cut between parties: each has a network on its own columns, the one with the label joins them.

    rounds: passes over the training rows, one per row of metrics.jsonl.
    hidden: units of each layer of a party's network; the last are its embedding of a row, which it sends.
    learning_rate: rate of plain SGD, at all parties.
    batch_size: training rows of a step.
    """
    return CutNetworks(rounds, layers("hidden", hidden), learning_rate, batch_size)


def hybrid(
    *,
    rounds: Whole = 30,
    shared: Widths = (64, 32),
    hidden: Widths = (32, 16),
    learning_rate: Positive = 0.01,
    batch_size: Whole = 32,
    tune_shared: bool = True,
) -> CutNetworks:
    """Parties that share some rows and some columns: FedAvg on the shared columns, then split learning on the shared rows.

    rounds: rounds, one per row of metrics.jsonl: an epoch of each party on its labelled rows, then one over the shared rows.
    shared: units of each layer of the network on the columns that all parties have.
    hidden: units of each layer of a party's network on its other columns; the last are its embedding of a row, which it sends.
    learning_rate: rate of plain SGD, at all parties.
    batch_size: training rows of a step.
    tune_shared: whether the second part of a round also trains the network on the shared columns.
    """
    given = (layers("hidden", hidden), learning_rate, batch_size, layers("shared", shared))
    return CutNetworks(rounds, *given, tune_shared)


def layers(key: str, units: tuple[int, ...]) -> tuple[int, ...]:
    """Return the units of a network's layers. ConfigError if there is no layer, or one without units."""
    if min(units, default=0) < 1:
        raise ConfigError(f"algorithm.{key} = {list(units)}: give one layer or more, each with at least 1 unit.")
    return tuple(units)

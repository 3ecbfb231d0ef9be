"""The two values every experiment starts from: a data set, and who holds which of its rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

TaskKind = Literal["classes", "numbers", "tokens"]


class Column(NamedTuple):
    """A raw column of a table: numbers, or texts held as codes 0, 1, ... into ``categories``; NaN = missing."""

    name: str
    categories: tuple[str, ...] = ()  # () = a numeric column


@dataclass(frozen=True)
class Dataset:
    """Rows in memory, as one tensor set; clients are index lists into the training rows (`Partition`).

    ``x_*`` holds the rows in their stored form: float32, uint8 (images, turned into floats by ``scale`` and
    ``shift`` where a client's rows are gathered, so that 60,000 pictures stay small) or int64 (token ids).
    Images are (n, channels, height, width), tables (n, columns), token sequences (n, length).
    ``y_*`` is int64 (n,) class ids for ``task="classes"``, float32 (n,) for ``"numbers"``, and int64 (n, length)
    for ``"tokens"`` (a class id at every step, `ignore` where there is none).

    A table comes from its source raw: ``schema`` says what its columns are, and `preprocess` turns it into the columns
    that a model reads. A target that is a number keeps its unit; models learn `targets` and answer `predictions`.
    """

    name: str
    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    task: TaskKind
    class_names: tuple[str, ...] = ()  # empty for task="numbers"
    columns: tuple[str, ...] = ()  # names of a table's model inputs, in order
    client_train: Tensor | None = None  # int64 (n,): natural owner of each training row
    client_names: tuple[str, ...] = ()  # name of natural owner i
    weight_train: Tensor | None = None  # float32 (n,): survey weights
    weight_test: Tensor | None = None
    rows_train: Tensor | None = None  # int64 (n,): which row of its source each is (`data.loaded.numbered`); None = all
    rows_test: Tensor | None = None
    scale: tuple[float, ...] = ()  # model input = x * scale + shift, per channel; () = as stored
    shift: tuple[float, ...] = ()
    ignore: int = -100  # label that no loss and no metric counts
    schema: tuple[Column, ...] = ()  # a table's raw columns, until `preprocess`
    target_mean: float = 0.0  # of the training target over all clients, in its unit; 0 and 1 = not standardised
    target_sd: float = 1.0
    facts: Mapping[str, Any] = field(default_factory=dict)  # plain values for the record: licence, citation, unit ...

    @property
    def classes(self) -> int:
        """Number of classes; 0 where the target is a number."""
        return len(self.class_names)

    @property
    def uncounted(self) -> tuple[int, ...]:
        """Classes whose rows accuracy passes over: padding and the ends of sentences (ALGORITHMS.md M10)."""
        special = self.facts.get("special", {})
        return tuple(special[name] for name in ("pad", "bos", "eos") if name in special)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one row."""
        return tuple(self.x_train.shape[1:])

    def inputs(self, x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Stored rows -> what the model sees. Token ids stay integers."""
        if x.dtype == torch.int64:
            return x
        stored, x = x, x.to(dtype)
        if not self.scale:
            return x
        view = (1, -1) + (1,) * (x.dim() - 2)
        scale = torch.tensor(self.scale, dtype=dtype, device=x.device).view(view)
        shift = torch.tensor(self.shift, dtype=dtype, device=x.device).view(view)
        return x * scale + shift if x is stored else x.mul_(scale).add_(shift)  # in place only in a copy

    def targets(self, y: Tensor) -> Tensor:
        """Stored targets -> what the loss sees: numbers standardised, classes and tokens as they are."""
        return (y - self.target_mean) / self.target_sd if self.task == "numbers" else y

    def predictions(self, output: Tensor) -> Tensor:
        """A model's output -> a prediction in the target's own unit: the inverse of `targets`."""
        return output * self.target_sd + self.target_mean if self.task == "numbers" else output


class Partition(NamedTuple):
    """Who holds which training rows. ``clients[k]`` are client k's row indices (int64, ascending)."""

    clients: tuple[np.ndarray, ...]
    left_out: int = 0  # training rows that no client holds
    info: Mapping[str, Any] = {}  # plain values for the record: realised fractions, owner names, transforms ...
    feature_skew: tuple[Mapping[str, float], ...] = ()  # per client: {"rotate": degrees, "noise": sd}; () = none

    @property
    def sizes(self) -> list[int]:
        """Training rows of each client."""
        return [len(rows) for rows in self.clients]

"""The two values that every experiment starts from: a data set in named splits, and the assignment of its rows to clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedatlas.errors import DataError

Names = tuple[str, ...]
"""Names of classes, columns, clients or files, in order."""
TaskKind = Literal["classes", "numbers", "tokens"]
SIDES = ("train", "test")
"""Splits that a source may provide."""


class Column(NamedTuple):
    """A raw column of a table: numbers, or texts held as codes 0, 1, ... into ``categories``; NaN = missing."""

    name: str
    categories: Names = ()  # () = a numeric column


class Split(NamedTuple):
    """Rows in stored form with their targets and, if any, natural owners, survey weights and row numbers in the source.

    ``x`` is float32, uint8 (images) or int64 (token ids). uint8 images become floats by `Dataset.scale` and ``shift`` only when a
    client's rows are gathered, so that 60,000 pictures stay small. Images are (n, channels, height, width), tables (n, columns),
    token sequences (n, length). ``y`` is int64 (n,) class ids for ``task="classes"``, float32 (n,) for ``"numbers"``, and
    int64 (n, length) for ``"tokens"``: a class id at every step, `Dataset.ignore` for none.
    """

    x: Tensor
    y: Tensor
    client: Tensor | None = None  # int64 (n,): natural owner of each row
    weight: Tensor | None = None  # float32 (n,): survey weights
    row: Tensor | None = (
        None  # int64 (n,): number of each row in its source (`data.loaded.numbered`); None = all, in order
    )

    def take(self, index: np.ndarray) -> Split:
        """Return rows by index, in the order given."""
        at = torch.from_numpy(index)
        return Split(*(None if t is None else t[at] for t in self))  # type: ignore[arg-type]

    def numbered(self) -> Split:
        """Return the same rows with explicit row numbers, needed before some of them are taken."""
        return self if self.row is not None else self._replace(row=torch.arange(len(self.y)))

    def behind(self, rows: int) -> Split:
        """Return the same rows, with row numbers shifted by ``rows``."""
        return self if self.row is None else self._replace(row=self.row + rows)

    def join(self, other: Split) -> Split:
        """Return these rows, then the other ones. Owners are dropped unless both sides have them; DataError if only one has weights."""
        if (self.weight is None) != (other.weight is None):
            raise DataError(
                "data.test as a share joins training and test rows, but only one of the two has weights: give both "
                "(weight_train and weight_test), or keep the test rows separate (data.test = 'own')."
            )
        return Split(*(None if a is None or b is None else torch.cat((a, b)) for a, b in zip(self, other, strict=True)))  # type: ignore[arg-type]


def split_of(x: np.ndarray, y: np.ndarray, client: np.ndarray | None = None) -> Split:
    """Return arrays as rows in stored form: inputs in their own type, integer labels, owners if given."""
    owner = None if client is None else torch.from_numpy(client.astype(np.int64))
    return Split(torch.from_numpy(np.ascontiguousarray(x)), torch.from_numpy(y.astype(np.int64)), owner)


def by_channel(values: Sequence[float] | Tensor, x: Tensor) -> Tensor:
    """Return one number per channel, shaped to broadcast over rows ``x`` (n, channels, ...), in their type."""
    return torch.as_tensor(values, dtype=x.dtype, device=x.device).view((1, -1) + (1,) * (x.dim() - 2))


@dataclass(frozen=True)
class Dataset:
    """Rows in memory by the name of their split, all in the same stored form.

    ``splits`` has "train" (the clients' rows), "test" (the server's rows for evaluation) and, if an experiment has public rows,
    "public" (known to server and clients). A `Partition` assigns the training rows to clients and lists those that a client
    keeps out of training.

    A table comes raw from its source: ``schema`` describes its columns, and `preprocess` turns it into the columns
    that a model reads. A numeric target keeps its unit; models learn `targets` and return `predictions`.
    """

    name: str
    splits: Mapping[str, Split]
    task: TaskKind
    class_names: Names = ()  # empty for task="numbers"
    columns: Names = ()  # names of a table's model inputs, in order
    client_names: Names = ()  # name of natural owner i
    scale: tuple[float, ...] = ()  # model input = x * scale + shift, per channel; () = as stored
    shift: tuple[float, ...] = ()
    ignore: int = -100  # label that losses and metrics skip
    schema: tuple[Column, ...] = ()  # a table's raw columns, until `preprocess`
    target_mean: float = 0.0  # of the training target over all clients, in its unit; 0 and 1 = not standardised
    target_sd: float = 1.0
    facts: Mapping[str, Any] = field(default_factory=dict)  # plain values for the record: licence, citation, unit ...

    @property
    def train(self) -> Split:
        """The clients' rows."""
        return self.splits["train"]

    @property
    def test(self) -> Split:
        """The rows that the server evaluates on."""
        return self.splits["test"]

    def with_splits(self, **changed: Split) -> Dataset:
        """Return the same data set with these splits replaced or added."""
        return replace(self, splits={**self.splits, **changed})

    def with_inputs(self, made: Callable[[Tensor], Tensor]) -> Dataset:
        """Return the same data set with the inputs of every split transformed by ``made``."""
        return self.with_splits(**{name: split._replace(x=made(split.x)) for name, split in self.splits.items()})

    @property
    def classes(self) -> int:
        """Number of classes; 0 for a numeric target."""
        return len(self.class_names)

    @property
    def uncounted(self) -> tuple[int, ...]:
        """Classes that accuracy skips: padding and the ends of sentences (M10)."""
        special = self.facts.get("special", {})
        return tuple(special[name] for name in ("pad", "bos", "eos") if name in special)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one row."""
        return tuple(self.train.x.shape[1:])

    def inputs(self, x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the model inputs for stored rows. Token ids stay integers."""
        if x.dtype == torch.int64:
            return x
        stored, x = x, x.to(dtype)
        if not self.scale:
            return x
        scale, shift = by_channel(self.scale, x), by_channel(self.shift, x)
        return x * scale + shift if x is stored else x.mul_(scale).add_(shift)  # in place only on a copy

    def targets(self, y: Tensor) -> Tensor:
        """Return the loss's targets for stored targets: numbers standardised, classes and tokens unchanged."""
        return (y - self.target_mean) / self.target_sd if self.task == "numbers" else y

    def predictions(self, output: Tensor) -> Tensor:
        """Return predictions in the target's unit for a model's output: the inverse of `targets`."""
        return output * self.target_sd + self.target_mean if self.task == "numbers" else output


class HeldRows(NamedTuple):
    """Rows of a split held by one party, gathered on each access."""

    split: Split
    at: np.ndarray

    @property
    def x(self) -> Tensor:
        """Inputs in stored form."""
        return self.split.x.index_select(0, torch.from_numpy(self.at))

    @property
    def y(self) -> Tensor:
        """Targets in stored form."""
        return self.split.y.index_select(0, torch.from_numpy(self.at))


class Partition(NamedTuple):
    """The assignment of training rows to clients.

    ``clients[k]`` holds the rows (int64, ascending) that client k trains on.

    This is the only place that defines a party's data, and a party reaches them only by its number (`RowSource`). If
    parties hold columns of the same rows, their names are kept here too.
    """

    clients: tuple[np.ndarray, ...]
    left_out: int = 0  # training rows that no client holds
    info: Mapping[str, Any] = {}  # plain values for the record: realised fractions, owner names, transforms ...
    feature_skew: tuple[Mapping[str, float], ...] = ()  # per client: {"rotate": degrees, "noise": sd}; () = none
    kept: Mapping[
        str, Mapping[int, np.ndarray]
    ] = {}  # "validation", "held out": client -> its rows kept out of training
    counted: bool = False  # rows are at their parties: this value has only their numbers

    @property
    def sizes(self) -> list[int]:
        """Training rows of each client."""
        return [len(rows) for rows in self.clients]

    def parties(self, split: Split) -> list[HeldRows]:
        """Return the training rows of each client that has any."""
        return [HeldRows(split, rows) for rows in self.clients if len(rows)]

    def held(self, client: int) -> np.ndarray:
        """Return all rows of a client: those it trains on, then those it keeps out of training."""
        return np.concatenate([self.clients[client], *(rows[client] for rows in self.kept.values() if client in rows)])

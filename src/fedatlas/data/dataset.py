"""The two values every experiment starts from: a data set in named splits, and who holds which of its rows."""

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
"""Splits that a source may have of its own."""


class Column(NamedTuple):
    """A raw column of a table: numbers, or texts held as codes 0, 1, ... into ``categories``; NaN = missing."""

    name: str
    categories: Names = ()  # () = a numeric column


class Split(NamedTuple):
    """Rows in stored form with their targets and, where there are any, natural owners, survey weights and numbers in the source.

    ``x`` is float32, uint8 (images, turned into floats by `Dataset.scale` and ``shift`` where a client's rows are gathered,
    so that 60,000 pictures stay small) or int64 (token ids). Images are (n, channels, height, width), tables (n, columns),
    token sequences (n, length). ``y`` is int64 (n,) class ids for ``task="classes"``, float32 (n,) for ``"numbers"``, and
    int64 (n, length) for ``"tokens"`` (a class id at every step, `Dataset.ignore` where there is none).
    """

    x: Tensor
    y: Tensor
    client: Tensor | None = None  # int64 (n,): natural owner of each row
    weight: Tensor | None = None  # float32 (n,): survey weights
    row: Tensor | None = (
        None  # int64 (n,): which row of its source each is (`data.loaded.numbered`); None = all, in order
    )

    def take(self, index: np.ndarray) -> Split:
        """Rows by index, in the order given."""
        at = torch.from_numpy(index)
        return Split(*(None if t is None else t[at] for t in self))  # type: ignore[arg-type]

    def numbered(self) -> Split:
        """The same with the rows' numbers written out, as whoever takes only some of them needs it."""
        return self if self.row is not None else self._replace(row=torch.arange(len(self.y)))

    def behind(self, rows: int) -> Split:
        """Return the same, numbered on behind so many other rows."""
        return self if self.row is None else self._replace(row=self.row + rows)

    def join(self, other: Split) -> Split:
        """These rows, then the other ones; without owners where only one side has them. DataError for weights of one side."""
        if (self.weight is None) != (other.weight is None):
            raise DataError(
                "data.test as a share puts training and test rows together, and only one of the two has weights: give both "
                "(weight_train and weight_test), or keep the test rows as they are (data.test = 'own')."
            )
        return Split(*(None if a is None or b is None else torch.cat((a, b)) for a, b in zip(self, other, strict=True)))  # type: ignore[arg-type]


def split_of(x: np.ndarray, y: np.ndarray, client: np.ndarray | None = None) -> Split:
    """Return arrays as rows in stored form: inputs in the type they have, whole labels, owners where there are any."""
    owner = None if client is None else torch.from_numpy(client.astype(np.int64))
    return Split(torch.from_numpy(np.ascontiguousarray(x)), torch.from_numpy(y.astype(np.int64)), owner)


def by_channel(values: Sequence[float] | Tensor, x: Tensor) -> Tensor:
    """Return one number for each channel as they meet rows ``x`` (n, channels, ...), in their type."""
    return torch.as_tensor(values, dtype=x.dtype, device=x.device).view((1, -1) + (1,) * (x.dim() - 2))


@dataclass(frozen=True)
class Dataset:
    """Rows in memory by the name of their split, all in the same stored form.

    ``splits`` has "train", the clients' rows, "test", the server's to judge by, and "public" where an experiment has public
    rows, which server and clients know. Who holds which of the training rows, and which of them a client keeps
    out of training, says a `Partition`.

    A table comes from its source raw: ``schema`` says what its columns are, and `preprocess` turns it into the columns
    that a model reads. A target that is a number keeps its unit; models learn `targets` and answer `predictions`.
    """

    name: str
    splits: Mapping[str, Split]
    task: TaskKind
    class_names: Names = ()  # empty for task="numbers"
    columns: Names = ()  # names of a table's model inputs, in order
    client_names: Names = ()  # name of natural owner i
    scale: tuple[float, ...] = ()  # model input = x * scale + shift, per channel; () = as stored
    shift: tuple[float, ...] = ()
    ignore: int = -100  # label that no loss and no metric counts
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
        """The rows that the server judges by."""
        return self.splits["test"]

    def with_splits(self, **changed: Split) -> Dataset:
        """The same with these splits in place of its own, or beside them."""
        return replace(self, splits={**self.splits, **changed})

    def with_inputs(self, made: Callable[[Tensor], Tensor]) -> Dataset:
        """The same with the inputs of every split made into others."""
        return self.with_splits(**{name: split._replace(x=made(split.x)) for name, split in self.splits.items()})

    @property
    def classes(self) -> int:
        """Number of classes; 0 where the target is a number."""
        return len(self.class_names)

    @property
    def uncounted(self) -> tuple[int, ...]:
        """Classes whose rows accuracy passes over: padding and the ends of sentences (M10)."""
        special = self.facts.get("special", {})
        return tuple(special[name] for name in ("pad", "bos", "eos") if name in special)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one row."""
        return tuple(self.train.x.shape[1:])

    def inputs(self, x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Stored rows -> what the model sees. Token ids stay integers."""
        if x.dtype == torch.int64:
            return x
        stored, x = x, x.to(dtype)
        if not self.scale:
            return x
        scale, shift = by_channel(self.scale, x), by_channel(self.shift, x)
        return x * scale + shift if x is stored else x.mul_(scale).add_(shift)  # in place only in a copy

    def targets(self, y: Tensor) -> Tensor:
        """Stored targets -> what the loss sees: numbers standardised, classes and tokens as they are."""
        return (y - self.target_mean) / self.target_sd if self.task == "numbers" else y

    def predictions(self, output: Tensor) -> Tensor:
        """A model's output -> a prediction in the target's own unit: the inverse of `targets`."""
        return output * self.target_sd + self.target_mean if self.task == "numbers" else output


class HeldRows(NamedTuple):
    """Rows of a split that one party holds, gathered whenever they are looked at."""

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
    """The assignment of training rows to clients. ``clients[k]`` are the indices of those that client k trains on (int64, ascending).

    This is the one place that says what a party's data are, and a party reaches them by its number alone (`RowSource`):
    where parties hold columns of the same rows, their names stand here beside the rows.
    """

    clients: tuple[np.ndarray, ...]
    left_out: int = 0  # training rows that no client holds
    info: Mapping[str, Any] = {}  # plain values for the record: realised fractions, owner names, transforms ...
    feature_skew: tuple[Mapping[str, float], ...] = ()  # per client: {"rotate": degrees, "noise": sd}; () = none
    kept: Mapping[
        str, Mapping[int, np.ndarray]
    ] = {}  # "validation", "held out": client -> its rows that no training sees
    counted: bool = False  # of rows that lie with their parties: what stands here says how many each has, and no more

    @property
    def sizes(self) -> list[int]:
        """Training rows of each client."""
        return [len(rows) for rows in self.clients]

    def parties(self, split: Split) -> list[HeldRows]:
        """The training rows of each client that has some; those who hold none have nothing to say of them."""
        return [HeldRows(split, rows) for rows in self.clients if len(rows)]

    def held(self, client: int) -> np.ndarray:
        """All rows of a client: those that it trains on, then those that it keeps out of training."""
        return np.concatenate([self.clients[client], *(rows[client] for rows in self.kept.values() if client in rows)])

"""What a party holds, and where the alignment left its rows.

The active party holds the label; all others are passive. A generator addresses both through the link and holds nothing of either.
After the alignment all parties speak of a row by its place 0, ..., N-1, the same at every party; ``order`` says which of its own rows
stands there.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedatlas.algorithm import Ask, Replies, State, Update
from fedatlas.errors import ProtocolError

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]


class Columns(NamedTuple):
    """What one party holds: its own rows in the order of its file, and nobody else's."""

    party: int  # its place in [[parties]]
    name: str
    active: int  # the place of the party that holds the label
    parties: tuple[str, ...]  # the names of all
    ids: tuple[str, ...]
    x: Floats  # (rows, columns), NaN = missing
    names: tuple[str, ...]  # of the columns
    y: Floats | None = None  # (rows,) at the active party: 0 or 1, or numbers in the label's unit
    weight: Floats | None = None  # (rows,) at the active party; None: all rows count alike
    task: str = ""  # "classes" or "numbers" at the active party
    seed: int = 0
    workers: int = 1  # processes for work with ciphertexts
    row_order: Literal["seed", "secret"] = "seed"  # what the key of the rows' order is made from


class PartyLeft(ProtocolError):
    """A party did not answer: what was begun comes to nothing, what was finished before holds."""


def order(state: State) -> Whole:
    """(N,) the party's own row at each aligned place; -1 where it has none."""
    found: Whole = state["align"]["order"].numpy()
    return found


def places(state: State, which: str) -> Whole:
    """The places, ascending, of the rows that "train", that are "held" out to stop by, or that "test"."""
    found: Whole = state["split"][which].numpy()
    return found


def aligned(data: Columns, state: State) -> Columns:
    """The party's columns in the order of the places; a row that it does not have is missing in all of them."""
    rows = order(state)
    x = data.x[rows]
    if (rows < 0).any():
        x[rows < 0] = np.nan
    y = None if data.y is None else data.y[rows]
    weight = None if data.weight is None else data.weight[rows]
    return data._replace(ids=(), x=x, y=y, weight=weight)


def each(ask: Ask, names: Sequence[str]) -> Generator[Ask, Replies, Mapping[int, Update]]:
    """The replies by party; PartyLeft where one of those asked did not answer."""
    replies = yield ask
    for k in ask.to:
        if k not in replies.each:
            raise PartyLeft(f"party '{names[k]}' left when it was asked for '{ask.what}'")
    return replies.each


def to_all(parties: Sequence[int], what: str, message: Mapping[str, Any] | None = None) -> Ask:
    """The same question to several parties."""
    return Ask(tuple(parties), what, dict.fromkeys(parties, message or {}), "each")


def tensor(values: Any) -> torch.Tensor:
    """An array as the codec carries it."""
    return torch.from_numpy(np.ascontiguousarray(values))

"""The data that a party holds, and its rows after alignment.

The active party holds the label; all others are passive. A generator addresses both through the link and holds none of
their data. After the alignment all parties refer to a row by its place 0, ..., N-1, which is the same at every party;
``order`` gives the party's own row at each place.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedatlas.algorithm import Ask, Replies, State, Update
from fedatlas.errors import ProtocolError

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]


def unheard(count: int) -> None:
    """Ignore how far the work is."""


class Columns(NamedTuple):
    """The data of one party: its own rows in the order of its file."""

    party: int  # its index in [[parties]]
    name: str
    active: int  # the index of the party that holds the label
    parties: tuple[str, ...]  # the names of all
    ids: tuple[str, ...]  # by the first key; "" = none
    x: Floats  # (rows, columns), NaN = missing
    names: tuple[str, ...]  # of the columns
    y: Floats | None = None  # (rows,) at the active party: 0 or 1, or numbers in the label's unit
    weight: Floats | None = None  # (rows,) at the active party; None: all rows count equally
    task: str = ""  # "classes" or "numbers" at the active party
    seed: int = 0
    workers: int = 1  # processes for work with ciphertexts
    row_order: Literal["seed", "secret"] = "seed"  # source of the key of the rows' order
    tick: Callable[[int], None] = unheard  # hears how many points were made since the last call
    classes: int = 0  # of the label at the active party; 0: a number
    later: tuple[tuple[str, ...], ...] = ()  # ids by the further keys of a linkage
    linked: bool = False  # whether an id may occur in several rows, which are then left out
    rules: int = 2  # rules for reading tables; by the first, a value that training never lacked goes left
    noised: Floats | None = (
        None  # (rows,) labels with noise, drawn before anything is computed; None: there is no noise
    )


class PartyLeft(ProtocolError):
    """A party did not answer, or its answer had another form. The round is lost, and earlier rounds are kept."""


def of_classes(classes: int) -> dict[str, int]:
    """Return what the coordinator's state says of the label's classes: how many there are, from three on."""
    return {"classes": classes} if classes > 2 else {}


def order(state: State) -> Whole:
    """Return (N,), the party's own row at each aligned place; -1 if it has none."""
    found: Whole = state["align"]["order"].numpy()
    return found


def places(state: State, which: str) -> Whole:
    """Return the places, ascending, of the "train", "held" (validation) or "test" rows."""
    found: Whole = state["split"][which].numpy()
    return found


def labels(data: Columns, state: State) -> Floats | None:
    """Return (N,), the label of each place: with its noise, if there is any, but for test rows; None without a label.

    Before the split all have their noise. A scheme reads labels here only, so that none without noise reaches it.
    """
    if data.y is None or data.noised is None:
        return None if data.y is None else data.y[order(state)]
    found = data.noised[order(state)]
    if "split" in state:
        test = places(state, "test")
        found[test] = data.y[order(state)[test]]
    return found


def true_labels(data: Columns) -> Columns:
    """Return the party with its labels as they are, for figures of a simulation."""
    return data._replace(noised=None)


def aligned(data: Columns, state: State) -> Columns:
    """Return the party's columns in the order of the places, with the `labels` of a scheme.

    All values of a row that the party lacks are missing.
    """
    rows = order(state)
    x = data.x[rows]
    if (rows < 0).any():
        x[rows < 0] = np.nan
    weight = None if data.weight is None else data.weight[rows]
    return data._replace(ids=(), x=x, y=labels(data, state), weight=weight, noised=None)


def each(ask: Ask, names: Sequence[str]) -> Generator[Ask, Replies, Mapping[int, Update]]:
    """Return the replies by party; PartyLeft if one of those asked did not answer."""
    replies = yield ask
    for k in ask.to:
        if k not in replies.each:
            raise PartyLeft(f"party '{names[k]}' left when it was asked for '{ask.what}'")
    return replies.each


def to_all(parties: Sequence[int], what: str, message: Mapping[str, Any] | None = None) -> Ask:
    """Ask several parties the same question."""
    return Ask(tuple(parties), what, dict.fromkeys(parties, message or {}), "each")


def tensor(values: Any) -> torch.Tensor:
    """Return an array as a tensor for the codec."""
    return torch.from_numpy(np.ascontiguousarray(values))

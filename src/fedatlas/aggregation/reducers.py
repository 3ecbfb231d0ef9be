"""Reducers: small records that turn the updates of an ask into one value, in the order of the clients' seats (C8).

    total <- add(total, lift(client, update, coefficient))   for every update, as they come;   close(total, closing) -> Reduced

Mean and sum are a monoid in float64 that holds one update's worth of memory, however many come. Coefficients are those that the
algorithm states (they sum to one for a mean), so nothing is divided afterwards and a single client's update comes out bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from fedatlas.aggregation.changes import Place, map_leaves
from fedatlas.algorithm import Mixing, Update
from fedatlas.errors import ProtocolError
from fedatlas.tree import Tree

BUFFERS = "buffers"  # statistics of batch norm: their integers are counters, of which the largest is taken (C9)

Coefficient = float | Mapping[str, float]
"""Of an update, or of each of its parts."""


class Closing(NamedTuple):
    """The facts that are known once all replies are in."""

    clients: tuple[int, ...]  # who answered, in the order of their seats
    mend: Callable[[str], float]  # part -> the factor that makes the mean of those asked one of those who answered
    mixing: Callable[[tuple[int, ...]], Mixing] | None  # of the ask


class Reduced(NamedTuple):
    """The outcome of an ask."""

    value: Update | None = None  # one for all, tensors in float64; None if nobody answered
    each: Mapping[int, Update] = {}  # one a client


class Reducer(NamedTuple):
    """How updates become one value. Integers of the part ``buffers`` are counters, others are whole numbers."""

    name: str
    lift: Callable[[int, Update, Coefficient], Any]
    add: Callable[[Any, Any], Any]  # of the total so far (None at first) and what was lifted
    close: Callable[[Any, Closing], Reduced]
    # Whether the server may look at single clients' updates: a task has to declare what it shows. Only who adds up says False.
    single: bool = True


def mean() -> Reducer:
    """sum_k p_k u_k with the ask's weights p_k, mended where clients asked were lost. Whole numbers have no mean."""

    def close(so_far: Update | None, closing: Closing) -> Reduced:
        if so_far is None:
            return Reduced()
        factors = {part: closing.mend(part) for part in so_far}
        return Reduced({part: scaled(value, factors[part]) for part, value in so_far.items()})

    return Reducer("mean", _weighted, lambda s, one: added(s, *one), close, single=False)


def total() -> Reducer:
    """sum_k u_k, of whole numbers exactly; of those who answered."""
    return Reducer(
        "sum", _weighted, lambda s, one: added(s, one[0], 1.0, whole=True), lambda s, _: Reduced(s), single=False
    )


def each() -> Reducer:
    """Every client's own update."""
    return Reducer("each", kept, collected, lambda held, _: Reduced(each=held or {}))


def neighbours() -> Reducer:
    """For each node the mix of what it hears, by the coefficients of ``mixing(those who answered)``: no server takes part."""

    def close(held: Mapping[int, Update] | None, closing: Closing) -> Reduced:
        if not held or closing.mixing is None:
            return Reduced()
        mixed: dict[int, Update] = {}
        for receiver, row in closing.mixing(closing.clients).items():
            so_far = None
            for sender in closing.clients:
                if sender in row:
                    so_far = added(so_far, held[sender], row[sender])
            mixed[receiver] = so_far or {}
        return Reduced(each={k: mixed[k] for k in closing.clients if k in mixed})

    return Reducer("neighbours", kept, collected, close, single=False)


def part_of(coefficients: Coefficient, part: str) -> float:
    """The coefficient of a part of an update; ``buffers`` and parts without one have that of ``model``, else of the first."""
    if not isinstance(coefficients, Mapping):
        return coefficients
    return coefficients.get(part, coefficients.get("model", next(iter(coefficients.values()))))


def added(so_far: Update | None, update: Update, coefficients: Coefficient, *, whole: bool = False) -> Update:
    """``so_far + coefficient * update`` in float64, with a mapping by part; ``so_far`` is used up.

    ProtocolError where the update has other parts than those before it: a part that some leave out has no mean. With ``whole``
    whole numbers are added up exactly; without, ProtocolError for tensors of them, but for counters of batch norm, of which the
    largest is taken.
    """
    if so_far is not None and so_far.keys() != update.keys():
        odd = sorted(so_far.keys() ^ update.keys())
        raise ProtocolError(f"updates to be added up differ in their parts: not every client sent '{odd[0]}'.")
    return {
        part: _add(
            None if so_far is None else so_far[part],
            value,
            part_of(coefficients, part),
            "largest" if part == BUFFERS else "sum" if whole else "none",
        )
        for part, value in update.items()
    }


class WeightedSum:
    """`added` as an object, for algorithms that add updates up themselves; holds one update's worth of memory."""

    def __init__(self) -> None:
        self.total: Any = None

    def add(self, update: Update, coefficients: Coefficient) -> None:
        """Adds ``coefficient * update``."""
        self.total = added(self.total, update, coefficients)


def _weighted(client: int, update: Update, coefficient: Coefficient) -> tuple[Update, Coefficient]:
    return update, coefficient


def kept(client: int, update: Update, coefficient: Coefficient) -> tuple[int, Update]:
    """A client's update in memory of its own."""
    return client, _copied(update)


def collected(held: dict[int, Update] | None, one: tuple[int, Update]) -> dict[int, Update]:
    """The updates by client; ``held`` is used up."""
    held = held or {}
    held[one[0]] = one[1]
    return held


def _copied(value: Any) -> Any:
    """The same in memory of its own: what a worker wrote is written over by the next."""

    def copy(path: Place, x: Any) -> Any:
        if isinstance(x, list | tuple):
            return [_copied(one) for one in x]
        return x.clone(memory_format=torch.contiguous_format) if isinstance(x, Tensor) else x

    return map_leaves(copy, value)


def scaled(value: Any, by: float) -> Any:
    """A part times a factor, float tensors in place; tensors of whole numbers stay as they are."""

    def scale(path: Place, x: Any) -> Any:
        if isinstance(x, Tensor):
            return x.mul_(by) if x.is_floating_point() else x
        return by * x

    return value if by == 1.0 else map_leaves(scale, value)


def _add(so_far: Any, value: Any, by: float, whole: Literal["largest", "sum", "none"]) -> Any:
    if isinstance(value, Mapping):
        out = {key: _add(None if so_far is None else so_far[key], x, by, whole) for key, x in value.items()}
        return Tree(out) if isinstance(value, Tree) else out
    if isinstance(value, Tensor):
        if not value.is_floating_point():
            if whole == "none":
                raise ProtocolError("updates hold whole numbers, which have no mean: ask for them with reduce='sum'.")
            if whole == "sum":
                return value.to(torch.int64, copy=True) if so_far is None else so_far + value.long()
            return value.clone() if so_far is None else torch.maximum(so_far, value)
        if so_far is None:
            return value.to(torch.float64, copy=True).mul_(by)
        return so_far.add_(value.double(), alpha=by)
    if whole == "sum" and isinstance(value, int):
        return value if so_far is None else so_far + value
    return (0.0 if so_far is None else so_far) + by * value

"""Reducers: small records that turn the updates of an ask into one value, in the order of the clients' seats (C8).

    total <- add(total, lift(client, update, coefficient))   for every update, as it arrives;   close(total, closing) -> Reduced

Mean and sum are a monoid in float64 that needs the memory of one update, for any number of them. Coefficients are stated by the
algorithm (they sum to one for a mean), so nothing is divided afterwards and a single client's update is returned bit-identical.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from fedatlas.aggregation.changes import Place, map_leaves
from fedatlas.algorithm import Mixing, Replies, Update
from fedatlas.errors import ProtocolError
from fedatlas.tree import Tree

BUFFERS = "buffers"  # statistics of batch norm: their integers are counters, and the largest is taken (C9)

Coefficient = float | Mapping[str, float]
"""Of an update, or of each of its parts."""


class Closing(NamedTuple):
    """The facts known once all replies have arrived."""

    clients: tuple[int, ...]  # those that answered, in the order of their seats
    mend: Callable[[str], float]  # part -> factor from the mean over those asked to the mean over those that answered
    mixing: Callable[[tuple[int, ...]], Mixing] | None  # for the ask


class Reduced(NamedTuple):
    """The outcome of an ask."""

    value: Update | None = None  # one for all, tensors in float64; None without answers
    each: Mapping[int, Update] = {}  # one per client


class Reducer(NamedTuple):
    """Rule for combining updates to one value. Integers of the part ``buffers`` are counters, others are whole numbers."""

    name: str
    lift: Callable[[int, Update, Coefficient], Any]
    add: Callable[[Any, Any], Any]  # of the total so far (None at first) and the lifted update
    close: Callable[[Any, Closing], Reduced]
    # Whether the server may see single clients' updates: a task must declare what it shows. Only pure sums set False.
    single: bool = True


def mean() -> Reducer:
    """sum_k p_k u_k with the ask's weights p_k, corrected if clients were lost. Whole numbers have no mean."""

    def close(so_far: Update | None, closing: Closing) -> Reduced:
        if so_far is None:
            return Reduced()
        factors = {part: closing.mend(part) for part in so_far}
        return Reduced({part: scaled(value, factors[part]) for part, value in so_far.items()})

    return Reducer("mean", _weighted, lambda s, one: added(s, *one), close, single=False)


def total() -> Reducer:
    """sum_k u_k over those that answered, exact for whole numbers."""
    return Reducer(
        "sum", _weighted, lambda s, one: added(s, one[0], 1.0, whole=True), lambda s, _: Reduced(s), single=False
    )


def each() -> Reducer:
    """Every client's own update."""
    return Reducer("each", kept, collected, lambda held, _: Reduced(each=held or {}))


def neighbours() -> Reducer:
    """For each node the mix of the updates it receives, by the coefficients of ``mixing(those that answered)``, without a server."""

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
    """Return the coefficient of a part of an update; ``buffers`` and parts without one have that of ``model``, else the first."""
    if not isinstance(coefficients, Mapping):
        return coefficients
    return coefficients.get(part, coefficients.get("model", next(iter(coefficients.values()))))


def added(so_far: Update | None, update: Update, coefficients: Coefficient, *, whole: bool = False) -> Update:
    """Return ``so_far + coefficient * update`` in float64, by part for a mapping; ``so_far`` is consumed.

    ProtocolError if the update has other parts than those before it, since a part that some omit has no mean. With ``whole``,
    whole numbers are added up exactly. Without it, tensors of whole numbers are a ProtocolError, except counters of batch norm, of
    which the largest is taken.
    """
    if so_far is not None and so_far.keys() != update.keys():
        odd = sorted(so_far.keys() ^ update.keys())
        raise ProtocolError(f"updates to be summed differ in their parts: not every client sent '{odd[0]}'.")
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
    """`added` as an object, for algorithms that sum updates themselves; needs the memory of one update."""

    def __init__(self) -> None:
        self.total: Any = None

    def add(self, update: Update, coefficients: Coefficient) -> None:
        """Add ``coefficient * update``."""
        self.total = added(self.total, update, coefficients)


def averaged(
    replies: Replies, parts: Mapping[int, Update], weights: Mapping[int, float], base: Update, where: str
) -> Any:
    """Return single updates as one, in float64: their sum by weights that sum to one, in order, or what the run's rule makes of them.

    ``parts``: client -> a part of what ``each`` gave. ``base``: what they have changed, {} for parts that are no changes. ``where``:
    what is averaged, for the record. None if the rule cannot judge so few: what is averaged then stays as it was.
    """
    if replies.combine is not None:
        return replies.combine(parts, weights, base, where)
    total = WeightedSum()
    for k, part in parts.items():
        total.add(part, weights[k])
    return total.total


def _weighted(client: int, update: Update, coefficient: Coefficient) -> tuple[Update, Coefficient]:
    return update, coefficient


def kept(client: int, update: Update, coefficient: Coefficient) -> tuple[int, Update]:
    """Return a client's update as a copy."""
    return client, _copied(update)


def collected(held: dict[int, Update] | None, one: tuple[int, Update]) -> dict[int, Update]:
    """Return the updates by client; ``held`` is consumed."""
    held = held or {}
    held[one[0]] = one[1]
    return held


def _copied(value: Any) -> Any:
    """Return a copy, since workers reuse their memory for the next update."""

    def copy(path: Place, x: Any) -> Any:
        if isinstance(x, list | tuple):
            return [_copied(one) for one in x]
        return x.clone(memory_format=torch.contiguous_format) if isinstance(x, Tensor) else x

    return map_leaves(copy, value)


def scaled(value: Any, by: float) -> Any:
    """Return a part times a factor, float tensors in place; tensors of whole numbers are unchanged."""

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
                raise ProtocolError("updates hold whole numbers, which have no mean: request them with reduce='sum'.")
            if whole == "sum":
                return value.to(torch.int64, copy=True) if so_far is None else so_far + value.long()
            return value.clone() if so_far is None else torch.maximum(so_far, value)
        if so_far is None:
            return value.to(torch.float64, copy=True).mul_(by)
        return so_far.add_(value.double(), alpha=by)
    if whole == "sum" and isinstance(value, int):
        return value if so_far is None else so_far + value
    return (0.0 if so_far is None else so_far) + by * value

"""The head of a masked ask: one table, the same for all clients, of what every client is told (P14).

    told             1 or m rows of 32     digest of a client's instructions (`told_to`); one row if all are told the same
    budgets          1 or m                its budget as a list, None if it is the experiment's
    weights          part -> [group, x]    x: 1 or m coefficients, float64; 1.0 if they follow the rows, which stay hidden
    lr, mean, sums   one value for all

A client finds its own line there and compares it with its request. The head's digest enters the key of every pair mask, so masks
cancel only among clients that were told the same. It also enters what clients sign before they help to open the sum.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from fedatlas.errors import ProtocolError
from fedatlas.privacy.secagg.keys import KEY
from fedatlas.privacy.secagg.messages import raw, table
from fedatlas.tree import Tree

TINY = 1e-2  # of the largest weight: a weight up to this hides nobody
T = TypeVar("T")
Known = dict[int, tuple[Any, bytes]]
"""id of an object -> (the object, held so that the id stays its own; its digest)."""
Pulls = tuple[tuple[float, ...], ...]
"""Sizes of the weights: one row per sum, one position per client."""


class Head(NamedTuple):
    """The table of what all clients of a masked ask are told. A column has one entry if all are alike, else one per position."""

    told: tuple[bytes, ...]
    budgets: tuple[Any, ...]
    weights: Mapping[str, tuple[str, tuple[float, ...]]]  # part -> (group, column)
    lr: float
    mean: bool
    sums: tuple[str, ...] = ()

    def plain(self) -> dict[str, Any]:
        """Return the form that the codec carries."""
        weights = {part: [group, torch.tensor(x, dtype=torch.float64)] for part, (group, x) in self.weights.items()}
        head = {"told": table(self.told, len(self.told), KEY), "budgets": list(self.budgets), "weights": weights}
        return {**head, "lr": self.lr, "mean": self.mean, "sums": list(self.sums)}

    def digest(self) -> bytes:
        """Return the 32 bytes that represent the head in keys and signatures."""
        return digest_of(self.plain())

    def line(self, position: int) -> dict[str, Any]:
        """Return the entries for one client, and for all."""
        weights = {part: [group, at(x, position), at(x, position)] for part, (group, x) in self.weights.items()}
        own = {"told": at(self.told, position), "budget": at(self.budgets, position), "weights": weights}
        return {**own, "lr": self.lr, "mean": self.mean, "sums": list(self.sums)}

    def pulls(self, clients: int) -> Pulls:
        """Return the weight of each position: by part, of all clients and of those with work to do."""
        budgets = [at(self.budgets, v) or () for v in range(clients)]
        busy = [all(x is None or x > 0 for x in budget[:3]) for budget in budgets]
        sizes = [[abs(at(column, v)) for v in range(clients)] for _, column in self.weights.values()]
        return tuple(tuple(x if work or each else 0.0 for x, work in zip(one, busy, strict=True))
                     for one in sizes for each in (True, False))  # fmt: skip


def heavy(pulls: Pulls, who: Iterable[int]) -> Iterator[set[int]]:
    """Yield, for each sum, those of ``who`` that add something noticeable to it. Weights of clients outside the sum hide nobody."""
    there = tuple(who)
    for row in pulls:
        least = TINY * max((row[v] for v in there), default=0.0)
        yield {v for v in there if row[v] > least}


def at(column: Sequence[Any], position: int) -> Any:
    """Return the entry of a position."""
    return column[position if len(column) > 1 else 0]


def column(values: Sequence[T]) -> tuple[T, ...]:
    """Return one entry if all are alike, else all entries."""
    return tuple(values[:1] if all(x == values[0] for x in values) else values)


def head_of(value: Any, clients: int) -> Head:
    """Return the head in a message. ProtocolError if it is not a head for this number of clients."""
    try:
        weights = {
            str(part): (str(group), tuple(float(w) for w in x.double().tolist()))
            for part, (group, x) in value["weights"].items()
        }
        told, sums = tuple(raw(row) for row in value["told"]), tuple(map(str, value["sums"]))
        budgets = tuple(None if b is None else [x if x is None else int(x) for x in b] for b in value["budgets"])
        found = Head(told, budgets, weights, float(value["lr"]), bool(value["mean"]), sums)
        columns = [told, budgets, *(x for _, x in weights.values())]
        good = bool(weights) and all(len(x) in {1, clients} for x in columns) and {len(row) for row in told} == {KEY}
        good = good and all(map(math.isfinite, (found.lr, *(w for _, x in weights.values() for w in x))))
        good = good and digest_of(found.plain()) == digest_of(value)  # no other fields or types
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        good = False
    if not good:
        raise ProtocolError("the server's table of what each client is told is cut short, or not of this protocol.")
    return found


def told_to(message: Any, anchor: Any, visits: int, architecture: str, clients: int, rows: int) -> dict[str, Any]:
    """Return what a client is told to work on, as one value. ``clients`` and ``rows`` count the whole federation's."""
    known = {"visits": visits, "architecture": architecture, "clients": clients, "rows": rows}
    return {"message": message, "anchor": anchor, **known}


def line_told(asked: Any, known: Known) -> tuple[bytes, Any, float]:
    """Return what a client's line of the head has to say of a request: digest of what it is told, budget and rate.

    ``asked`` is a `federation.link.Request`.
    """
    told = told_to(asked.message, asked.anchor, asked.visits, asked.architecture, asked.K, asked.n)
    return digest_of(told, known), None if asked.budget is None else [*asked.budget], asked.lr


def digest_of(value: Any, known: Known | None = None) -> bytes:
    """Return SHA-256 of a value of the codec, the same on both sides of a link. ``known`` keeps digests of large objects."""
    known = {} if known is None else known
    if isinstance(value, Tensor | Mapping) and id(value) in known:
        return known[id(value)][1]
    if isinstance(value, Tensor):
        found = hashlib.sha256(json.dumps([str(value.dtype), *value.shape]).encode())
        found.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    elif isinstance(value, Mapping):
        found = hashlib.sha256(b"tree" if isinstance(value, Tree) else b"mapping")
        for name in sorted(value):
            found.update(digest_of(name) + digest_of(value[name], known))
    elif isinstance(value, list | tuple):
        found = hashlib.sha256(b"list" + b"".join(digest_of(one, known) for one in value))
    else:
        found = hashlib.sha256(b"value" + json.dumps(value).encode())
    if isinstance(value, Tensor | Mapping):
        known[id(value)] = value, found.digest()
    return found.digest()

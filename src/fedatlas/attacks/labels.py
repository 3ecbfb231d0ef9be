"""Label flipping: which classes change places, for whom (A4).

A relabelling is a permutation of the classes, or a map of some onto others, that is applied once to a client's labels: chained swaps
cannot undo each other.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor

from fedatlas.rng import numpy_stream

Pairs = tuple[tuple[int, int], ...]
Kind = Literal["swap", "flip"]
Draw = Literal["fixed", "random"]


def attacked(pairs: Pairs) -> tuple[int, ...]:
    """The classes that stand in any pair, ascending."""
    return tuple(sorted({c for pair in pairs for c in pair}))


def pairs_of(pairs: Pairs, draw: Draw, seed: int, table: int, client: int) -> Pairs:
    """The pairs of one attacker: those of the table, or a matching of their classes drawn for it alone, all equally likely."""
    if draw == "fixed":
        return pairs
    order = numpy_stream(seed, "attack", "pairs", table, client).permutation(attacked(pairs))
    return tuple((int(a), int(b)) for a, b in zip(order[::2], order[1::2], strict=True))


def mapping(pairs: Pairs, kind: Kind, classes: int) -> Tensor:
    """class -> the class it is taken for, (classes,): a <-> b for a swap, a -> b for a flip."""
    to = torch.arange(classes)
    for a, b in pairs:
        to[a] = b
        if kind == "swap":
            to[b] = a
    return to


def relabelled(y: Tensor, pairs: Pairs, kind: Kind) -> Tensor:
    """Labels, (rows,) or (rows, positions), under a relabelling; in memory of their own."""
    most = int(max((*attacked(pairs), int(y.max()) if y.numel() else 0))) + 1
    to = mapping(pairs, kind, most)
    return torch.where(y >= 0, to[y.clamp(min=0)], y)  # what is below 0 is no class


def odd_class(pairs: Pairs, classes: int) -> int | None:
    """A class of the pairs that the data lack; None where there is none."""
    return next((c for c in attacked(pairs) if c >= classes), None)


def repeated(pairs: Iterable[tuple[int, int]]) -> int | None:
    """A class that stands in two pairs, or twice in one; None where there is none."""
    seen: set[int] = set()
    for a, b in pairs:
        for c in (a, b):
            if c in seen:
                return c
            seen.add(c)
    return None

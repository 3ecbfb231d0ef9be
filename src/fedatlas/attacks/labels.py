"""Label flipping: the classes that are exchanged, and by whom (A4).

A relabelling is a permutation of the classes, or a map of some onto others, applied once to a client's labels, so chained swaps
cannot undo each other.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedatlas.rng import numpy_stream

ClassPairs = tuple[tuple[int, int], ...]
FlipKind = Literal["swap", "flip"]
PairDraw = Literal["fixed", "random"]


class Flip(NamedTuple):
    """The classes whose labels are exchanged."""

    pairs: ClassPairs | Literal["extra_SC", "intra_SC"]  # the words select pairs of CIFAR-100's superclasses
    kind: FlipKind
    draw: PairDraw = "fixed"

    @property
    def numbers(self) -> ClassPairs:
        """The pairs as class numbers; empty for a word that is not yet resolved."""
        return () if isinstance(self.pairs, str) else self.pairs

    @property
    def classes(self) -> tuple[int, ...]:
        """The classes in any pair, ascending."""
        return classes_in(self.numbers)

    @property
    def wanted(self) -> ClassPairs:
        """(class, the class it should be mistaken for): both ways for a swap; empty if each attacker draws separate pairs."""
        back = tuple((b, a) for a, b in self.numbers if self.kind == "swap")
        return () if self.draw == "random" else (*self.numbers, *back)

    def relabelled(self, y: Tensor, seed: int, table: int, client: int) -> Tensor:
        """Return the labels that a client trains on."""
        return relabelled(y, pairs_of(self.numbers, self.draw, seed, table, client), self.kind)

    def refusal(self, where: str) -> str:
        """Return why the classes cannot be exchanged, as a sentence about the table ``where``; "" if they can."""
        if isinstance(self.pairs, str):
            if (self.pairs, self.draw) != ("intra_SC", "random"):
                return ""
            return f'{where}.draw = "random": this version draws pairs inside superclasses only once; set "fixed".'
        if not self.pairs:
            return f"{where}.pairs: name the classes to exchange, as in [[5, 3]]."
        shown = f"{where}.pairs = {[list(pair) for pair in self.pairs]}"
        for a, b in self.pairs:
            if a == b:
                return f"{shown}: [{a}, {b}] changes nothing; pair two classes."
        whole = self.kind == "swap" or self.draw == "random"
        changed = [c for pair in self.pairs for c in (pair if whole else pair[:1])]
        twice = [c for c in changed if changed.count(c) > 1]
        return f"{shown}: class {twice[0]} occurs twice; name it once." if twice else ""


def classes_in(pairs: ClassPairs) -> tuple[int, ...]:
    """Return the classes in any pair, ascending."""
    return tuple(sorted({c for pair in pairs for c in pair}))


def pairs_of(pairs: ClassPairs, draw: PairDraw, seed: int, table: int, client: int) -> ClassPairs:
    """Return the pairs of one attacker: the table's, or a matching of their classes drawn for this attacker, all equally likely."""
    if draw == "fixed":
        return pairs
    order = numpy_stream(seed, "attack", "pairs", table, client).permutation(classes_in(pairs))
    return tuple((int(a), int(b)) for a, b in zip(order[::2], order[1::2], strict=True))


def mapping(pairs: ClassPairs, kind: FlipKind, classes: int) -> Tensor:
    """Return class -> the class it is relabelled as, (classes,): a <-> b for a swap, a -> b for a flip."""
    to = torch.arange(classes)
    for a, b in pairs:
        to[a] = b
        if kind == "swap":
            to[b] = a
    return to


def relabelled(y: Tensor, pairs: ClassPairs, kind: FlipKind) -> Tensor:
    """Return labels, (rows,) or (rows, positions), under a relabelling, as a copy."""
    most = int(max((*classes_in(pairs), int(y.max()) if y.numel() else 0))) + 1
    to = mapping(pairs, kind, most).to(y.device)
    return torch.where(y >= 0, to[y.clamp(min=0)], y)  # values below 0 are not classes

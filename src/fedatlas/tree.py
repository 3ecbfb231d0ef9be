"""Named tensors that behave like one vector."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

Tensors = Mapping[str, Tensor]
"""Tensors by name."""


class Tree(dict[str, Tensor]):
    """A dict of tensors with vector arithmetic, name by name.

    Arithmetic returns a new Tree and never changes an operand. Two trees in one expression must have the same names.
    """

    def map(self, f: Callable[..., Tensor], *others: Tensors) -> Tree:
        """Apply ``f`` to every tensor, together with those of the same name in ``others``."""
        for other in others:
            if other.keys() != self.keys():
                odd = sorted(self.keys() ^ other.keys())
                raise ValueError(f"trees differ in their names: {', '.join(odd[:5])}")
        return Tree({name: f(x, *(other[name] for other in others)) for name, x in self.items()})

    def __add__(self, other: Tensors) -> Tree:
        return self.map(torch.add, other)

    def __sub__(self, other: Tensors) -> Tree:
        return self.map(torch.sub, other)

    def __mul__(self, by: float | Tensor | Tensors) -> Tree:
        if isinstance(by, Mapping):
            return self.map(torch.mul, by)
        return self.map(lambda x: x * by)

    __rmul__ = __mul__

    def __truediv__(self, by: float | Tensor | Tensors) -> Tree:
        if isinstance(by, Mapping):
            return self.map(torch.div, by)
        return self.map(lambda x: x / by)

    def __neg__(self) -> Tree:
        return self.map(torch.neg)

    def to(self, dtype: torch.dtype) -> Tree:
        """Convert floating tensors to another precision; integers stay as they are."""
        return self.map(lambda x: x.to(dtype) if x.is_floating_point() else x)

    def clone(self) -> Tree:
        """Return a copy that shares no memory."""
        return self.map(torch.clone)

    def zeros(self) -> Tree:
        """Return zeros of the same shapes."""
        return self.map(torch.zeros_like)

    def dot(self, other: Tensors) -> float:
        """Return the inner product over all tensors, computed in float64."""
        return sum(float((x.double() * other[name].double()).sum()) for name, x in self.items())

    def norm(self) -> float:
        """Return the Euclidean norm of the flattened tree, computed in float64."""
        return float(self.dot(self) ** 0.5)

    def flatten(self) -> Tensor:
        """Return all tensors concatenated to one vector, of the widest dtype among them."""
        return torch.cat([x.reshape(-1) for x in self.values()]) if self else torch.empty(0)

    def unflatten(self, vector: Tensor) -> Tree:
        """Invert `flatten`, with this tree's names, shapes and dtypes."""
        out, at = Tree(), 0
        for name, x in self.items():
            out[name] = vector[at : at + x.numel()].reshape(x.shape).to(x.dtype)
            at += x.numel()
        return out

    def size(self) -> int:
        """Return how many numbers the tensors hold."""
        return sum(x.numel() for x in self.values())


def stack(trees: Iterable[Tensors]) -> Tree:
    """Stack trees of the same shapes into one tree with a leading axis."""
    trees = list(trees)
    return Tree({name: torch.stack([tree[name] for tree in trees]) for name in trees[0]})

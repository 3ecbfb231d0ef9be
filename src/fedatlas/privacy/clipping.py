"""One clip over all parts of an update: the sensitivity of what is summed.

`fedatlas.transforms.clip` bounds each part by itself; a client that sends two parts then moves the sum by up to
sqrt(2) times the bound. Here all numbers of an update are one vector, and whatever is no tree of finite floating-point
numbers is refused, since it would leave without noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from fedatlas.algorithm import Update
from fedatlas.errors import PrivacyError
from fedatlas.tree import Tree

# A norm of millions of float64 numbers is right to about 1e-13: a clipped vector is made this much shorter, so that
# the bound holds for the numbers as they are and not only up to rounding.
MARGIN = 1 - 2.0**-40


def vector(update: Update) -> Tensor:
    """All numbers of an update as one vector in float64; PrivacyError for anything that is no tree of finite floats."""
    trees = [tree.flatten().double() for _, tree in parts(update)]
    x = torch.cat(trees) if trees else torch.empty(0, dtype=torch.float64)
    if not bool(torch.isfinite(x).all()):
        raise PrivacyError(
            "an update holds numbers that are not finite: it has no norm to clip, so it must be left out."
        )
    return x


def rebuilt(update: Update, x: Tensor) -> dict[str, Any]:
    """The inverse of `vector`: the numbers of ``x`` in the shapes of ``update``, float64."""
    out: dict[str, Any] = {}
    at = 0
    for key, item in update.items():
        size = sum(tree.size() for _, tree in parts({key: item}))
        piece = x[at : at + size]
        out[key] = item.to(torch.float64).unflatten(piece) if isinstance(item, Tree) else rebuilt(item, piece)
        at += size
    return out


def clipped(update: Update, bound: float, order: Literal[1, 2] = 2) -> Update:
    """x min(1, bound / ||x||), x all numbers of ``update``, trees in float64; order: of the norm, 2 for Gaussian, 1 for Laplace noise.

    A vector within the bound keeps its numbers to the bit. PrivacyError for numbers that are not finite, and other
    content than trees of floats.
    """
    x = vector(update)
    length = float(torch.linalg.vector_norm(x, order))
    if math.isinf(length):  # squares of finite numbers that overflow
        raise PrivacyError("an update is too long to be clipped: it must be left out.")
    return rebuilt(update, x if length <= bound else x * (bound / length * MARGIN))


def as_before(released: Update, like: Update) -> dict[str, Any]:
    """``released`` in the precisions of ``like``: what crosses is as large as without a mechanism."""
    return {
        key: item.map(lambda x, old: x.to(old.dtype), like[key])
        if isinstance(item, Tree)
        else as_before(item, like[key])
        for key, item in released.items()
    }


def parts(update: Update, path: str = "") -> Iterator[tuple[str, Tree]]:
    """(path, tree) of all parts; PrivacyError for whatever is no tree of floating-point numbers."""
    for key, item in update.items():
        here = f"{path}/{key}" if path else key
        if isinstance(item, Tree):
            if not all(x.is_floating_point() for x in item.values()):
                raise PrivacyError(f"'{here}' of an update holds whole numbers, to which no noise can be added.")
            yield here, item
        elif isinstance(item, Mapping):
            yield from parts(item, here)
        else:
            raise PrivacyError(f"'{here}' of an update is no tree of tensors: it would leave without noise.")

"""One clip over all parts of an update: the sensitivity of what is summed.

`fedatlas.transforms.clip` bounds each part by itself; a client that sends two parts then moves the sum by up to
sqrt(2) times the bound. Here all numbers of an update form one vector. Anything but a tree of finite floating-point
numbers is refused, since it would be sent without noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from fedatlas.aggregation.changes import flat, leaves, map_leaves, rebuilt
from fedatlas.algorithm import Update
from fedatlas.errors import PrivacyError
from fedatlas.tree import Tree

# The norm of millions of float64 numbers is accurate to about 1e-13. A clipped vector is made this much shorter, so that
# the bound holds for the stored numbers and not only up to rounding.
MARGIN = 1 - 2.0**-40


def vector(update: Update) -> Tensor:
    """Return all numbers of an update as one vector in float64; PrivacyError for anything but a tree of finite floats."""
    check(update)
    x = flat(update)
    if not bool(torch.isfinite(x).all()):
        raise PrivacyError(
            "an update holds numbers that are not finite: it has no norm to clip, so it must be left out."
        )
    return x


def clipped(update: Update, bound: float, order: Literal[1, 2] = 2) -> Update:
    """Return x min(1, bound / ||x||) as float64 trees, x being all numbers of ``update``. ``order`` of the norm: 2 Gaussian, 1 Laplace.

    A vector within the bound keeps its numbers bit by bit. PrivacyError for numbers that are not finite, and for anything other
    than trees of floats.
    """
    x = vector(update)
    length = float(torch.linalg.vector_norm(x, order))
    if math.isinf(
        length
    ):  # the squares, or the sum, of finite numbers can overflow: the direction is the same in units of the largest
        x = x / x.abs().max()
        return changed(update, x * (bound / float(torch.linalg.vector_norm(x, order)) * MARGIN))
    return changed(update, x if length <= bound else x * (bound / length * MARGIN))


def changed(update: Update, x: Tensor) -> Update:
    """Return the inverse of `vector`: the numbers of ``x`` in the shapes of ``update``, float64."""
    out: Update = rebuilt(x, update)
    return out


def in_precision(value: Update, like: Update) -> Update:
    """Return ``value`` with floating tensors in the precision that they have in ``like``."""
    kinds = {path: x.dtype for path, x in leaves(like) if isinstance(x, Tensor)}
    out: Update = map_leaves(lambda path, x: x.to(kinds[path]) if isinstance(x, Tensor) and path in kinds else x, value)
    return out


def check(update: Update, path: str = "") -> None:
    """Raise PrivacyError for a part that is not a tree of floating-point numbers."""
    for key, item in update.items():
        here = f"{path}/{key}" if path else key
        if isinstance(item, Tree):
            values: list[Any] = [*item.values()]  # of a client that keeps no rules
            if not all(isinstance(x, Tensor) and x.is_floating_point() for x in values):
                raise PrivacyError(f"'{here}' of an update holds other than floats, to which no noise can be added.")
        elif isinstance(item, Mapping):
            check(item, here)
        else:
            raise PrivacyError(f"'{here}' of an update is no tree of tensors: it would leave without noise.")

"""The learning rate from which a quadratic penalty by itself makes local work diverge, for any data.

A penalty (c/2) |w - w_t|^2 adds c (w - w_t) to a step's gradient. With momentum b the step on the penalty alone is a linear map
of (w, u); both its eigenvalues are inside the unit circle as long as eta c < 2 (1 + b), in Nesterov's form as long as
eta c < 2 (1 + b) / (1 + 2b). The data's convexity only adds to c.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedatlas.algorithm import Check


def diverges_from(c: float, momentum: float = 0.0, nesterov: bool = False) -> float:
    """Return the least learning rate of SGD at which (c/2) |w - w_t|^2, c > 0, no longer draws w to w_t."""
    return 2 / c * (1 + momentum) / (1 + 2 * momentum if nesterov else 1)


def penalty_check(c: float, *, by_size: bool = False) -> Check | None:
    """Return `Algorithm.check` of a method that adds c (w - w_t) to its local steps; None for c = 0.

    ``by_size``: for a client of n_k rows it is c (n/K) / n_k, so the smallest client diverges first.
    """

    def check(keys: Mapping[str, Any], sizes: Sequence[int] | None) -> str:
        if keys["local.optimizer"] != "sgd":
            return ""
        lr, limit = keys["local.lr"], diverges_from(c, keys["local.momentum"], keys["local.nesterov"])
        if by_size:
            return of_smallest(keys["algorithm.name"], lr, limit, sizes or ())
        if lr < limit:
            return ""
        momentum = f" and local.momentum = {keys['local.momentum']:g}" if keys["local.momentum"] else ""
        nesterov = " (Nesterov's)" if keys["local.nesterov"] else ""
        return (
            f"local.lr = {lr:g}: '{keys['algorithm.name']}' diverges from {limit:g} on with its parameters{momentum}{nesterov}; "
            "lower local.lr or the penalty's weight."
        )

    return check if c else None


def of_smallest(name: str, lr: float, limit: float, sizes: Sequence[int]) -> str:
    """Return the message for the client with the fewest rows above zero; ``limit`` is that of a client of mean size."""
    held = {k: n for k, n in enumerate(sizes) if n}
    if not held:
        return ""
    k, mean = min(held, key=held.__getitem__), sum(sizes) / len(sizes)
    limit *= held[k] / mean
    if lr < limit:
        return ""
    return (
        f"local.lr = {lr:g}: client {k}, with {held[k]} rows where the mean is {mean:.4g}, diverges from {limit:.4g} on "
        f"under '{name}'; lower local.lr or the penalty's weight, or raise partition.min_size."
    )

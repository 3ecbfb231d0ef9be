"""The sum of P3: changes that the server has clipped, with a fixed denominator instead of the number of clients that came."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fedatlas.aggregation.reducers import Reduced, Reducer, added, part_of
from fedatlas.algorithm import Algorithm, Round, Transform, Update, Weights
from fedatlas.errors import PrivacyError
from fedatlas.privacy.ask_protocol import Place, mended
from fedatlas.privacy.central_dp.adaptive_clip import WITHIN, counted
from fedatlas.privacy.clipping import clipped, in_precision, vector
from fedatlas.privacy.mechanism import Protection
from fedatlas.privacy.noise import noised
from fedatlas.transforms.change import decoded


def shortened(changes: Update, clip: float) -> Update:
    """Return a client's changes within the bound, in their precision."""
    return in_precision(clipped(changes, clip), changes)


def clipped_sum(clip: float, transform: Transform | None) -> Reducer:
    """Return the sum of changes, each clipped by the server, since no client is trusted to have done it."""

    def lift(client: int, update: Update, coefficient: float | Mapping[str, float]) -> Update | None:
        try:
            return clipped(decoded(transform, update), clip)
        except PrivacyError:  # it has no norm: the sum continues without it, since its denominator is fixed
            return None

    def add(so_far: Update | None, one: Update | None) -> Update | None:
        return so_far if one is None else added(so_far, one, 1.0)

    return Reducer("clipped sum", lift, add, lambda total, _: Reduced(total), single=False)


def counted_sum(clip: float, transform: Transform | None) -> Reducer:
    """Return the clipped sum with a part more: the sum of b_k - 1/2, of those within the bound as they say."""
    plain = clipped_sum(clip, transform)

    def lift(client: int, update: Update, coefficient: float | Mapping[str, float]) -> Update | None:
        changes = {part: x for part, x in update.items() if part != WITHIN}
        one = plain.lift(client, changes, coefficient)
        return None if one is None else {**one, WITHIN: counted(update)}

    return plain._replace(lift=lift)


def within(changes: Update, clip: float) -> bool:
    """Return whether a client's change is within the bound."""
    return float(torch.linalg.vector_norm(vector(changes))) <= clip


def mean_of(value: Update, std: float, how: Protection, place: Place, algorithm: Algorithm) -> Update:
    """Return (sum + N(0, std^2 I)) / (q K). A part with another coefficient is multiplied by that one instead."""
    return averaged(noised(value, std, how.noise, "central_dp", place.round, place.number), how, algorithm)


def averaged(total: Update, how: Protection, algorithm: Algorithm) -> Update:
    """Return a sum over (q K), part by part."""
    counts = coefficients(how, algorithm)
    return mended(total, lambda part: part_of(counts, part))


def coefficient(rate: float, clients: int) -> float:
    """Return 1 / (q K): the weight of each clipped change in the mean, regardless of who came."""
    return 1 / (rate * clients)


def coefficients(how: Protection, algorithm: Algorithm) -> dict[str, float]:
    """Return the coefficient of each part of a sum: 1 / (q K) instead of a mean over those who came.

    It is found by calling `Algorithm.weigh` for three of seven clients of different sizes. PrivacyError if weights follow the data.
    """
    sizes = {0: 5, 1: 11, 2: 2}
    found: Weights = algorithm.weigh(Round(1, (0, 1, 2), 7, 50, sizes))
    parts = found if all(isinstance(x, Mapping) for x in found.values()) else {"model": found}
    out = {}
    for part, given in parts.items():
        if len({*given.values()}) != 1:  # type: ignore[union-attr]
            raise PrivacyError(
                "weights that follow the data have no fixed sensitivity: use algorithm.weights = 'uniform'."
            )
        one: Any = given[0]  # type: ignore[index]
        out[str(part)] = 1 / how.K if abs(float(one) - 1 / 7) < 1e-12 else coefficient(how.fraction, how.K)
    return out

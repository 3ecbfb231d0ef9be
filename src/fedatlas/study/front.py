"""Pareto fronts, one a setting: the choices that no other one beats in quality, CPU-seconds and bytes together (X12).

Each choice's chance of standing on the front comes from draws of the noise between paired seeds: of quality with its covariance
over choices, of CPU-seconds on the log scale. Bytes are computed, and exact.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedatlas.rng import numpy_stream
from fedatlas.study.effects import Noise, noise_between, root_of
from fedatlas.study.measurements import Floats, Study, by_cell, choice_names, setting_names

DRAWS = 10_000


class Member(NamedTuple):
    """A choice in a setting: means over the seeds, whether they stand on the front, and the chance (None with one seed) that it does."""

    choice: str
    quality: float
    cpu_seconds: float
    bytes: float
    on_front: bool
    chance: float | None


def not_dominated(better: Floats) -> NDArray[np.bool_]:
    """(..., n) which of n points no other one beats: ``better`` (..., n, k) holds k figures of which more is better.

    A point beats another where it is as good in all figures and better in one.
    """
    shape = (*better.shape[:-1], better.shape[-2])
    as_good, better_once = np.ones(shape, bool), np.zeros(shape, bool)
    for k in range(better.shape[-1]):  # figure by figure, because an axis of three is slow to reduce
        one, other = better[..., :, None, k], better[..., None, :, k]
        as_good &= other >= one
        better_once |= other > one
    return np.asarray(~(as_good & better_once).any(axis=-1))


def fronts(
    study: Study, quality: str = "accuracy", *, rounds: int | None = None, seed: int = 0, draws: int = DRAWS
) -> dict[tuple[str, ...], list[Member]]:
    """setting -> its choices, those on the front first, then by quality; after ``rounds``, or each run's last."""
    values = by_cell(study, quality, rounds)
    seconds = by_cell(study, "cpu_seconds", rounds)
    logs = np.log(np.where(seconds > 0, seconds, np.nan))
    sent = by_cell(study, "bytes", rounds)
    noises = noise_between(values), noise_between(logs)
    chosen, found = choice_names(study), {}
    for i, name in enumerate(setting_names(study)):
        there = np.flatnonzero(np.isfinite(values[i] + logs[i] + sent[i]).any(axis=1))
        means = [np.array([np.nanmean(kind[i, j]) for j in there]) for kind in (values, logs, sent)]
        for one, other in _twins(study, chosen, there):
            means[0][one] = means[0][other]  # equal by construction, but for the rounding of masks
        front = not_dominated(np.stack([means[0], -means[1], -means[2]], axis=-1))
        chance: list[float | None] = [None] * len(there)
        if min(noise.df for noise in noises) > 0 and len(there):
            counts = [np.isfinite(kind[i, there]) for kind in (values, logs)]
            stream = numpy_stream(seed, "front", *name)
            drawn = [_draw(m, n, c, there, draws, stream) for m, n, c in zip(means[:2], noises, counts, strict=True)]
            for one, other in _twins(study, chosen, there):
                drawn[0][:, one] = drawn[0][:, other]
            fixed = np.broadcast_to(-means[2], drawn[0].shape)
            on = not_dominated(np.stack([drawn[0], -drawn[1], fixed], axis=-1))
            chance = [float(x) for x in on.mean(axis=0)]
        members = [
            Member(chosen[j], float(q), float(np.exp(s)), float(b), bool(on_front), c)
            for j, q, s, b, on_front, c in zip(there, *means, front, chance, strict=True)
        ]
        found[name] = sorted(members, key=lambda member: (not member.on_front, -member.quality, member.choice))
    return found


def _twins(study: Study, chosen: list[str], there: NDArray[np.intp]) -> list[tuple[int, int]]:
    """(place, place of the choice whose quality it has by construction) among the choices of a setting."""
    names = [chosen[j] for j in there]
    return [(names.index(a), names.index(b)) for a, b in study.twins.items() if a in names and b in names]


def _draw(
    means: Floats,
    noise: Noise,
    there: NDArray[np.bool_],
    choices: NDArray[np.intp],
    draws: int,
    stream: np.random.Generator,
) -> Floats:
    """(draws, choices) means over the seeds that each choice has, with the noise that they have in common."""
    both = there.astype(float) @ there.astype(float).T
    number = there.sum(axis=1)
    covariance = noise.covariance[np.ix_(choices, choices)] * both / (number[:, None] * number[None, :])
    drawn: Floats = means + stream.standard_normal((draws, len(means))) @ root_of(covariance).T
    return drawn

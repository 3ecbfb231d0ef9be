"""Pareto fronts, one per setting: the choices that no other one dominates in quality, CPU-seconds and bytes together (X12).

The axes are the responses whose record says ``front``. Each choice's chance of being on the front comes from draws of the noise
between paired seeds, with the setting's own covariance over choices (`study.seed_noise`), for costs on the log scale. Computed
responses are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedatlas.rng import numpy_stream
from fedatlas.study.measurements import Bools, Floats, Ints, Measurements, Setting
from fedatlas.study.responses import RESPONSES, which
from fedatlas.study.seed_noise import SeedNoise, noise_between, root_of
from fedatlas.study.test_rows import drawn_shares

DRAWS = 10_000


class FrontChoice(NamedTuple):
    """A choice in a setting: means over the seeds, whether they are on the front, and the chance of it (None with one seed)."""

    choice: str
    values: dict[str, float]  # response -> mean
    on_front: bool
    chance: float | None


class FrontAxis(NamedTuple):
    """A response of the front, as drawn and compared."""

    name: str
    values: Floats  # (settings, choices, seeds), costs with noise as logarithms
    noise: SeedNoise | None  # None: exact
    sign: float  # 1.0 if more is better, else -1.0
    log: bool

    def shown(self, value: float) -> float:
        """Return a mean in the response's own unit."""
        return float(np.exp(value) if self.log else value)


def not_dominated(better: Floats) -> Bools:
    """Return (..., n) which of n points no other dominates; ``better`` (..., n, k) holds k figures, more is better.

    A point dominates another if it is at least as good in all figures and better in one.
    """
    shape = (*better.shape[:-1], better.shape[-2])
    as_good, better_once = np.ones(shape, bool), np.zeros(shape, bool)
    for k in range(better.shape[-1]):  # one figure at a time, because reducing an axis of length three is slow
        one, other = better[..., :, None, k], better[..., None, :, k]
        as_good &= other >= one
        better_once |= other > one
    return np.asarray(~(as_good & better_once).any(axis=-1))


def axes_of(study: Measurements) -> list[FrontAxis]:
    """Return the responses that decide a front."""
    found = []
    for name in which(front=True):
        one, values = RESPONSES[name], study.by_cell(name)
        log = one.scale == "log" and not one.exact
        values = np.log(np.where(values > 0, values, np.nan)) if log else values
        noise = None if one.exact else noise_between(values, drawn_shares(study, name))
        found.append(FrontAxis(name, values, noise, 1.0 if one.more else -1.0, log))
    return found


def fronts(study: Measurements, *, seed: int = 0, draws: int = DRAWS) -> dict[Setting, list[FrontChoice]]:
    """Return setting -> its choices, those on the front first, then by quality."""
    axes, chosen, found = axes_of(study), study.choice_names(), {}
    known = np.sum([axis.values for axis in axes], axis=0)
    noisy = all(axis.noise.df > 0 for axis in axes if axis.noise)
    for i, name in enumerate(study.setting_names()):
        there = np.flatnonzero(np.isfinite(known[i]).any(axis=1))
        twins = study.pairs([chosen[j] for j in there])
        means = [_equal(np.array([np.nanmean(axis.values[i, j]) for j in there]), axis, twins) for axis in axes]
        front = not_dominated(np.stack([axis.sign * x for axis, x in zip(axes, means, strict=True)], axis=-1))
        chance: Sequence[float | None] = [None] * len(there)
        if noisy and len(there):
            stream = numpy_stream(seed, "front", *name)
            drawn = [
                axis.sign * _equal(_draw(axis, x, there, i, draws, stream), axis, twins)
                for axis, x in zip(axes, means, strict=True)
            ]
            chance = [float(x) for x in not_dominated(np.stack(drawn, axis=-1)).mean(axis=0)]
        rows = [
            FrontChoice(chosen[j], {a.name: a.shown(x[k]) for a, x in zip(axes, means, strict=True)}, bool(front[k]), c)
            for k, (j, c) in enumerate(zip(there, chance, strict=True))
        ]
        found[name] = sorted(
            rows, key=lambda one: (not one.on_front, -axes[0].sign * one.values[axes[0].name], one.choice)
        )
    return found


def _equal(values: Floats, axis: FrontAxis, twins: Sequence[tuple[int, int]]) -> Floats:
    """Return values (..., choices) with the qualities of twins made equal, as they are by construction up to rounding of masks."""
    for one, other in twins if RESPONSES[axis.name].quality else ():
        values[..., one] = values[..., other]
    return values


def _draw(axis: FrontAxis, means: Floats, there: Ints, i: int, draws: int, stream: np.random.Generator) -> Floats:
    """Return (draws, choices) means over the seeds of each choice, with the noise that choices share."""
    if axis.noise is None:
        return np.broadcast_to(means, (draws, len(means)))
    covariance = axis.noise.of(i)[np.ix_(there, there)] * axis.noise.of_means(i, np.isfinite(axis.values[i, there]))
    drawn: Floats = means + stream.standard_normal((draws, len(means))) @ root_of(covariance).T
    return drawn

"""Which choice is best in which setting, by how much, and what cannot be told apart.

Differences are those between means over paired seeds; all of a study have intervals together (a simulated max-|t| over settings and pairs,
as in `study.effects`). A choice that has another's quality by construction (masks) is left out: they are one here.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np

from fedatlas.rng import numpy_stream
from fedatlas.study.effects import noise_between, root_of
from fedatlas.study.measurements import Floats, Study, by_cell, choice_names, setting_names

DRAWS = 2000


class Lead(NamedTuple):
    """By how much one choice is above another in a setting, with its interval (None with one seed)."""

    choice: str
    over: str
    value: float
    low: float | None
    high: float | None

    @property
    def told_apart(self) -> bool:
        """Whether the interval says which is better."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high


class Standing(NamedTuple):
    """A setting: means by choice, the best first, and every pair's difference."""

    means: dict[str, float]
    leads: list[Lead]

    @property
    def first(self) -> list[str]:
        """The best choice and those that cannot be told apart from it."""
        best, *rest = self.means
        return [best, *(other for other in rest if not self.lead(best, other).told_apart)]

    def lead(self, choice: str, over: str) -> Lead:
        """The difference of a pair, either way round."""
        for one in self.leads:
            if (one.choice, one.over) == (choice, over):
                return one
            if (one.over, one.choice) == (choice, over):
                low, high = (None if x is None else -x for x in (one.high, one.low))
                return Lead(choice, over, -one.value, low, high)
        raise KeyError((choice, over))


def standings(
    study: Study, response: str = "accuracy", *, seed: int = 0, level: float = 0.95, draws: int = DRAWS
) -> dict[tuple[str, ...], Standing]:
    """setting -> how its choices stand; settings in which nothing came to its end are left out."""
    names = choice_names(study)
    kept = [j for j, name in enumerate(names) if study.twins.get(name) not in names]
    values = by_cell(study, response)[:, kept]
    chosen = [names[j] for j in kept]
    there = np.isfinite(values)
    noise = noise_between(values)
    found, largest = {}, np.zeros(draws)
    errors: dict[int, tuple[list[tuple[int, int]], Floats]] = {}
    stream = numpy_stream(seed, "standings")
    root = root_of(noise.covariance) if chosen else np.zeros((0, 0))
    seen = stream.standard_normal((draws, max(noise.df, 1), len(chosen))) @ root.T
    drawn_noise = np.einsum("dfj,dfk->djk", seen, seen) / max(
        noise.df, 1
    )  # the covariance as so few seeds would estimate it
    for i in range(len(values)):
        pairs = list(itertools.combinations(np.flatnonzero(there[i].any(axis=1)).tolist(), 2))
        if not pairs or not noise.df:
            errors[i] = pairs, np.zeros(len(pairs))
            continue
        contrast = np.zeros((len(pairs), len(chosen)))
        contrast[np.arange(len(pairs)), [a for a, _ in pairs]] = 1.0
        contrast[np.arange(len(pairs)), [b for _, b in pairs]] = -1.0
        count = np.maximum(there[i].sum(axis=1), 1)
        both = there[i].astype(float) @ there[i].astype(float).T / (count[:, None] * count[None, :])
        errors[i] = pairs, _sizes(contrast, both * noise.covariance)
        off = stream.standard_normal((draws, len(chosen))) @ (contrast @ root_of(both * noise.covariance)).T
        size = np.sqrt(
            np.maximum(np.einsum("pj,djk,pk->dp", contrast, drawn_noise * both, contrast, optimize=True), 1e-300)
        )
        largest = np.maximum(largest, np.where(errors[i][1] > 0, np.abs(off) / size, 0.0).max(axis=1))
    factor = float(np.quantile(largest, level))
    for i, name in enumerate(setting_names(study)):
        means = {chosen[j]: float(np.nanmean(values[i, j])) for j in np.flatnonzero(there[i].any(axis=1))}
        if means:
            pairs, size = errors[i]
            leads = [
                _lead(chosen[a], chosen[b], means, factor * float(s) if noise.df else None)
                for (a, b), s in zip(pairs, size, strict=True)
            ]
            found[name] = Standing(dict(sorted(means.items(), key=lambda pair: (-pair[1], pair[0]))), leads)
    return found


def _sizes(contrast: Floats, covariance: Floats) -> Floats:
    """(pairs,) standard errors."""
    found: Floats = np.sqrt(np.maximum(np.einsum("pj,jk,pk->p", contrast, covariance, contrast), 0.0))
    return found


def _lead(one: str, other: str, means: dict[str, float], margin: float | None) -> Lead:
    value = means[one] - means[other]
    if margin is None:
        return Lead(one, other, value, None, None)
    return Lead(one, other, value, value - margin, value + margin)


def better_and_worse(
    found: dict[tuple[str, ...], Standing], choice: str, reference: str
) -> tuple[int, int, list[float]]:
    """In how many settings a choice is told apart above and below a reference, and all its differences from it."""
    pairs = [s.lead(choice, reference) for s in found.values() if choice in s.means and reference in s.means]
    apart = [pair for pair in pairs if pair.told_apart]
    return sum(p.value > 0 for p in apart), sum(p.value < 0 for p in apart), [p.value for p in pairs]

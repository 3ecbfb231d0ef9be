"""The best choice in each setting, its lead, and what cannot be told apart.

Differences are between means over paired seeds; the intervals of a study hold simultaneously (a simulated max-|t| over settings and
pairs, as in `study.effects`). A choice with another's quality by construction (masks) is left out, since both count as one here.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from fedatlas.rng import numpy_stream
from fedatlas.study.effects import noise_between, root_of, shared
from fedatlas.study.measurements import Measurements, Setting

DRAWS = 2000


class Lead(NamedTuple):
    """The lead of one choice over another in a setting, with its interval (None with one seed)."""

    choice: str
    over: str
    value: float
    low: float | None
    high: float | None

    @property
    def told_apart(self) -> bool:
        """Return whether the interval shows which is better."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high


class SettingStanding(NamedTuple):
    """A setting: means by choice, the best first, and every pair's difference."""

    means: dict[str, float]
    leads: list[Lead]

    @property
    def first(self) -> list[str]:
        """The best choice and those that cannot be told apart from it."""
        best, *rest = self.means
        return [best, *(other for other in rest if not self.lead(best, other).told_apart)]

    def lead(self, choice: str, over: str) -> Lead:
        """Return the difference of a pair, in either order."""
        for one in self.leads:
            if (one.choice, one.over) == (choice, over):
                return one
            if (one.over, one.choice) == (choice, over):
                low, high = (None if x is None else -x for x in (one.high, one.low))
                return Lead(choice, over, -one.value, low, high)
        raise KeyError((choice, over))


def standings(
    study: Measurements, response: str = "accuracy", *, seed: int = 0, level: float = 0.95, draws: int = DRAWS
) -> dict[Setting, SettingStanding]:
    """Return setting -> the standing of its choices; settings without a finished run are left out."""
    names = study.choice_names()
    kept = [j for j, name in enumerate(names) if study.twins.get(name) not in names]
    values, chosen = study.by_cell(response)[:, kept], [names[j] for j in kept]
    there, noise, one_of = np.isfinite(values), noise_between(values), np.eye(len(kept))
    stream, freedom = numpy_stream(seed, "standings"), max(noise.df, 1)
    root = root_of(noise.covariance) if chosen else np.zeros((0, 0))
    seen = stream.standard_normal((draws, freedom, len(chosen))) @ root.T
    estimated = np.einsum("dfj,dfk->djk", seen, seen) / freedom  # the covariance as estimated from so few seeds
    compared, largest = [], np.zeros(draws)
    for here in there:
        pairs = list(itertools.combinations(np.flatnonzero(here.any(axis=1)).tolist(), 2))
        errors = np.zeros(len(pairs))
        if pairs and noise.df:
            contrast = one_of[[a for a, _ in pairs]] - one_of[[b for _, b in pairs]]
            both = shared(here)
            own = both * noise.covariance
            errors = np.sqrt(np.maximum(np.einsum("pj,jk,pk->p", contrast, own, contrast), 0.0))
            off = stream.standard_normal((draws, len(chosen))) @ (contrast @ root_of(own)).T
            squares = np.einsum("pj,djk,pk->dp", contrast, estimated * both, contrast, optimize=True)
            ratios = np.abs(off) / np.sqrt(np.maximum(squares, 1e-300))
            largest = np.maximum(largest, np.where(errors > 0, ratios, 0.0).max(axis=1))
        compared.append((pairs, errors))
    factor, found = float(np.quantile(largest, level)), {}
    for i, (name, (pairs, errors)) in enumerate(zip(study.setting_names(), compared, strict=True)):
        means = {chosen[j]: float(np.nanmean(values[i, j])) for j in np.flatnonzero(there[i].any(axis=1))}
        margins = [factor * float(x) if noise.df else None for x in errors]
        leads = [_lead(chosen[a], chosen[b], means, x) for (a, b), x in zip(pairs, margins, strict=True)]
        if means:
            found[name] = SettingStanding(dict(sorted(means.items(), key=lambda pair: (-pair[1], pair[0]))), leads)
    return found


def _lead(one: str, other: str, means: dict[str, float], margin: float | None) -> Lead:
    value = means[one] - means[other]
    interval = (None, None) if margin is None else (value - margin, value + margin)
    return Lead(one, other, value, *interval)


def better_and_worse(
    found: Mapping[Setting, SettingStanding], choice: str, reference: str
) -> tuple[int, int, list[float]]:
    """Return in how many settings a choice is clearly above and clearly below a reference, and all its differences from it."""
    pairs = [s.lead(choice, reference) for s in found.values() if choice in s.means and reference in s.means]
    apart = [pair for pair in pairs if pair.told_apart]
    return sum(p.value > 0 for p in apart), sum(p.value < 0 for p in apart), [p.value for p in pairs]

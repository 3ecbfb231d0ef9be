"""The best choice in each setting, its lead, and what cannot be told apart.

Differences are between means over paired seeds. Their errors are those between the seeds of the setting, shrunken (`study.seed_noise`),
where seeds draw their test rows with the correction of Nadeau and Bengio, and, where all seeds are judged on the same test rows, the
error of these rows (`study.test_rows`). The intervals of a study hold simultaneously: in a share of the simulated tables, the largest
|t| over all settings and pairs exceeds the factor by which each standard error is multiplied. A choice with another's quality by
construction (masks) is left out, since both count as one here. The answer of a setting has a rule of its own (`study.answers`).
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np

from fedatlas.rng import numpy_stream
from fedatlas.study.measurements import Bools, Floats, Measurements, Setting
from fedatlas.study.seed_noise import SeedNoise, noise_between, root_of
from fedatlas.study.test_rows import drawn_shares, rows_errors

DRAWS = 2000
Pairs = list[list[tuple[int, int]]]
"""Setting -> its pairs of choices, by index."""


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
    noise = noise_between(values, drawn_shares(study, response))
    rows = rows_errors(study, chosen) if response == "accuracy" else {}
    there = np.isfinite(values)
    each = [list(itertools.combinations(np.flatnonzero(here.any(axis=1)).tolist(), 2)) for here in there]
    given = study.setting_names()
    of_rows = [
        np.array([rows.get((at, chosen[a], chosen[b]), 0.0) for a, b in x]) for at, x in zip(given, each, strict=True)
    ]
    errors, largest = _simulated(there, each, noise, of_rows, numpy_stream(seed, "standings"), draws)
    factor, found = float(np.quantile(largest, level)), {}
    for i, (name, pairs) in enumerate(zip(given, each, strict=True)):
        means = {chosen[j]: float(np.nanmean(values[i, j])) for j in np.flatnonzero(there[i].any(axis=1))}
        margins = [factor * float(x) if noise.df else None for x in errors[i]]
        leads = [_lead(chosen[a], chosen[b], means, x) for (a, b), x in zip(pairs, margins, strict=True)]
        if means:
            found[name] = SettingStanding(dict(sorted(means.items(), key=lambda pair: (-pair[1], pair[0]))), leads)
    return found


def _simulated(
    there: Bools, each: Pairs, noise: SeedNoise, of_rows: list[Floats], stream: np.random.Generator, draws: int
) -> tuple[list[Floats], Floats]:
    """Return the standard errors of each setting's pairs, and (draws,) the largest |t| of simulated tables without differences.

    A simulated table draws the noise of each setting and its test rows, its estimated variance (chi-square, with the setting's
    degrees of freedom) and an estimated covariance between choices (Wishart), as from so few seeds.
    """
    choices, found, largest = there.shape[1], list[Floats](), np.zeros(draws)
    root, one_of, freedom = root_of(noise.covariance), np.eye(choices), max(noise.df, 1)
    seen = stream.standard_normal((draws, freedom, choices)) @ root.T
    estimated = np.einsum("dfj,dfk->djk", seen, seen, optimize=True) / freedom
    for i, (here, pairs) in enumerate(zip(there, each, strict=True)):
        errors = np.zeros(len(pairs))
        if pairs and noise.df:
            contrast = one_of[[a for a, _ in pairs]] - one_of[[b for _, b in pairs]]
            both, scale = noise.of_means(i, here), noise.scales[i]
            own = scale * both * noise.covariance
            errors = np.hypot(np.sqrt(np.maximum(np.einsum("pj,jk,pk->p", contrast, own, contrast), 0.0)), of_rows[i])
            off = stream.standard_normal((draws, choices)) @ (contrast @ root_of(own)).T
            off += stream.standard_normal((draws, len(pairs))) * of_rows[i]
            squares = np.einsum("pj,djk,pk->dp", contrast, scale * estimated * both, contrast, optimize=True)
            squares *= (stream.chisquare(noise.freedom[i], draws) / noise.freedom[i])[:, None]
            ratios = np.abs(off) / np.sqrt(np.maximum(squares + np.square(of_rows[i]), 1e-300))
            largest = np.maximum(largest, np.where(errors > 0, ratios, 0.0).max(axis=1))
        found.append(errors)
    return found, largest


def _lead(one: str, other: str, means: dict[str, float], margin: float | None) -> Lead:
    value = means[one] - means[other]
    interval = (None, None) if margin is None else (value - margin, value + margin)
    return Lead(one, other, value, *interval)

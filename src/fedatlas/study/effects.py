"""Main and two-way effects of a study's factors, with simultaneous intervals (X12).

The effects are those of the cells measured: the least-squares fit, with sum-to-zero codes, of a cell's mean over its seeds. For a
full grid they are the usual differences of means. SeedNoise is the variation between the paired seeds of a cell, pooled within a
choice over the settings. It has one variance per choice and one covariance per pair of choices, because all choices of a setting
share a seed. Intervals are simultaneous: in a share 1 - level of simulated tables, the largest |t| exceeds the factor by which
each standard error is multiplied.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedatlas.rng import numpy_stream
from fedatlas.study.measurements import Bools, Floats, Ints, Measurements
from fedatlas.study.measurements import level as level_of

DRAWS = 4000
MOST_LEVELS = 6  # of a numeric factor, before its levels are grouped in thirds


Name = tuple[tuple[str, ...], tuple[str, ...]]
"""(factors, levels) of an effect."""


class SeedNoise(NamedTuple):
    """Variation between paired seeds: ``covariance`` (J, J) between choices, ``df`` its degrees of freedom (0: one seed, unknown)."""

    covariance: Floats
    df: int


class Effect(NamedTuple):
    """Distance of a level from the mean of all cells (or of a pair of levels of two factors from the sum of both effects)."""

    factors: tuple[str, ...]
    levels: tuple[str, ...]
    estimate: float
    low: float | None  # None with one seed
    high: float | None


class Effects(NamedTuple):
    """All effects that the cells determine; ``open`` are the undetermined ones, and ``left_out`` the numbers of runs by status."""

    mean: float
    effects: list[Effect]
    open: list[Name]
    left_out: dict[str, int]
    noise: SeedNoise


def noise_between(values: Floats) -> SeedNoise:
    """Return the noise of ``values`` (settings, choices, seeds); for a pair of choices from the seeds that both have in a setting."""
    choices = values.shape[1]
    products, freedom = np.zeros((choices, choices)), np.zeros((choices, choices))
    for a, b in itertools.combinations_with_replacement(range(choices), 2):
        both = np.isfinite(values[:, a]) & np.isfinite(values[:, b])
        number = both.sum(axis=1)
        safe = np.maximum(number, 1)[:, None]
        x, y = (np.where(both, values[:, c], 0.0) for c in (a, b))
        x, y = (np.where(both, v - v.sum(axis=1, keepdims=True) / safe, 0.0) for v in (x, y))
        products[a, b] = products[b, a] = (x * y).sum()
        freedom[a, b] = freedom[b, a] = np.maximum(number - 1, 0).sum()
    covariance = np.divide(products, freedom, out=np.zeros_like(products), where=freedom > 0)
    roots, vectors = np.linalg.eigh(covariance)  # with unequal seeds it may have negative eigenvalues
    mended: Floats = (vectors * np.maximum(roots, 0.0)) @ vectors.T
    return SeedNoise(mended, int(freedom.diagonal().min(initial=np.inf)) if choices else 0)


def shared(there: Bools) -> Floats:
    """Return (J, J) factors from a covariance of noise to that of means over seeds, for the choices and seeds ``there`` (J, seeds)."""
    seen = there.astype(float)
    count = np.maximum(seen.sum(axis=1), 1)
    found: Floats = seen @ seen.T / (count[:, None] * count[None, :])
    return found


def root_of(covariance: Floats) -> Floats:
    """Return a lower root L with L L' = covariance, also if rank-deficient; unlike eigenvectors it is stable under small changes."""
    size = float(covariance.diagonal().max(initial=0.0))
    root = np.linalg.cholesky(covariance + (1e-12 * size + 1e-200) * np.eye(len(covariance)))
    return np.asarray(root, dtype=np.float64)


def grouped_levels(levels: Sequence[str]) -> list[str]:
    """Return the levels unchanged, or numbers with many different values as "low", "middle", "high", by thirds of the values."""
    if len(set(levels)) <= MOST_LEVELS:
        return list(levels)
    try:
        numbers = np.array([float(level) for level in levels])
    except ValueError:
        return list(levels)
    first, second = np.quantile(np.unique(numbers), [1 / 3, 2 / 3])
    return ["low" if x <= first else "middle" if x <= second else "high" for x in numbers]


def effects(study: Measurements, response: str, *, seed: int = 0, level: float = 0.95, draws: int = DRAWS) -> Effects:
    """Return main and two-way effects on a response, with intervals that cover all at once in a share ``level`` of similar studies."""
    values = study.by_cell(response)
    noise, there = noise_between(values), np.isfinite(values)
    cells = np.argwhere(there.any(axis=2))
    design, names, expand = _design(_levels(study, cells))
    inverse = np.linalg.pinv(design)
    wanted = expand @ inverse  # (effects, cells): each effect as a weighted sum of cell means
    told = np.abs(wanted @ design - expand).max(axis=1) < 1e-8
    means = np.array([values[i, j][there[i, j]].mean() for i, j in cells])
    rows = wanted[told]
    margins = _margins(rows, cells, there, noise, seed, level, draws)
    each = []
    for at, (k, x) in enumerate(zip(np.flatnonzero(told), rows @ means, strict=True)):
        ends = (None, None) if margins is None else (float(x - margins[at]), float(x + margins[at]))
        each.append(Effect(*names[k], float(x), *ends))
    missing = [names[k] for k in np.flatnonzero(~told)]
    lost = Counter(str(run["status"]) for run in study.cells() if run["status"] != "done")
    return Effects(float((inverse @ means)[0]), each, missing, dict(sorted(lost.items())), noise)


def _levels(study: Measurements, cells: Ints) -> dict[str, list[str]]:
    """Return factor -> its level in each cell, for factors with more than one, in alphabetical order."""
    given, chosen = study.setting_names(), study.choice_names()
    one_of = {(study.setting_of(run), study.choice_of(run)): run for run in study.cells()}
    runs = [one_of[given[i], chosen[j]] for i, j in cells]
    factors = sorted((*study.settings, *study.choices))
    found = {factor: grouped_levels([str(level_of(run, factor)) for run in runs]) for factor in factors}
    return {factor: column for factor, column in found.items() if len(set(column)) > 1}


def _codes(column: Sequence[str]) -> tuple[list[str], Floats, Floats]:
    """Return the levels, the (levels, levels - 1) sum-to-zero codes of each, and the codes of every cell."""
    levels = sorted(set(column))
    codes = np.vstack([np.eye(len(levels) - 1), -np.ones(len(levels) - 1)])
    return levels, codes, codes[[levels.index(level) for level in column]]


def _design(columns: dict[str, list[str]]) -> tuple[Floats, list[Name], Floats]:
    """Return the design (cells, p), the names of all effects, and (effects, p) each effect's sum of codes."""
    coded = {factor: _codes(column) for factor, column in columns.items()}
    blocks: list[Floats] = [np.ones((len(next(iter(columns.values()), [])), 1))]
    names: list[Name] = []
    parts = []
    for factors in [(a,) for a in coded] + list(itertools.combinations(coded, 2)):
        of_level, of_cell = np.ones((1, 1)), blocks[0]
        for factor in factors:
            _, codes, each = coded[factor]
            of_level = np.asarray(np.kron(of_level, codes), dtype=float)
            of_cell = np.asarray((of_cell[:, :, None] * each[:, None, :]).reshape(len(of_cell), -1), dtype=float)
        names += [(factors, pair) for pair in itertools.product(*(coded[factor][0] for factor in factors))]
        parts.append((sum(block.shape[1] for block in blocks), of_level))
        blocks.append(of_cell)
    design = np.hstack(blocks)
    rows = np.zeros((len(names), design.shape[1]))
    at = 0
    for begin, part in parts:
        rows[at : at + len(part), begin : begin + part.shape[1]] = part
        at += len(part)
    return design, names, rows


def _margins(
    rows: Floats, cells: np.ndarray, there: np.ndarray, noise: SeedNoise, seed: int, level: float, draws: int
) -> Floats | None:
    """Return half the width of each interval: standard error times the simulated quantile of the largest |t|; None with one seed.

    A simulated table draws the cells' means from the noise, and a new covariance from a Wishart distribution with the
    noise's degrees of freedom, like an estimate from so few seeds.
    """
    if not noise.df or not len(rows):
        return None
    choices = len(noise.covariance)
    weights = np.zeros((len(rows), *there.shape[:2]))
    weights[:, cells[:, 0], cells[:, 1]] = rows
    both = np.array([shared(here) for here in there])
    forms = np.einsum("eij,eik,ijk->ejk", weights, weights, both, optimize=True).reshape(len(rows), -1)
    errors: Floats = np.sqrt(np.maximum(forms @ noise.covariance.ravel(), 0.0))
    told = errors > 0
    stream = numpy_stream(seed, "effects")
    root = root_of(noise.covariance)
    drawn = np.zeros((draws, len(rows)))
    for i in range(len(weights[0])):  # settings, whose noise is independent
        drawn += stream.standard_normal((draws, choices)) @ (weights[:, i] @ root_of(both[i] * noise.covariance)).T
    seen = np.empty((draws, len(rows)))
    for d in range(draws):
        x = stream.standard_normal((noise.df, choices)) @ root.T
        seen[d] = np.sqrt(np.maximum(forms @ (x.T @ x / noise.df).ravel(), 0.0))
    largest = np.abs(drawn[:, told] / np.maximum(seen[:, told], 1e-300)).max(axis=1, initial=0.0)
    factor = float(np.quantile(largest, level))
    return errors * factor

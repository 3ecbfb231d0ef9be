"""Main and two-way effects of a study's factors, with intervals that hold for all of them at once (X12).

The effects are those of the cells measured: the least-squares fit, by sum-to-zero codes, of a cell's mean over its seeds. Of a full
grid they are the usual differences of means. Noise is what differs between the paired seeds of a cell, pooled within a choice over
the settings, with one variance a choice and one covariance a pair of choices, because a seed is shared by all choices of a setting.
Intervals are simultaneous: 1 - level of simulated tables have a largest |t| above the factor by which each standard error is
multiplied.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedatlas.rng import numpy_stream
from fedatlas.study.measurements import Floats, Measurements
from fedatlas.study.measurements import level as level_of

DRAWS = 4000
MOST_LEVELS = 6  # of a factor of numbers before its levels are taken together in thirds


class Noise(NamedTuple):
    """What paired seeds differ by: ``covariance`` (J, J) between choices, ``df`` its degrees of freedom (0: one seed, unknown)."""

    covariance: Floats
    df: int


class Effect(NamedTuple):
    """How far a level (or a pair of levels of two factors) lies from the mean of all cells (from the sum of both effects)."""

    factors: tuple[str, ...]
    levels: tuple[str, ...]
    estimate: float
    low: float | None  # None with one seed
    high: float | None


class Effects(NamedTuple):
    """All effects that the cells can tell; ``open`` are those that they cannot, and ``left_out`` the numbers of runs by status."""

    mean: float
    effects: list[Effect]
    open: list[tuple[tuple[str, ...], tuple[str, ...]]]
    left_out: dict[str, int]
    noise: Noise


def noise_between(values: Floats) -> Noise:
    """The noise of ``values`` (settings, choices, seeds); of a pair of choices by the seeds that both have in a setting."""
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
    roots, vectors = np.linalg.eigh(covariance)  # of pairs with unequal seeds it may lack a root
    mended: Floats = (vectors * np.maximum(roots, 0.0)) @ vectors.T
    return Noise(mended, int(freedom.diagonal().min(initial=np.inf)) if choices else 0)


def root_of(covariance: Floats) -> Floats:
    """A lower root L with L L' = covariance, also of one that lacks a rank; it moves little where the covariance does, unlike its axes."""
    size = float(covariance.diagonal().max(initial=0.0))
    root = np.linalg.cholesky(covariance + (1e-12 * size + 1e-200) * np.eye(len(covariance)))
    return np.asarray(root, dtype=np.float64)


def grouped_levels(levels: Sequence[str]) -> list[str]:
    """The levels as they are; numbers of many different values as "low", "middle", "high", by thirds of the values."""
    if len(set(levels)) <= MOST_LEVELS:
        return list(levels)
    try:
        numbers = np.array([float(level) for level in levels])
    except ValueError:
        return list(levels)
    first, second = np.quantile(np.unique(numbers), [1 / 3, 2 / 3])
    return ["low" if x <= first else "middle" if x <= second else "high" for x in numbers]


def effects(study: Measurements, response: str, *, seed: int = 0, level: float = 0.95, draws: int = DRAWS) -> Effects:
    """Main and two-way effects on a response, with intervals that cover all at once in ``level`` of studies like this one."""
    values = study.by_cell(response)
    noise = noise_between(values)
    there = np.isfinite(values)
    cells = np.argwhere(there.any(axis=2))
    given, chosen = study.setting_names(), study.choice_names()
    levels = _levels(study, [(given[i], chosen[j]) for i, j in cells])
    design, names, expand = _design(levels)
    inverse = np.linalg.pinv(design)
    wanted = expand @ inverse  # (effects, cells): an effect as a sum of cell means
    told = np.abs(wanted @ design - expand).max(axis=1) < 1e-8
    means = np.array([values[i, j][there[i, j]].mean() for i, j in cells])
    kept, rows = [name for name, ok in zip(names, told, strict=True) if ok], wanted[told]
    found = rows @ means
    margin = _margins(rows, cells, there, noise, seed, level, draws)
    each = [
        Effect(*name, float(x), *((None, None) if margin is None else (float(x - margin[k]), float(x + margin[k]))))
        for k, (name, x) in enumerate(zip(kept, found, strict=True))
    ]
    lost = [str(run["status"]) for run in study.cells() if run["status"] != "done"]
    missing = [name for name, ok in zip(names, told, strict=True) if not ok]
    counts = {status: lost.count(status) for status in sorted(set(lost))}
    return Effects(float((inverse @ means)[0]), each, missing, counts, noise)


def _levels(study: Measurements, cells: Sequence[tuple[tuple[str, ...], str]]) -> dict[str, list[str]]:
    """factor -> its level in each cell, for factors with more than one, in the order of the alphabet."""
    of_choice = {study.choice_of(run): run for run in study.cells()}
    of_setting = {study.setting_of(run): run for run in study.cells()}
    found = {factor: [str(level_of(of_setting[given], factor)) for given, _ in cells] for factor in study.settings}
    found |= {factor: [str(level_of(of_choice[chosen], factor)) for _, chosen in cells] for factor in study.choices}
    found = {factor: grouped_levels(column) for factor, column in sorted(found.items())}
    return {factor: column for factor, column in found.items() if len(set(column)) > 1}


def _codes(column: Sequence[str]) -> tuple[list[str], Floats, Floats]:
    """The levels, the (levels, levels - 1) sum-to-zero codes of each, and the codes of every cell."""
    levels = sorted(set(column))
    codes = np.vstack([np.eye(len(levels) - 1), -np.ones(len(levels) - 1)])
    return levels, codes, codes[[levels.index(level) for level in column]]


def _design(
    columns: dict[str, list[str]],
) -> tuple[Floats, list[tuple[tuple[str, ...], tuple[str, ...]]], Floats]:
    """The design (cells, p), the names of all effects, and (effects, p) the sum of codes that each is."""
    coded = {factor: _codes(column) for factor, column in columns.items()}
    number = len(next(iter(columns.values()), []))
    blocks: list[Floats] = [np.ones((number, 1))]
    names: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
    parts = []
    for factors in [(a,) for a in coded] + list(itertools.combinations(coded, 2)):
        of_level: Floats = np.ones((1, 1))
        of_cell: Floats = np.ones((number, 1))
        for factor in factors:
            of_level = np.asarray(np.kron(of_level, coded[factor][1]), dtype=float)
            of_cell = np.asarray((of_cell[:, :, None] * coded[factor][2][:, None, :]).reshape(number, -1), dtype=float)
        names += [(factors, pair) for pair in itertools.product(*(coded[factor][0] for factor in factors))]
        parts.append((sum(block.shape[1] for block in blocks), of_level))
        blocks.append(of_cell)
    width = sum(block.shape[1] for block in blocks)
    rows = [np.pad(part, ((0, 0), (begin, width - begin - part.shape[1]))) for begin, part in parts]
    return np.hstack(blocks), names, np.vstack(rows) if rows else np.zeros((0, width))


def _margins(
    rows: Floats, cells: np.ndarray, there: np.ndarray, noise: Noise, seed: int, level: float, draws: int
) -> Floats | None:
    """Half the width of each interval: its standard error times the simulated quantile of the largest |t|; None with one seed.

    A simulated table draws the cells' means of the noise, and a covariance anew from a Wishart distribution with the
    noise's degrees of freedom, as an estimate from so few seeds would come out.
    """
    if not noise.df or not len(rows):
        return None
    choices = len(noise.covariance)
    weights = np.zeros((len(rows), *there.shape[:2]))
    weights[:, cells[:, 0], cells[:, 1]] = rows
    count = there.sum(axis=2)
    both = np.einsum("ijs,iks->ijk", there.astype(float), there.astype(float))
    both /= np.maximum(count[:, :, None] * count[:, None, :], 1)  # Cov(mean_j, mean_k) = covariance times this
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

"""Main and two-way effects of a study's factors, with simultaneous intervals (X12).

Effects are least-squares fits, with sum-to-zero codes, of a cell's mean over its seeds: main effects from a fit of all main effects,
those of a pair of factors from the same fit with that pair, so that a pair that the cells do not determine leaves the others as they
are. For a full grid they are the usual differences of means. A factor with one level, or with another in each of many settings, has
no effects.

With three or more data sets these are random: each has a mean of its own in the fits, has no effect itself, and intervals are over
data sets (the jackknife that leaves each out, Student's t, divided among all effects of a response). With fewer, the effects are those
of the cells measured and the noise is that between the paired seeds (`study.seed_noise`): in a share 1 - level of simulated tables,
the largest |t| exceeds the factor by which each standard error is multiplied.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from fedatlas.rng import numpy_stream
from fedatlas.study.measurements import Floats, Ints, Measurements
from fedatlas.study.measurements import level as level_of
from fedatlas.study.seed_noise import SeedNoise, noise_between, root_of
from fedatlas.study.test_rows import drawn_shares

DRAWS = 4000
MOST_LEVELS = 6  # of a numeric factor, before its levels are grouped in thirds
RANDOM = 3  # fewest data sets over which intervals are taken
AT_ONCE = 100  # simulated tables in memory
TOLD = 1e-8  # largest error of an effect's weights for it to be determined by the cells


Name = tuple[tuple[str, ...], tuple[str, ...]]
"""(factors, levels) of an effect."""
Over = Literal["seeds", "data sets"]
Columns = dict[str, list[str]]
"""Factor -> its level in each cell."""


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
    over: Over  # the units whose variation makes the intervals


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
    noise, there = noise_between(values, drawn_shares(study, response)), np.isfinite(values)
    cells = np.argwhere(there.any(axis=2))
    means = np.array([values[i, j][there[i, j]].mean() for i, j in cells])
    data = data_of(study)
    blocks = [data[i] for i, _ in cells] if len(set(data)) >= RANDOM else []
    columns = {name: x for name, x in _levels(study, cells).items() if not (blocks and _names_data(x, blocks))}
    names, weights = _weights(columns, columns, blocks, len(cells))
    errors = _over_data(columns, blocks, means) if blocks else np.zeros(len(weights))
    told = np.isfinite(weights).all(axis=1) & np.isfinite(errors)
    told[0] = False  # the mean
    if blocks:
        from fedatlas.verdict.evidence import student  # of SciPy, which the recommender's answers do without

        margins: Floats | None = errors[told] * student(
            1 - (1 - level) / 2 / max(int(told.sum()), 1), len(set(blocks)) - 1
        )
    else:
        margins = _margins(weights[told], cells, there, noise, seed, level, draws)
    each = []
    for at, k in enumerate(np.flatnonzero(told)):
        x = float(weights[k] @ means)
        ends = (None, None) if margins is None else (x - float(margins[at]), x + float(margins[at]))
        each.append(Effect(*names[k], x, *ends))
    missing = [names[k] for k in np.flatnonzero(~told)[1:]]
    lost = Counter(str(run["status"]) for run in study.cells() if run["status"] != "done")
    mean = float(weights[0] @ means if np.isfinite(weights[0]).all() else means.mean())
    return Effects(mean, each, missing, dict(sorted(lost.items())), noise, "data sets" if blocks else "seeds")


def data_of(study: Measurements) -> list[str]:
    """Return the data set of each setting; "" if the table does not name it."""
    found = {study.setting_of(run): str(run.get("data") or "") for run in study.cells()}
    return [found[name] for name in study.setting_names()]


def _names_data(column: Sequence[str], blocks: Sequence[str]) -> bool:
    """Return whether the levels of a factor name the data sets, one by one."""
    pairs = set(zip(column, blocks, strict=True))
    return len(pairs) == len(set(column)) == len(set(blocks))


def _levels(study: Measurements, cells: Ints) -> Columns:
    """Return factor -> its level in each cell, for factors with more than one, in alphabetical order."""
    given, chosen = study.setting_names(), study.choice_names()
    one_of = {(study.setting_of(run), study.choice_of(run)): run for run in study.cells()}
    runs = [one_of[given[i], chosen[j]] for i, j in cells]
    factors = sorted((*study.settings, *study.choices))
    found = {factor: grouped_levels([str(level_of(run, factor)) for run in runs]) for factor in factors}
    many = max(len(set(given)), MOST_LEVELS + 1)  # levels of a factor that only names the settings
    return {factor: column for factor, column in found.items() if 1 < len(set(column)) < many}


def _codes(column: Sequence[str], every: Sequence[str]) -> tuple[list[str], Floats, Floats]:
    """Return the levels of ``every``, the (levels, levels - 1) sum-to-zero codes of each, and the codes of the cells in ``column``."""
    levels = sorted(set(every))
    codes = np.vstack([np.eye(len(levels) - 1), -np.ones(len(levels) - 1)])
    return levels, codes, codes[[levels.index(level) for level in column]]


def _weights(columns: Columns, every: Columns, blocks: Sequence[str], number: int) -> tuple[list[Name], Floats]:
    """Return the names of the mean ("") and all effects, and (effects, cells) each as a weighted sum of ``number`` cell means.

    A row is nan if the cells do not determine its effect. ``every``: the columns from which the levels are taken.
    """
    coded = {factor: _codes(column, every[factor]) for factor, column in columns.items()}
    of_data = [_codes(blocks, blocks)[2]] if blocks else []
    parts: list[Floats] = [np.ones((number, 1)), *of_data, *(each for _, _, each in coded.values())]
    names: list[Name] = [((), ())]
    rows = [_determined(parts, 0, np.ones((1, 1)))]
    for place, (factor, (levels, codes, _)) in enumerate(coded.items()):
        names += [((factor,), (level,)) for level in levels]
        rows.append(_determined(parts, 1 + len(of_data) + place, codes))
    for one, other in itertools.combinations(coded, 2):
        (levels, codes, each), (levels_2, codes_2, each_2) = coded[one], coded[other]
        both = np.asarray((each[:, :, None] * each_2[:, None, :]).reshape(number, -1), dtype=float)
        names += [((one, other), pair) for pair in itertools.product(levels, levels_2)]
        rows.append(_determined([*parts, both], len(parts), np.asarray(np.kron(codes, codes_2), dtype=float)))
    return names, np.vstack(rows)


def _determined(parts: Sequence[Floats], place: int, wanted: Floats) -> Floats:
    """Return (effects, cells) the weights of sums ``wanted`` of the coefficients of one part of a design; nan if not determined."""
    design = np.hstack(parts)
    begin = sum(part.shape[1] for part in parts[:place])
    expand = np.zeros((len(wanted), design.shape[1]))
    expand[:, begin : begin + wanted.shape[1]] = wanted
    squares = design.T @ design
    solved = expand @ np.linalg.pinv(squares, rcond=1e-10, hermitian=True)
    found: Floats = solved @ design.T
    found[np.abs(solved @ squares - expand).max(axis=1) > TOLD] = np.nan
    return found


def _over_data(columns: Columns, blocks: Sequence[str], means: Floats) -> Floats:
    """Return standard errors of the mean and all effects, by leaving out each data set; nan where one decides what is determined."""
    each = []
    for name in sorted(set(blocks)):
        rest = np.array([block != name for block in blocks])
        kept = {factor: [x for x, ok in zip(column, rest, strict=True) if ok] for factor, column in columns.items()}
        _, weights = _weights(kept, columns, [block for block in blocks if block != name], int(rest.sum()))
        each.append(weights @ means[rest])
    left, number = np.array(each), len(each)
    found: Floats = np.sqrt((number - 1) / number * np.square(left - left.mean(axis=0)).sum(axis=0))
    return found


def _margins(
    rows: Floats, cells: np.ndarray, there: np.ndarray, noise: SeedNoise, seed: int, level: float, draws: int
) -> Floats | None:
    """Return half the width of each interval: standard error times the simulated quantile of the largest |t|; None with one seed.

    A simulated table draws the cells' means from the noise, each setting's variance (chi-square) and the covariance between choices
    (Wishart), like estimates from so few seeds.
    """
    if not noise.df or not len(rows):
        return None
    choices = len(noise.covariance)
    weights = np.zeros((len(rows), *there.shape[:2]))
    weights[:, cells[:, 0], cells[:, 1]] = rows
    both = np.array([noise.of_means(i, here) for i, here in enumerate(there)])
    forms = np.einsum("eij,eik,ijk->eijk", weights, weights, both, optimize=True).reshape(len(rows), len(there), -1)
    errors: Floats = np.sqrt(np.maximum(np.einsum("eic,i,c->e", forms, noise.scales, noise.covariance.ravel()), 0.0))
    told = errors > 0
    stream = numpy_stream(seed, "effects")
    root = root_of(noise.covariance)
    drawn = np.zeros((draws, len(rows)))
    for i in range(len(weights[0])):  # settings, whose noise is independent
        drawn += stream.standard_normal((draws, choices)) @ (weights[:, i] @ root_of(both[i] * noise.of(i))).T
    by_setting = forms.transpose(1, 0, 2).reshape(len(there), -1)
    seen = np.empty((draws, len(rows)))
    for begin in range(0, draws, AT_ONCE):
        size = min(AT_ONCE, draws - begin)
        x = stream.standard_normal((size, noise.df, choices)) @ root.T
        covariance = np.einsum("dfj,dfk->djk", x, x, optimize=True).reshape(size, -1) / noise.df
        scales = noise.scales * stream.chisquare(noise.freedom, (size, len(there))) / noise.freedom
        pooled = (scales @ by_setting).reshape(size, len(rows), -1)
        seen[begin : begin + size] = np.sqrt(np.maximum(np.einsum("dec,dc->de", pooled, covariance), 0.0))
    largest = np.abs(drawn[:, told] / np.maximum(seen[:, told], 1e-300)).max(axis=1, initial=0.0)
    factor = float(np.quantile(largest, level))
    return errors * factor

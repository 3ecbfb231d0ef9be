"""Quality in federations that were not measured, and how wrong that is: each setting, and each data set, left out in turn.

What is predicted is the gap to the centralised baseline on the logit scale, logit q - logit q_baseline, at `ROUNDS`, because levels
differ between data sets far more than gaps do. Of every choice but FedAvg what is fitted is how far its gap lies from FedAvg's in the
same setting (`relative`), because what both share need not be known to tell them apart. The two ways of `predict` compete over
left-out settings; which of them wins for a setting is decided by the others (nested), and the winner over all is what answers. What is
left over between a left-out setting and its prediction, the residual, makes intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedatlas.errors import DataError
from fedatlas.recommender.predictors import Kernel, fit, gaussian, inverse_distance, left_out, scales
from fedatlas.study.effects import noise_between
from fedatlas.study.measurements import OUTCOMES, ROUNDS, Bools, Floats, Ints, Measurements, Setting, beats_majority
from fedatlas.study.responses import RESPONSES, which

EDGE = 1e-3  # a share is taken as at least this far from 0 and 1 before its logit
WAYS = ("inverse distance", "gaussian process")
BLOCKS = 5  # settings are dealt to so many blocks; a kernel for a block is fitted to the others


class Fitted(NamedTuple):
    """What answers need, plain arrays: n settings, J choices, R rounds; nan where there is nothing."""

    choices: list[str]
    settings: list[Setting]
    data: list[str]  # of each setting
    rounds: tuple[int, ...]
    x: Floats  # (n, features)
    scale: Floats  # (features,)
    gaps: dict[str, Floats]  # quality -> (n, J, R)
    levels: dict[str, Floats]  # quality -> (n,) logit of the baseline
    costs: dict[str, Floats]  # cost -> (n, J, R), computed by what was counted
    ranges: dict[str, tuple[float, float]]  # response -> the smallest and largest value of the study's runs
    sees: list[str]  # what the server sees of a client under each choice
    finishes: Floats  # (n, J) share of the runs that finished; nan where none could run
    kernels: list[Kernel]  # a choice, of what `relative` makes of the gaps
    against: int | None  # the choice that others are fitted relative to; None where it was not measured
    way: str  # the winner
    by_setting: dict[str, Floats]  # quality -> (n, J, R) predictions with the setting left out
    by_data: dict[str, Floats]  # the same with its whole data set left out; empty with one data set
    score: dict[str, float]  # way, "nested" -> mean absolute error of accuracy's gap
    references: tuple[str, ...]  # FedAvg, then its masked twin
    new_data: bool = True
    """Whether what is asked for has data that the study does not hold: whole data sets are then left out, where there are several."""

    def left_out(self) -> dict[str, Floats]:
        """quality -> predictions of settings left out."""
        return self.by_data if self.new_data and self.by_data else self.by_setting

    def groups(self) -> NDArray[Any]:
        """(n,) which settings are left out, and err, together: those of a data set where data are new, else each for itself."""
        return np.array(self.data) if self.new_data and self.by_data else np.arange(len(self.data))

    def others(self, i: int) -> Ints:
        """The settings that may be known where ``i`` is left out."""
        groups = self.groups()
        return np.flatnonzero(groups != groups[i])

    def residuals(self, quality: str) -> Floats:
        """(n, J, R) measured gap less predicted gap of left-out settings."""
        return self.gaps[quality] - self.left_out()[quality]

    def distances(self, at: Floats) -> Floats:
        """(n,) distances of the measured settings from features ``at``, each feature in its standard deviations."""
        found: Floats = np.sqrt(np.square((self.x - at) / self.scale).sum(axis=1))
        return found

    def nearest(self, at: Floats) -> Ints:
        """(n,) the measured settings, the nearest first."""
        return np.argsort(self.distances(at), kind="stable")


def logit(share: Floats | float) -> Floats:
    """log(q / (1 - q)), q kept `EDGE` away from 0 and 1."""
    q = np.clip(np.asarray(share, dtype=float), EDGE, 1 - EDGE)
    return np.asarray(np.log(q) - np.log1p(-q))


def from_logit(value: Floats) -> Floats:
    """The share of a logit."""
    return np.asarray(1.0 / (1.0 + np.exp(-value)))


def fit_study(study: Measurements, way: str | None = None) -> Fitted:
    """Everything that answers need from a study's table. With 1,000 runs some seconds; answering then takes milliseconds.

    ``way`` overrules the contest, to compare with its loser.
    """
    x, data = study.features()
    chosen = study.choice_names()
    against = next((chosen.index(name) for name in study.references if name in chosen), None)
    gaps, levels, noise = _gaps(study, chosen, against)
    apart = {quality: relative(y, against) for quality, y in gaps.items()}
    scale = scales(x)
    z, each = x / scale, np.arange(len(x))
    blocks = each % BLOCKS

    def kernels(among: Bools) -> list[Kernel]:
        return [_kernel(z, apart["accuracy"][:, j], noise[j], among) for j in range(len(chosen))]

    def by_choice(predict: Any) -> dict[str, Floats]:
        each_choice = range(len(chosen))
        found = {q: np.stack([predict(y[:, j], j) for j in each_choice], axis=1) for q, y in apart.items()}
        return {quality: absolute(y, against) for quality, y in found.items()}

    without = [kernels(blocks != block) for block in range(BLOCKS)]
    found = {
        WAYS[0]: by_choice(lambda y, j: _from_others(WAYS[0], z, y, each, {})),
        WAYS[1]: by_choice(lambda y, j: _left_out_gaussian(z, y, [one[j] for one in without], blocks)),
    }
    best, score = _winner({w: found[w]["accuracy"] for w in WAYS}, gaps["accuracy"])
    way, names, by_data = way or best, np.array(data), {}
    if len(set(data)) > 1:
        of_rest = {name: kernels(names != name) for name in set(data)} if way == WAYS[1] else {}
        by_data = by_choice(
            lambda y, j: _from_others(way, z, y, names, {name: one[j] for name, one in of_rest.items()})
        )
    return Fitted(
        chosen,
        study.setting_names(),
        data,
        ROUNDS,
        x,
        scale,
        gaps,
        levels,
        {cost: mean_cost(study, cost) for cost in which(forecast="nearest")},
        _ranges(study),
        _sees(study, chosen),
        _finishes(study, chosen),
        kernels(np.ones(len(x), bool)),
        against,
        way,
        found[way],
        by_data,
        score,
        study.references,
    )


def predict_gaps(fitted: Fitted, at: Floats, quality: str) -> Floats:
    """(J, R) predicted gaps of the choices in a federation with features ``at``; nan for a choice that nothing was measured of."""
    z, point = fitted.x / fitted.scale, (at / fitted.scale)[None, :]
    y = relative(fitted.gaps[quality], fitted.against)
    found = np.stack([_predict(fitted.way, z, y[:, j], point, fitted.kernels[j])[0] for j in range(y.shape[1])])
    return absolute(found, fitted.against)


def relative(gaps: Floats, against: int | None) -> Floats:
    """(..., J, R) gaps with those of the choice ``against`` taken off all others; nan where that has none."""
    return gaps if against is None else gaps - _own(gaps, against)


def absolute(apart: Floats, against: int | None) -> Floats:
    """The gaps again, of what `relative` made."""
    return apart if against is None else apart + _own(apart, against)


def _own(values: Floats, against: int) -> Floats:
    """What the choice ``against`` has, in the rows of all others; 0 in its own."""
    found = np.repeat(values[..., against : against + 1, :], values.shape[-2], axis=-2)
    found[..., against, :] = 0.0
    return found


def predict_finishes(fitted: Fitted, at: Floats, among: Ints) -> Floats:
    """(J,) share of runs that finish, by inverse distance within a choice from the settings ``among``."""
    z, point = fitted.x[among] / fitted.scale, (at / fitted.scale)[None, :]
    columns = fitted.finishes[among].T[:, :, None]
    return np.array([_predict(WAYS[0], z, y, point, None)[0, 0] for y in columns])


def quantiles(values: Floats, confidence: float) -> tuple[float, float]:
    """One-sided low and high: a further value of the same kind is at or above low, and at or below high, with ``confidence``.

    Order statistics at rank (n + 1)(1 - confidence), rounded outwards (split conformal, Vovk et al. 2005), the extreme values where
    there are too few.
    """
    known = np.sort(values[np.isfinite(values)])
    if not len(known):
        return -np.inf, np.inf
    rank = max(int(np.floor((len(known) + 1) * (1 - confidence) + 1e-9)), 1)
    return float(known[rank - 1]), float(known[len(known) - rank])


def _gaps(
    study: Measurements, chosen: list[str], against: int | None
) -> tuple[dict[str, Floats], dict[str, Floats], Floats]:
    """Gaps (n, J, R), the baselines' logits (n,), and (J,) the noise over seeds of what is fitted as a share of its variance."""
    gaps, levels = {}, {}
    noise = np.zeros(len(chosen))
    for quality in which(forecast="gap"):
        base = logit(study.baselines(RESPONSES[quality].against or quality))
        if not np.isfinite(base).any():
            if quality == "accuracy":
                raise DataError(
                    f"the table of '{study.name}' has no centralised baseline: run the study again to add it."
                )
            continue
        each = np.stack([logit(study.by_cell(quality, r)) - base[:, None, :] for r in ROUNDS], axis=-1)
        for choice, twin in study.pairs(chosen):  # quality by construction that of the plain twin
            each[:, choice] = each[:, twin]
        gaps[quality], levels[quality] = _mean(each, axis=2), _mean(base, axis=1)
        if quality == "accuracy":
            known = np.flatnonzero(np.isfinite(each).any(axis=(0, 1, 2)))
            last = relative(each[..., known[-1] if len(known) else -1], against)
            seeds = np.maximum(np.isfinite(last).sum(axis=2).mean(axis=0), 1)
            means = _mean(last, 2).T
            between = np.array([np.nanvar(one) if np.isfinite(one).any() else 1.0 for one in means])
            noise = noise_between(last).covariance.diagonal() / seeds / np.maximum(between, 1e-12)
    return gaps, levels, noise


def mean_cost(study: Measurements, cost: str) -> Floats:
    """(n, J, R) means over seeds; an epsilon is infinite where nothing bounds it."""
    values = [study.by_cell(cost, r) for r in ROUNDS]
    endless = np.stack([np.isposinf(each).any(axis=2) for each in values], axis=-1)
    return np.where(endless, np.inf, np.stack([_mean(each, 2) for each in values], axis=-1))


def _ranges(study: Measurements) -> dict[str, tuple[float, float]]:
    """The range of each response over all finished runs: no limit and no weight of a user changes it."""
    found = {}
    for response in (*which(forecast="gap"), *which(forecast="nearest")):
        values = study.by_cell(response)
        known = values[np.isfinite(values)]
        found[response] = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
    return found


def _sees(study: Measurements, chosen: list[str]) -> list[str]:
    """What the server sees under each choice, as its runs say; single models where they say nothing."""
    told = {study.choice_of(run): str(run.get("server_sees") or "models") for run in study.cells()}
    return [told[choice] for choice in chosen]


def _finishes(study: Measurements, chosen: list[str]) -> Floats:
    """(n, J) share of a cell's runs that finished, among those that had an outcome."""
    found = _mean(study.collect(beats_majority, OUTCOMES), 2)
    for choice, twin in study.pairs(chosen):  # as its quality is the plain twin's, where it was run and where not
        found[:, choice] = found[:, twin]
    return found


def _mean(values: Floats, axis: int) -> Floats:
    """The mean of what is there along an axis; nan where nothing is."""
    there = np.isfinite(values)
    number = there.sum(axis=axis)
    total = np.where(there, values, 0.0).sum(axis=axis)
    found: Floats = np.divide(total, number, out=np.full(total.shape, np.nan), where=number > 0)
    return found


def _whole_outputs(y: Floats, among: Bools) -> tuple[Bools, Bools]:
    """The outputs that are measured anywhere among the settings, and the settings in which all of those are."""
    outputs = np.isfinite(y[among]).any(axis=0)
    whole: Bools = among & np.isfinite(y[:, outputs]).all(axis=1) & outputs.any()
    return np.asarray(outputs), whole


def _kernel(z: Floats, y: Floats, noise: float, among: Bools) -> Kernel:
    outputs, whole = _whole_outputs(y, among)
    return fit(z[whole], y[np.ix_(whole, outputs)], noise)


def _predict(way: str, z: Floats, y: Floats, at: Floats, kernel: Kernel | None) -> Floats:
    """(points, outputs) from the settings with figures; of nothing nan."""
    found = np.full((len(at), y.shape[1]), np.nan)
    outputs, whole = _whole_outputs(y, np.ones(len(y), bool))
    if whole.any():
        weights = inverse_distance(z[whole], at) if kernel is None or way == WAYS[0] else gaussian(z[whole], at, kernel)
        found[:, outputs] = weights @ y[np.ix_(whole, outputs)]
    return found


def _from_others(way: str, z: Floats, y: Floats, groups: NDArray[Any], kernels: dict[str, Kernel]) -> Floats:
    """(n, R) each setting from the settings of other groups, with the kernel that was fitted to those."""
    found = np.full(y.shape, np.nan)
    for group in np.unique(groups):
        out, rest = groups == group, groups != group
        found[out] = _predict(way, z[rest], y[rest], z[out], kernels.get(group))
    return found


def _left_out_gaussian(z: Floats, y: Floats, kernels: Sequence[Kernel], blocks: Ints) -> Floats:
    """(n, R) each setting from all others, with the kernel that was fitted without its block."""
    found = np.full(y.shape, np.nan)
    outputs, whole = _whole_outputs(y, np.ones(len(y), bool))
    if whole.sum() > 1:
        places = np.flatnonzero(whole)
        for block, kernel in enumerate(kernels):
            weights = left_out(z[whole], kernel)
            mine = np.flatnonzero(blocks[places] == block)
            found[np.ix_(places[mine], outputs)] = weights[mine] @ y[np.ix_(places, outputs)]
    for i in np.flatnonzero(~whole):  # a choice that was not measured here is predicted here all the same
        found[i] = _predict(WAYS[1], z[whole], y[whole], z[i : i + 1], kernels[blocks[i]])[0]
    return found


def _winner(found: dict[str, Floats], truth: Floats) -> tuple[str, dict[str, float]]:
    """The way with the smaller mean absolute error, its figures, and that of the nested contest; ties to inverse distance."""
    with np.errstate(invalid="ignore"):
        errors = {way: _mean(np.abs(guess - truth).reshape(len(truth), -1), 1) for way, guess in found.items()}
    both = np.stack([errors[way] for way in WAYS])
    known = np.isfinite(both).all(axis=0)
    if not known.any():
        return WAYS[0], {}
    both = both[:, known]
    sums = both.sum(axis=1)
    picked = np.argmin(sums[:, None] - both, axis=0)  # by all settings but this one
    score = {way: float(both[k].mean()) for k, way in enumerate(WAYS)}
    score["nested"] = float(both[picked, np.arange(both.shape[1])].mean())
    return WAYS[int(np.argmin(sums))], score

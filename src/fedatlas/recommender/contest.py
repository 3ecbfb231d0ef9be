"""Quality in federations that were not measured, with its error: each setting, and each data set, left out in turn.

The target of prediction is the gap to the centralised baseline on the logit scale, logit q - logit q_baseline, at `ROUNDS`, because
levels differ between data sets far more than gaps do. For every choice except FedAvg, the fit is to its gap minus FedAvg's in the
same setting (`relative`), because their common part is not needed to tell them apart. The two ways of `predict` compete over
left-out settings. The winner for a setting is decided by the others (nested), and the overall winner answers. The difference
between a left-out setting and its prediction, the residual, gives the intervals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedatlas.errors import DataError
from fedatlas.recommender.predictors import Kernel, fit, gaussian, inverse_distance, left_out, scales
from fedatlas.study.effects import noise_between
from fedatlas.study.measurements import OUTCOMES, ROUNDS, Bools, Floats, Ints, Measurements, Setting, beats_majority
from fedatlas.study.responses import RESPONSES, which

EDGE = 1e-3  # a share is clipped this far from 0 and 1 before its logit
WAYS = ("inverse distance", "gaussian process")
BLOCKS = 5  # number of blocks of settings; a kernel for a block is fitted to the others


class Fitted(NamedTuple):
    """The arrays that answers need: n settings, J choices, R rounds; nan for no value."""

    choices: list[str]
    settings: list[Setting]
    data: list[str]  # of each setting
    rounds: tuple[int, ...]
    x: Floats  # (n, features)
    scale: Floats  # (features,)
    gaps: dict[str, Floats]  # quality -> (n, J, R)
    levels: dict[str, Floats]  # quality -> (n,) logit of the baseline
    costs: dict[str, Floats]  # cost -> (n, J, R), computed from counts
    ranges: dict[str, tuple[float, float]]  # response -> the smallest and largest value of the study's runs
    sees: list[str]  # what the server sees about a client under each choice
    finishes: Floats  # (n, J) share of the runs that finished; nan if none could run
    kernels: list[Kernel]  # one per choice, fitted to the output of `relative`
    against: int | None  # the choice that others are fitted relative to; None if it was not measured
    way: str  # the winner
    by_setting: dict[str, Floats]  # quality -> (n, J, R) predictions with the setting left out
    by_data: dict[str, Floats]  # the same with its whole data set left out; empty with one data set
    score: dict[str, float]  # way, "nested" -> mean absolute error of accuracy's gap
    references: tuple[str, ...]  # FedAvg, then its masked twin
    new_data: bool = True
    """True if the requirements concern data outside the study: then whole data sets are left out, if there are several."""
    twins: Mapping[str, str] = {}  # masked choice -> the same without masks, whose quality it has

    def left_out(self) -> dict[str, Floats]:
        """Return quality -> predictions of left-out settings."""
        return self.by_data if self.new_data and self.by_data else self.by_setting

    def groups(self) -> NDArray[Any]:
        """Return (n,) groups of settings left out together: those of a data set for new data, else each by itself."""
        return np.array(self.data) if self.new_data and self.by_data else np.arange(len(self.data))

    def others(self, i: int) -> Ints:
        """Return the settings that may be used when ``i`` is left out."""
        groups = self.groups()
        return np.flatnonzero(groups != groups[i])

    def residuals(self, quality: str) -> Floats:
        """Return (n, J, R) measured gap minus predicted gap of left-out settings."""
        return self.gaps[quality] - self.left_out()[quality]

    def distances(self, at: Floats) -> Floats:
        """Return (n,) distances of the measured settings from features ``at``, each feature in its standard deviations."""
        found: Floats = np.sqrt(np.square((self.x - at) / self.scale).sum(axis=1))
        return found

    def nearest(self, at: Floats) -> Ints:
        """Return (n,) the measured settings, the nearest first."""
        return np.argsort(self.distances(at), kind="stable")


def logit(share: Floats | float) -> Floats:
    """Return log(q / (1 - q)), with q clipped `EDGE` away from 0 and 1."""
    q = np.clip(np.asarray(share, dtype=float), EDGE, 1 - EDGE)
    return np.asarray(np.log(q) - np.log1p(-q))


def from_logit(value: Floats) -> Floats:
    """Return the share of a logit."""
    return np.asarray(1.0 / (1.0 + np.exp(-value)))


def fit_study(study: Measurements, way: str | None = None) -> Fitted:
    """Return everything that answers need from a study's table. With 1,000 runs this takes some seconds; answers take milliseconds.

    ``way`` overrules the contest, for comparison with the loser.
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
        twins=study.twins,
    )


def predict_gaps(fitted: Fitted, at: Floats, quality: str) -> Floats:
    """Return (J, R) predicted gaps of the choices in a federation with features ``at``; nan for a choice without measurements."""
    z, point = fitted.x / fitted.scale, (at / fitted.scale)[None, :]
    y = relative(fitted.gaps[quality], fitted.against)
    found = np.stack([_predict(fitted.way, z, y[:, j], point, fitted.kernels[j])[0] for j in range(y.shape[1])])
    return absolute(found, fitted.against)


def relative(gaps: Floats, against: int | None) -> Floats:
    """Return (..., J, R) gaps minus those of the choice ``against``, which keeps its own; nan if it has none."""
    return gaps if against is None else gaps - _own(gaps, against)


def absolute(apart: Floats, against: int | None) -> Floats:
    """Invert `relative`."""
    return apart if against is None else apart + _own(apart, against)


def _own(values: Floats, against: int) -> Floats:
    """Return the values of the choice ``against`` in the rows of all others; 0 in its own."""
    found = np.repeat(values[..., against : against + 1, :], values.shape[-2], axis=-2)
    found[..., against, :] = 0.0
    return found


def predict_finishes(fitted: Fitted, at: Floats, among: Ints) -> Floats:
    """Return (J,) share of runs that finish, by inverse distance within a choice from the settings ``among``."""
    z, point = fitted.x[among] / fitted.scale, (at / fitted.scale)[None, :]
    columns = fitted.finishes[among].T[:, :, None]
    return np.array([_predict(WAYS[0], z, y, point, None)[0, 0] for y in columns])


def quantiles(values: Floats, confidence: float) -> tuple[float, float]:
    """Return one-sided low and high: a further value of the same kind is at or above low, and at or below high, with ``confidence``.

    Order statistics at rank (n + 1)(1 - confidence), rounded outwards (split conformal, Vovk et al. 2005), or the extreme values if
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
    """Return gaps (n, J, R), the baselines' logits (n,), and (J,) the seed noise of the fitted values as a share of their variance."""
    gaps, levels = {}, {}
    noise = np.zeros(len(chosen))
    for quality in which(forecast="gap"):
        base = logit(study.baselines(RESPONSES[quality].against or quality))
        if not np.isfinite(base).any():
            if quality == "accuracy":
                raise DataError(f"the table of '{study.name}' has no centralised baseline: rerun the study to add it.")
            continue
        each = np.stack([logit(study.by_cell(quality, r)) - base[:, None, :] for r in ROUNDS], axis=-1)
        for choice, twin in study.pairs(chosen):  # quality equals the plain twin's by construction
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
    """Return (n, J, R) means over seeds; an epsilon is infinite if unbounded."""
    values = [study.by_cell(cost, r) for r in ROUNDS]
    endless = np.stack([np.isposinf(each).any(axis=2) for each in values], axis=-1)
    return np.where(endless, np.inf, np.stack([_mean(each, 2) for each in values], axis=-1))


def _ranges(study: Measurements) -> dict[str, tuple[float, float]]:
    """Return the range of each response over all finished runs, independent of a user's limits and weights."""
    found = {}
    for response in (*which(forecast="gap"), *which(forecast="nearest")):
        values = study.by_cell(response)
        known = values[np.isfinite(values)]
        found[response] = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
    return found


def _sees(study: Measurements, chosen: list[str]) -> list[str]:
    """Return what the server sees under each choice, according to its runs; single models if they do not state it."""
    told = {study.choice_of(run): str(run.get("server_sees") or "models") for run in study.cells()}
    return [told[choice] for choice in chosen]


def _finishes(study: Measurements, chosen: list[str]) -> Floats:
    """Return (n, J) the share of a cell's runs that finished, among those with an outcome."""
    found = _mean(study.collect(beats_majority, OUTCOMES), 2)
    for choice, twin in study.pairs(chosen):  # equal to the plain twin's, run or not
        found[:, choice] = found[:, twin]
    return found


def _mean(values: Floats, axis: int) -> Floats:
    """Return the mean of the finite values along an axis; nan if there are none."""
    there = np.isfinite(values)
    number = there.sum(axis=axis)
    total = np.where(there, values, 0.0).sum(axis=axis)
    found: Floats = np.divide(total, number, out=np.full(total.shape, np.nan), where=number > 0)
    return found


def _whole_outputs(y: Floats, among: Bools) -> tuple[Bools, Bools]:
    """Return the outputs measured in any of the settings, and the settings in which all of these are measured."""
    outputs = np.isfinite(y[among]).any(axis=0)
    whole: Bools = among & np.isfinite(y[:, outputs]).all(axis=1) & outputs.any()
    return np.asarray(outputs), whole


def _kernel(z: Floats, y: Floats, noise: float, among: Bools) -> Kernel:
    outputs, whole = _whole_outputs(y, among)
    return fit(z[whole], y[np.ix_(whole, outputs)], noise)


def _predict(way: str, z: Floats, y: Floats, at: Floats, kernel: Kernel | None) -> Floats:
    """Return (points, outputs) predicted from the settings with figures; nan if there are none."""
    found = np.full((len(at), y.shape[1]), np.nan)
    outputs, whole = _whole_outputs(y, np.ones(len(y), bool))
    if whole.any():
        weights = inverse_distance(z[whole], at) if kernel is None or way == WAYS[0] else gaussian(z[whole], at, kernel)
        found[:, outputs] = weights @ y[np.ix_(whole, outputs)]
    return found


def _from_others(way: str, z: Floats, y: Floats, groups: NDArray[Any], kernels: dict[str, Kernel]) -> Floats:
    """Return (n, R) each setting predicted from the settings of other groups, with the kernel fitted to those."""
    found = np.full(y.shape, np.nan)
    for group in np.unique(groups):
        out, rest = groups == group, groups != group
        found[out] = _predict(way, z[rest], y[rest], z[out], kernels.get(group))
    return found


def _left_out_gaussian(z: Floats, y: Floats, kernels: Sequence[Kernel], blocks: Ints) -> Floats:
    """Return (n, R) each setting predicted from all others, with the kernel fitted without its block."""
    found = np.full(y.shape, np.nan)
    outputs, whole = _whole_outputs(y, np.ones(len(y), bool))
    if whole.sum() > 1:
        places = np.flatnonzero(whole)
        for block, kernel in enumerate(kernels):
            weights = left_out(z[whole], kernel)
            mine = np.flatnonzero(blocks[places] == block)
            found[np.ix_(places[mine], outputs)] = weights[mine] @ y[np.ix_(places, outputs)]
    for i in np.flatnonzero(~whole):  # a choice not measured here is still predicted here
        found[i] = _predict(WAYS[1], z[whole], y[whole], z[i : i + 1], kernels[blocks[i]])[0]
    return found


def _winner(found: dict[str, Floats], truth: Floats) -> tuple[str, dict[str, float]]:
    """Return the way with the smaller mean absolute error, the figures of both, and of the nested contest; ties to inverse distance."""
    with np.errstate(invalid="ignore"):
        errors = {way: _mean(np.abs(guess - truth).reshape(len(truth), -1), 1) for way, guess in found.items()}
    both = np.stack([errors[way] for way in WAYS])
    known = np.isfinite(both).all(axis=0)
    if not known.any():
        return WAYS[0], {}
    both = both[:, known]
    sums = both.sum(axis=1)
    picked = np.argmin(sums[:, None] - both, axis=0)  # by all settings except this one
    score = {way: float(both[k].mean()) for k, way in enumerate(WAYS)}
    score["nested"] = float(both[picked, np.arange(both.shape[1])].mean())
    return WAYS[int(np.argmin(sums))], score

"""The order of choices in a federation: limits kept with a chance, one utility, and the best single choice as a prior.

A candidate is a choice with a number of rounds. Its chance is the share of left-out residual vectors under which all limits hold at
once, times the chance that it finishes. It is allowed if this reaches the requested confidence; without limits, if it is likelier to
finish than not. Its utility is the weighted mean
of its responses, each scaled by the range of the study's runs (costs on the log scale), so no limit affects it:
relaxing a limit only adds candidates.

Where none is allowed, the answer is "none" only if the chance that any candidate fits (`Ranking.any_fits`) is below one minus the
confidence. Else it is not known, and the likeliest candidates are those to measure (`promising`).

First is the allowed choice that is best on average over the study (`Ranking.single`), whatever the federation. Another is named before
it only where its forecast for this federation is better beyond the forecast's own error, with the confidence asked for, divided among
the rivals. In the same way the first choice is compared with FedAvg: where it is not told apart, `Ranking.stay` says to stay with that.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from fedatlas.errors import ConfigError
from fedatlas.recommender.contest import Fitted, absolute, from_logit, predict_finishes, relative
from fedatlas.recommender.exclusions import excluded
from fedatlas.recommender.requirements import Requirements
from fedatlas.rng import numpy_stream
from fedatlas.study.measurements import Bools, Floats, Ints
from fedatlas.study.responses import RESPONSES

DRAWS = 200_000
TIE = 0.01  # share of the study's range of utility below which a difference is a tie
LIKELY = 0.5  # the chance to finish that a candidate needs where there are no limits to keep
Place = tuple[int, int]
"""A candidate: (choice, rounds) among those of the study."""


class Forecast(NamedTuple):
    """The predictions for one federation: J choices after R rounds, and n values per quality, one for each left-out residual vector."""

    values: dict[str, Floats]  # response -> (J, R)
    spread: dict[str, Floats]  # quality -> (n, J, R)
    finishes: Floats  # (J,)
    groups: Any  # (n,) of residual vectors with common errors
    usual: dict[str, Floats]  # quality -> (J, R) with the mean gap of the study, whatever the federation


class Ranking(NamedTuple):
    """The candidates of a federation; ``order`` holds one place per allowed choice, the best answer first."""

    order: list[Place]
    chance: Floats  # (J, R)
    utility: Floats  # (J, R)
    permitted: Bools  # (J,) by what the server may see
    reference: int | None  # FedAvg or the twin that privacy requires; None if neither was measured
    single: Place | None = None  # the best single choice among the allowed
    stay: bool = False  # whether the first choice is FedAvg, or not told apart from it
    average: Floats = np.zeros(0)  # (J, R) utilities on average over the study, by which a choice's rounds are picked
    any_fits: float = 0.0  # the chance that any permitted candidate finishes and keeps all limits

    def none_fits(self, asked: Requirements) -> bool:
        """Return whether the measurements show, with the confidence asked for, that no candidate fits."""
        return not self.order and self.any_fits < 1 - asked.confidence - 1e-12


def forecast(
    fitted: Fitted,
    at: Floats,
    gaps: Mapping[str, Floats],
    centralised: Floats | float | None,
    costs: Mapping[str, Floats],
    among: Ints,
) -> Forecast:
    """Return the forecast for a federation with features ``at`` from predicted gaps (J, R), with the errors of the settings ``among``.

    ``centralised``: logit of the baseline's accuracy. If it is known, another quality's baseline differs from it as in the
    study; if not (None), the level is the study's own.
    """
    values, spread, usual = {}, {}, {}
    for quality, gap in gaps.items():
        levels = fitted.levels[RESPONSES[quality].against or quality]
        base = np.zeros(len(levels)) if centralised is None else fitted.levels["accuracy"]
        apart = (levels - base)[among]
        mean = float(np.nanmean(apart))
        level = (0.0 if centralised is None else float(centralised)) + mean
        errors = fitted.residuals(quality)[among]
        values[quality] = from_logit(level + gap)
        spread[quality] = from_logit(level + (apart - mean)[:, None, None] + gap + errors)
        usual[quality] = from_logit(level + usual_gaps(fitted, quality, among))
    values |= costs
    return Forecast(values, spread, predict_finishes(fitted, at, among), fitted.groups()[among], usual)


def usual_gaps(fitted: Fitted, quality: str, among: Ints) -> Floats:
    """Return (J, R) the mean gaps over the settings ``among``; of a choice relative to FedAvg's, from the settings that have both."""
    apart = relative(fitted.gaps[quality][among], fitted.against)
    known = np.isfinite(apart)
    number = known.sum(axis=0)
    mean = np.divide(
        np.where(known, apart, 0.0).sum(axis=0), number, out=np.full(number.shape, np.nan), where=number > 0
    )
    return absolute(mean, fitted.against)


def rank(fitted: Fitted, seen: Forecast, asked: Requirements, barred: Collection[str] = ()) -> Ranking:
    """Return the order of the choices in a federation; ``barred`` ones cannot run in it."""
    utility = utility_of(fitted, seen.values, asked.weights)
    permitted = permitted_by(fitted, asked, barred)
    chance = chances(seen, asked)
    needed = asked.confidence - 1e-12 if asked.limits() else LIKELY
    open_to = (chance >= needed) & permitted[:, None] & np.isfinite(utility)
    known = [fitted.choices.index(name) for name in fitted.references if name in fitted.choices]
    reference = next((j for j in known if permitted[j]), None)
    average = utility_of(fitted, {**seen.values, **seen.usual}, asked.weights)
    average = np.where(np.isfinite(utility), np.nan_to_num(average, nan=-np.inf), np.nan)
    best = [pick(j, open_to[j], average, seen) for j in range(len(utility)) if open_to[j].any()]
    best.sort(key=lambda at: (-utility[at], *_costs(seen, at), fitted.choices[at[0]]))
    tests = Tests(fitted, seen, asked, max(len(best) - 1, 1))
    sound = [at for at in best if not any(tests.dominated(at, by) for by in best if by != at)] or best
    single, usual = (_single(tests, among, average) for among in (best, sound))
    first = [] if usual is None else [_first(tests, sound, utility, usual)]
    order = [*first, *(at for at in best if at not in first)]
    stay = stays(tests, order, reference)
    fits = any_fits(seen, asked, permitted[:, None] & np.isfinite(utility))
    return Ranking(order, chance, utility, permitted, reference, single, stay, average, fits)


def permitted_by(fitted: Fitted, asked: Requirements, barred: Collection[str] = ()) -> Bools:
    """Return (J,) whether the requirements do not exclude a choice, and it can run."""
    out = {*barred, *excluded(fitted, asked)}
    return np.array([choice not in out for choice in fitted.choices])


def utility_of(fitted: Fitted, values: Mapping[str, Floats], weights: Mapping[str, float]) -> Floats:
    """Return the weighted mean of responses scaled by the study's own ranges; more is better, nan if a response is unknown."""
    total: Floats = np.zeros(next(iter(values.values())).shape)
    for response, weight in weights.items():
        if weight == 0:
            continue
        if response not in values:
            raise ConfigError(
                f"[weights] on {response} require [federation] experiment: numbers are not enough to predict it."
            )
        low, high = fitted.ranges.get(response, (1.0, np.e))
        if RESPONSES[response].scale == "log":
            low, high = max(low, 1e-9), max(high, 1e-9)
            with np.errstate(divide="ignore"):  # an infinite epsilon has a utility of minus infinity
                scaled = np.log(high / np.maximum(values[response], 1e-9)) / max(np.log(high / low), 1e-9)
        else:
            scaled = (values[response] - low) / max(high - low, 1e-9)
        total = total + weight * scaled
    return total / sum(weights.values())


def holds(values: Mapping[str, Floats], asked: Requirements) -> Bools:
    """Return whether all limits hold, element by element. An unknown value fails every limit."""
    found = np.ones(np.broadcast_shapes(*(x.shape for x in values.values())), bool)
    for limit in asked.limits():
        if limit.response not in values:
            raise ConfigError(
                f"a limit on {limit.response} requires [federation] experiment: numbers are not enough to predict it."
            )
        found &= limit.sign * values[limit.response] >= limit.sign * limit.value
    return found


def chances(seen: Forecast, asked: Requirements) -> Floats:
    """Return (J, R) the chance that a candidate finishes and keeps all limits."""
    kept, known = _kept(seen, asked)
    number = known.sum(axis=0)
    share = np.divide(kept.sum(axis=0), number, out=np.zeros(number.shape), where=number > 0)
    found: Floats = np.minimum(share * np.nan_to_num(seen.finishes)[:, None], 1.0)
    return found


def any_fits(seen: Forecast, asked: Requirements, among: Bools) -> float:
    """Return the chance that at least one of the candidates ``among`` (J, R) finishes and keeps all limits.

    It is 0 only if computed costs exclude all of them. Else one more residual vector counts, under which one fits: so few vectors
    never show that none does.
    """
    if not (holds(seen.values, asked.on_costs()) & among).any():
        return 0.0
    kept, known = (x[:, among] for x in _kept(seen, asked))
    finishes = np.broadcast_to(np.nan_to_num(seen.finishes)[:, None], among.shape)[among]
    best = (kept * finishes).max(axis=1)[known.any(axis=1)]
    return min(float(best.sum() + 1) / (len(best) + 1), 1.0)


def _kept(seen: Forecast, asked: Requirements) -> tuple[Bools, Bools]:
    """Return (n, J, R) whether all limits hold under a residual vector, and whether it is known."""
    known = np.all([np.isfinite(x) for x in seen.spread.values()], axis=0)
    return holds({**seen.values, **seen.spread}, asked) & known, np.asarray(known)


def pick(choice: int, allowed: Bools, utility: Floats, seen: Forecast) -> Place:
    """Return the rounds with the largest utility among those allowed, ties to the lower cost."""
    places = [(choice, int(r)) for r in np.flatnonzero(allowed)]
    return min(places, key=lambda at: (-utility[at], *_costs(seen, at)))


def _costs(seen: Forecast, at: Place) -> list[float]:
    """Return the costs that order equal candidates. Seconds are not among them: a dry run measures others each time."""
    known = [seen.values[cost][at] for cost in ("flops", "bytes") if cost in seen.values]
    return [float(np.nan_to_num(one, nan=np.inf)) for one in known]


def promising(fitted: Fitted, seen: Forecast, asked: Requirements, ranking: Ranking) -> list[Place]:
    """Return a place for each permitted choice that keeps the limits on computed costs, the first the one to measure first.

    Chances are shares of data sets, mostly: those that differ from the largest by less than one data set are not told apart. Of these
    the choice that is best on average over the study comes first, as among the allowed; then the likelier.
    """
    open_to = ranking.permitted[:, None] & np.isfinite(ranking.utility) & holds(seen.values, asked.on_costs())
    near = ranking.chance.max(where=open_to, initial=0.0) - 1 / max(len(set(fitted.groups().tolist())), 1)

    def key(at: Place) -> tuple[Any, ...]:
        close = bool(ranking.chance[at] > near)
        return (not close, -ranking.average[at] if close else -ranking.chance[at], *_costs(seen, at), at)

    first: dict[int, Place] = {}
    for at in sorted(((int(j), int(r)) for j, r in np.argwhere(open_to)), key=key):
        first.setdefault(at[0], at)
    return list(first.values())


def nearest_miss(seen: Forecast, asked: Requirements, ranking: Ranking) -> Place | None:
    """Return the candidate most likely to keep all limits; None if none is permitted.

    Of those equally likely, the one whose costs exceed their limits least, then that of the largest utility.
    """
    known = ranking.permitted[:, None] & np.isfinite(ranking.utility)
    finite = np.all([~np.isinf(seen.values[limit.response]) for limit in asked.limits()], axis=0) & known
    known = finite if finite.any() else known
    places, excess = [(int(j), int(r)) for j, r in np.argwhere(known)], _excess(seen, asked)
    return max(places, key=lambda at: (ranking.chance[at], -excess[at], ranking.utility[at]), default=None)


def _excess(seen: Forecast, asked: Requirements) -> Floats:
    """Return (J, R) by how much costs exceed their limits: the sum of the logarithms of the ratios."""
    total = np.zeros(seen.values["accuracy"].shape)
    for limit in asked.limits():
        if not RESPONSES[limit.response].quality:
            value = np.nan_to_num(np.maximum(seen.values[limit.response], 1e-9), nan=np.inf)
            total += np.maximum(limit.sign * (math.log(max(limit.value, 1e-9)) - np.log(value)), 0.0)
    return total


class Tests(NamedTuple):
    """The comparisons of one answer, each with the confidence asked for divided among the rivals (Bonferroni)."""

    fitted: Fitted
    seen: Forecast
    asked: Requirements
    rivals: int

    def apart(self, one: Place, other: Place, weights: Mapping[str, float] | None = None) -> bool:
        """Return whether ``one`` has a larger utility than ``other`` in this federation; differences up to `TIE` are ignored."""
        weights = self.asked.weights if weights is None else weights
        gap = self.utilities(one, weights) - self.utilities(other, weights)
        confidence = 1 - (1 - self.asked.confidence) / self.rivals
        return further_low(gap, self.seen.groups, confidence) > 0 and bool(np.nanmean(gap) > TIE)

    def utilities(self, at: Place, weights: Mapping[str, float]) -> Floats:
        """Return (n,) utilities of a candidate, one for each left-out residual vector."""
        seen, size = self.seen, next(iter(self.seen.spread.values())).shape[0]
        values = {
            name: seen.spread.get(name, x)[..., at[0], at[1]] for name, x in seen.values.items() if weights.get(name)
        }
        return utility_of(self.fitted, {name: np.broadcast_to(x, (size,)) for name, x in values.items()}, weights)

    def dominated(self, at: Place, by: Place) -> bool:
        """Return whether a candidate is worse in quality, beyond the forecast's error, than one that costs no more."""
        cheaper = all(x <= y for x, y in zip(_costs(self.seen, by), _costs(self.seen, at), strict=True))
        return cheaper and self.apart(by, at, {"accuracy": 1.0})


def further_low(values: Floats, groups: Any, confidence: float) -> float:
    """Return a one-sided lower bound of the difference in a further federation, from ``values`` (n,) with the errors of left-out ones.

    The federation is one of a new group (a data set): its error varies as the groups' means do, and within a group. The mean of the
    groups is not known either. So the bound is mean - t s sqrt(1 + 1 / G), with Student's t of G groups and s^2 the variance of the
    groups' means plus what the mean over a group hides of the variance within.
    """
    each: dict[object, list[float]] = {}
    for group, value in zip(groups, values, strict=True):
        if np.isfinite(value):
            each.setdefault(group, []).append(float(value))
    found = np.array([np.mean(one) for one in each.values()])
    if len(found) < 2:
        return -np.inf
    hidden = np.mean([np.var(one) for one in each.values()])  # var (m - 1) / m: of m values, without that of their mean
    spread = np.sqrt((found.var(ddof=1) + hidden) * (1 + 1 / len(found)))
    return float(found.mean() - _student(confidence, len(found) - 1) * spread)


@cache
def _student(confidence: float, freedom: int) -> float:
    """Return the quantile of Student's t by simulation: SciPy has it, but takes too long to load."""
    return float(np.quantile(numpy_stream(0, "mean").standard_t(freedom, DRAWS), confidence))


def difference(seen: Forecast, one: Place, other: Place, confidence: float) -> tuple[float, float, float]:
    """Return how much more accurate ``one`` is than ``other`` in this federation, with one-sided bounds, each at ``confidence``."""
    spread = seen.spread["accuracy"]
    gap = spread[:, one[0], one[1]] - spread[:, other[0], other[1]]
    low, high = further_low(gap, seen.groups, confidence), -further_low(-gap, seen.groups, confidence)
    return float(np.nanmean(gap)), low, high


def stays(tests: Tests, order: Sequence[Place], reference: int | None) -> bool:
    """Return whether the first of some candidates is the reference, or not told apart from it."""
    return any(order[0] == at or not tests.apart(order[0], at) for at in order if at[0] == reference)


def _single(tests: Tests, among: Sequence[Place], average: Floats) -> Place | None:
    """Return the candidate that is best on average over the study; ties to the lower cost."""
    return min(among, key=lambda at: (-average[at], *_costs(tests.seen, at)), default=None)


def _first(tests: Tests, sound: Sequence[Place], utility: Floats, usual: Place) -> Place:
    """Return the answer: ``usual``, the best single choice, unless another is told apart from it. ``sound`` is sorted by utility."""
    better = (at for at in sound if utility[at] > utility[usual] and tests.apart(at, usual))
    return next(better, usual)

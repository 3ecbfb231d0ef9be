"""The order of choices in a federation: limits kept with a chance, one utility, and FedAvg first unless a choice is clearly better.

A candidate is a choice with a number of rounds. Its chance is the share of left-out residual vectors under which all limits hold at
once, times the chance that it finishes. It is allowed if this reaches the requested confidence. Its utility is the weighted mean
of its responses, each scaled by the range of the study's runs (costs on the log scale), so no limit affects it:
relaxing a limit only adds candidates.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np

from fedatlas.errors import ConfigError
from fedatlas.recommender.contest import Fitted, from_logit, predict_finishes, quantiles
from fedatlas.recommender.exclusions import excluded
from fedatlas.recommender.requirements import Requirements
from fedatlas.rng import numpy_stream
from fedatlas.study.measurements import Bools, Floats, Ints
from fedatlas.study.responses import RESPONSES

DRAWS = 4000
TIE = 0.01  # share of the study's range of utility below which a difference is a tie
Place = tuple[int, int]
"""A candidate: (choice, rounds) among those of the study."""


class Forecast(NamedTuple):
    """The predictions for one federation: J choices after R rounds, and n values per quality, one for each left-out residual vector."""

    values: dict[str, Floats]  # response -> (J, R)
    spread: dict[str, Floats]  # quality -> (n, J, R)
    finishes: Floats  # (J,)
    groups: Any = None
    """(n,) groups of residual vectors with common errors; None: each vector is a resampled mean."""


class Ranking(NamedTuple):
    """The candidates of a federation; ``order`` holds one place per allowed choice, the best answer first."""

    order: list[Place]
    chance: Floats  # (J, R)
    utility: Floats  # (J, R)
    permitted: Bools  # (J,) by what the server may see
    reference: int | None  # FedAvg or the twin that privacy requires; None if neither was measured


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
    values, spread = {}, {}
    for quality, gap in gaps.items():
        levels = fitted.levels[RESPONSES[quality].against or quality]
        base = np.zeros(len(levels)) if centralised is None else fitted.levels["accuracy"]
        apart = (levels - base)[among]
        mean = float(np.nanmean(apart))
        level = (0.0 if centralised is None else float(centralised)) + mean
        errors = fitted.residuals(quality)[among]
        values[quality] = from_logit(level + gap)
        spread[quality] = from_logit(level + (apart - mean)[:, None, None] + gap + errors)
    values |= costs
    return Forecast(values, spread, predict_finishes(fitted, at, among), fitted.groups()[among])


def rank(fitted: Fitted, seen: Forecast, asked: Requirements, barred: Collection[str] = ()) -> Ranking:
    """Return the order of the choices in a federation; ``barred`` ones cannot run in it."""
    utility = utility_of(fitted, seen.values, asked.weights)
    out = {*barred, *excluded(fitted, asked)}
    permitted = np.array([choice not in out for choice in fitted.choices])
    chance = chances(seen, asked)
    open_to = (chance >= asked.confidence - 1e-12) & permitted[:, None] & np.isfinite(utility)
    known = [fitted.choices.index(name) for name in fitted.references if name in fitted.choices]
    reference = next((j for j in known if permitted[j]), None)
    best = [pick(j, open_to[j], utility, seen) for j in range(len(utility)) if open_to[j].any()]
    best.sort(key=lambda at: (-utility[at], *_costs(seen, at), fitted.choices[at[0]]))
    first = _first(fitted, seen, asked, best, utility, reference)
    return Ranking([*first, *(at for at in best if at not in first)], chance, utility, permitted, reference)


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
    kept = holds({**seen.values, **seen.spread}, asked)
    known = np.all([np.isfinite(x) for x in seen.spread.values()], axis=0)
    number = known.sum(axis=0)
    share = np.divide((kept & known).sum(axis=0), number, out=np.zeros(number.shape), where=number > 0)
    found: Floats = np.minimum(share * np.nan_to_num(seen.finishes)[:, None], 1.0)
    return found


def pick(choice: int, allowed: Bools, utility: Floats, seen: Forecast) -> Place:
    """Return the rounds with the largest utility among those allowed, ties to the lower cost."""
    places = [(choice, int(r)) for r in np.flatnonzero(allowed)]
    return min(places, key=lambda at: (-utility[at], *_costs(seen, at)))


def _costs(seen: Forecast, at: Place) -> list[float]:
    return [float(np.nan_to_num(seen.values[cost][at], nan=np.inf)) for cost in ("cpu_seconds", "bytes")]


def told_apart(
    fitted: Fitted, seen: Forecast, weights: Mapping[str, float], one: Place, other: Place, confidence: float
) -> bool:
    """Return whether ``one`` has a larger expected utility than ``other`` with this confidence, under the same left-out residual vectors.

    The question is which choice is better on average in federations like this one, so the interval is that of a mean, one-sided
    by Student's t. The vectors of one group (a data set, for new data) count as one observation. Differences up to `TIE` are ignored.
    """
    size = next(iter(seen.spread.values())).shape[0]

    def utilities(at: Place) -> Floats:
        values = {
            name: seen.spread.get(name, x)[..., at[0], at[1]] for name, x in seen.values.items() if weights.get(name)
        }
        return utility_of(fitted, {name: np.broadcast_to(x, (size,)) for name, x in values.items()}, weights)

    apart = utilities(one) - utilities(other)
    return mean_low(apart, seen.groups, confidence) > 0 and bool(np.nanmean(apart) > TIE)


def mean_low(values: Floats, groups: Any, confidence: float) -> float:
    """Return the one-sided lower bound of the mean of ``values`` (n,); of the values themselves if each is already a mean."""
    if groups is None or not np.isfinite(values).any():
        return quantiles(values, confidence)[0]
    each: dict[object, list[float]] = {}
    for group, value in zip(groups, values, strict=True):
        if np.isfinite(value):
            each.setdefault(group, []).append(float(value))
    found = np.array([np.mean(one) for one in each.values()])
    if len(found) == 1:
        return -np.inf
    # SciPy has the quantiles of t, but takes too long to load.
    t = numpy_stream(0, "mean").standard_t(len(found) - 1, DRAWS)
    return float(found.mean() - np.quantile(t, confidence) * found.std(ddof=1) / np.sqrt(len(found)))


def dominated(fitted: Fitted, seen: Forecast, at: Place, by: Place, confidence: float) -> bool:
    """Return whether a candidate is worse in quality, beyond the variation of left-out settings, than one that costs no more."""
    cheaper = all(x <= y for x, y in zip(_costs(seen, by), _costs(seen, at), strict=True))
    return cheaper and told_apart(fitted, seen, {"accuracy": 1.0}, by, at, confidence)


def _first(
    fitted: Fitted, seen: Forecast, asked: Requirements, best: list[Place], utility: Floats, reference: int | None
) -> list[Place]:
    """Return the answer as a list of one, or an empty list. ``best`` is sorted by utility."""

    def apart(one: Place, other: Place) -> bool:
        return told_apart(fitted, seen, asked.weights, one, other, asked.confidence)

    def beaten(at: Place) -> bool:
        return any(dominated(fitted, seen, at, by, asked.confidence) for by in best if by != at)

    sound = [at for at in best if not beaten(at)] or best
    plain = [at for at in sound if at[0] == reference]
    if plain:
        better = [at for at in sound if at != plain[0] and utility[at] > utility[plain[0]] and apart(at, plain[0])]
        return better[:1] or plain
    ties = [
        at for at in sound if utility[sound[0]] - utility[at] <= TIE and (at == sound[0] or not apart(sound[0], at))
    ]
    return [min(ties, key=lambda at: (*_costs(seen, at), -utility[at]))] if ties else []

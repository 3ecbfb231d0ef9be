"""Which choice stands first in a federation: limits with a chance, one utility, and FedAvg first where nothing is told apart from it.

A candidate is a choice with a number of rounds. Its chance is the share of left-out residual vectors under which all limits hold at
once, times the chance that it finishes; it is allowed where that reaches the confidence asked for. Its utility is the weighted mean
of its responses, each scaled by the range that the study's runs have (costs on the log scale), so that no limit changes it:
relaxing one only adds candidates.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedatlas.errors import ConfigError
from fedatlas.recommender.contest import QUALITIES, Fitted, quantiles
from fedatlas.recommender.requirements import SEES, Requirements
from fedatlas.rng import numpy_stream
from fedatlas.study.measurements import Floats

DRAWS = 4000
TIE = 0.01  # of the study's range of utility: what is nearer is a tie


class Outlook(NamedTuple):
    """What is foreseen in one federation: J choices after R rounds, and n values a quality, one a left-out residual vector."""

    values: dict[str, Floats]  # response -> (J, R)
    spread: dict[str, Floats]  # quality -> (n, J, R)
    finishes: Floats  # (J,)
    groups: Sequence[object] | None = None  # (n,) which residual vectors err together; None: each is a mean drawn anew


class Ranking(NamedTuple):
    """The candidates of a federation, as (choice, rounds) places; ``order`` holds one a choice that is allowed, the first answer first."""

    order: list[tuple[int, int]]
    chance: Floats  # (J, R)
    utility: Floats  # (J, R)
    permitted: NDArray[np.bool_]  # (J,) under what the server may see
    reference: int | None  # FedAvg or the twin that privacy asks for; None where none was measured


def rank(
    fitted: Fitted, outlook: Outlook, asked: Requirements, references: Sequence[str], barred: Collection[str] = ()
) -> Ranking:
    """The order of the choices in a federation; ``barred`` ones cannot run in it."""
    utility = utility_of(fitted, outlook.values, asked.weights)
    permitted = np.array(
        [
            SEES.index(sees) >= SEES.index(asked.server_sees) and choice not in barred
            for choice, sees in zip(fitted.choices, fitted.sees, strict=True)
        ]
    )
    chance = chances(outlook, asked)
    open_to = (chance >= asked.confidence - 1e-12) & permitted[:, None] & np.isfinite(utility)
    reference = next(
        (fitted.choices.index(n) for n in references if n in fitted.choices and permitted[fitted.choices.index(n)]),
        None,
    )
    best = [pick(j, open_to[j], utility, outlook) for j in range(len(utility)) if open_to[j].any()]
    best.sort(key=lambda at: (-utility[at], *_costs(outlook, at), fitted.choices[at[0]]))
    first = _first(fitted, outlook, asked, best, utility, reference)
    return Ranking([*first, *(at for at in best if at not in first)], chance, utility, permitted, reference)


def utility_of(fitted: Fitted, values: dict[str, Floats], weights: dict[str, float]) -> Floats:
    """The weighted mean of responses scaled by the study's own ranges; more is better. nan where a response is not known."""
    total: Floats = np.zeros(next(iter(values.values())).shape)
    for response, weight in weights.items():
        if weight == 0:
            continue
        if response not in values:
            raise ConfigError(f"[weights] on {response} need [federation] experiment: numbers alone do not tell it.")
        low, high = fitted.ranges.get(response, (1.0, np.e))
        if response in QUALITIES:
            scaled = (values[response] - low) / max(high - low, 1e-9)
        else:
            low, high = max(low, 1e-9), max(high, 1e-9)
            scaled = np.log(high / np.maximum(values[response], 1e-9)) / max(np.log(high / low), 1e-9)
        total = total + weight * scaled
    return total / sum(weights.values())


def holds(values: dict[str, Floats], asked: Requirements) -> NDArray[np.bool_]:
    """Whether all limits hold, element by element. What is not known holds no limit."""
    found = np.ones(np.broadcast_shapes(*(x.shape for x in values.values())), bool)
    for limits, sign in ((asked.at_least, 1), (asked.at_most, -1)):
        for response, limit in limits.items():
            if response not in values:
                raise ConfigError(f"a limit on {response} needs [federation] experiment: numbers alone do not tell it.")
            found &= sign * values[response] >= sign * limit
    return found


def chances(outlook: Outlook, asked: Requirements) -> Floats:
    """(J, R) chance that a candidate finishes and keeps all limits."""
    kept = holds({**outlook.values, **outlook.spread}, asked)
    known = np.all([np.isfinite(x) for x in outlook.spread.values()], axis=0)
    number = known.sum(axis=0)
    share = np.divide((kept & known).sum(axis=0), number, out=np.zeros(number.shape), where=number > 0)
    found: Floats = np.minimum(share * np.nan_to_num(outlook.finishes)[:, None], 1.0)
    return found


def pick(choice: int, allowed: NDArray[np.bool_], utility: Floats, outlook: Outlook) -> tuple[int, int]:
    """The rounds with the largest utility among those allowed, ties to what costs less."""
    places = [(choice, int(r)) for r in np.flatnonzero(allowed)]
    return min(places, key=lambda at: (-utility[at], *_costs(outlook, at)))


def _costs(outlook: Outlook, at: tuple[int, int]) -> tuple[float, float]:
    return tuple(float(np.nan_to_num(outlook.values[cost][at], nan=np.inf)) for cost in ("cpu_seconds", "bytes"))  # type: ignore[return-value]


def told_apart(
    fitted: Fitted,
    outlook: Outlook,
    weights: dict[str, float],
    one: tuple[int, int],
    other: tuple[int, int],
    confidence: float,
) -> bool:
    """Whether the expected utility of ``one`` is above the ``other``'s with this confidence, both under the same left-out residual vectors.

    What is asked is which choice is better on average in federations like this one, so that the interval is that of a mean, one-sided
    by Student's t; the vectors of one group (a data set, where data are new) count as one observation. Less than `TIE` is nothing.
    """
    pairs = []
    for at in (one, other):
        values = {
            name: outlook.spread.get(name, x)[..., at[0], at[1]]
            for name, x in outlook.values.items()
            if weights.get(name)
        }
        size = next(iter(outlook.spread.values())).shape[0]
        pairs.append(utility_of(fitted, {name: np.broadcast_to(x, (size,)) for name, x in values.items()}, weights))
    apart = pairs[0] - pairs[1]
    return mean_low(apart, outlook.groups, confidence) > 0 and bool(np.nanmean(apart) > TIE)


def mean_low(values: Floats, groups: Sequence[object] | None, confidence: float) -> float:
    """The one-sided lower bound of the mean of ``values`` (n,); of the values themselves where each is a mean already."""
    known = np.isfinite(values)
    if groups is None or not known.any():
        return quantiles(values, confidence)[0]
    each: dict[object, list[float]] = {}
    for group, value in zip(groups, values, strict=True):
        if np.isfinite(value):
            each.setdefault(group, []).append(float(value))
    found = np.array([np.mean(one) for one in each.values()])
    if len(found) == 1:
        return -np.inf
    # SciPy, which has the quantiles of t, takes too long to load.
    t = numpy_stream(0, "mean").standard_t(len(found) - 1, DRAWS)
    return float(found.mean() - np.quantile(t, confidence) * found.std(ddof=1) / np.sqrt(len(found)))


def dominated(fitted: Fitted, outlook: Outlook, at: tuple[int, int], by: tuple[int, int], confidence: float) -> bool:
    """Whether a candidate is beaten in quality beyond what left-out settings vary by, by one that costs no more."""
    cheaper = all(x <= y for x, y in zip(_costs(outlook, by), _costs(outlook, at), strict=True))
    return cheaper and told_apart(fitted, outlook, {"accuracy": 1.0}, by, at, confidence)


def _first(
    fitted: Fitted,
    outlook: Outlook,
    asked: Requirements,
    best: list[tuple[int, int]],
    utility: Floats,
    reference: int | None,
) -> list[tuple[int, int]]:
    """The answer as a list of one, or none. ``best`` is sorted by utility."""

    def apart(one: tuple[int, int], other: tuple[int, int]) -> bool:
        return told_apart(fitted, outlook, asked.weights, one, other, asked.confidence)

    sound = [
        at for at in best if not any(dominated(fitted, outlook, at, by, asked.confidence) for by in best if by != at)
    ] or best
    plain = [at for at in sound if at[0] == reference]
    if plain:
        better = [at for at in sound if at != plain[0] and utility[at] > utility[plain[0]] and apart(at, plain[0])]
        return better[:1] or plain
    ties = [
        at for at in sound if utility[sound[0]] - utility[at] <= TIE and (at == sound[0] or not apart(sound[0], at))
    ]
    return [min(ties, key=lambda at: (*_costs(outlook, at), -utility[at]))] if ties else []

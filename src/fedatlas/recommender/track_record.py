"""How good the answers were where it can be checked: in the measured federations most like the user's, left out in turn.

Each is asked the same requirements as if it were new (with its whole data set left out where there are several), and the first
answer is held against what was measured there, beside FedAvg with the rate that the study picked for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedatlas.recommender.contest import LEVEL_OF, Fitted, from_logit, groups
from fedatlas.recommender.ranking import Outlook, holds, pick, rank
from fedatlas.recommender.requirements import Requirements
from fedatlas.rng import numpy_stream
from fedatlas.study.measurements import Floats

MOST = 20  # federations of a record
POINT = 0.01  # of accuracy
DRAWS = 2000


class Trial(NamedTuple):
    """One federation, left out: what was answered, and what it came to. ``answer`` None: none was found to fit."""

    setting: tuple[str, ...]
    answer: tuple[str, int] | None
    kept: bool  # the answer finished there and kept all limits
    near_best: bool  # within one point of the best accuracy that keeps the limits
    reference_kept: bool
    reference_near_best: bool
    difference: float | None  # accuracy less the reference's, at the rounds of each
    regret: float | None  # of accuracy, from the best
    possible: bool  # whether anything measured there keeps the limits


def track_record(
    fitted: Fitted,
    asked: Requirements,
    at: Floats,
    references: Sequence[str],
    *,
    new_data: bool = True,
    most: int = MOST,
    seed: int = 0,
) -> dict[str, Any]:
    """The record over the ``most`` federations nearest to ``at``; the paired difference has a bootstrap interval of 95% over them."""
    away = np.square((fitted.x - at) / fitted.scale).sum(axis=1)
    trials = [
        trial(fitted, asked, int(i), references, new_data=new_data) for i in np.argsort(away, kind="stable")[:most]
    ]
    answered = [t for t in trials if t.answer is not None]
    pairs = np.array([t.difference for t in answered if t.difference is not None])
    low, high = None, None
    if len(pairs) > 1:
        picks = numpy_stream(seed, "track").integers(len(pairs), size=(DRAWS, len(pairs)))
        low, high = (float(x) for x in np.quantile(pairs[picks].mean(axis=1), [0.025, 0.975]))
    return {
        "federations": len(trials),
        "answered": len(answered),
        "wrong_none": sum(t.answer is None and t.possible for t in trials),
        "kept": sum(t.kept for t in answered),
        "near_best": sum(t.near_best for t in answered),
        "reference_kept": sum(t.reference_kept for t in answered),
        "reference_near_best": sum(t.reference_near_best for t in answered),
        "difference": {
            "value": float(pairs.mean()) if len(pairs) else None,
            "low": low,
            "high": high,
            "federations": len(pairs),
        },
    }


def trial(fitted: Fitted, asked: Requirements, i: int, references: Sequence[str], *, new_data: bool = True) -> Trial:
    """Setting ``i`` asked as if it had not been measured; its costs, which are computed, are its own."""
    rest = _others(fitted, i, new_data)
    outlook, level = _outlook(fitted, i, rest, asked.centralised is not None, new_data)
    ranking = rank(fitted, outlook, asked._replace(centralised=level), references)
    obtained = {q: from_logit(fitted.levels[LEVEL_OF.get(q, q)][i] + y[i]) for q, y in fitted.gaps.items()}
    obtained |= costs_of(fitted, i)
    finished = np.nan_to_num(fitted.finishes[i]) > 0.5
    kept = holds(obtained, asked) & finished[:, None] & ranking.permitted[:, None] & np.isfinite(obtained["accuracy"])
    best = float(obtained["accuracy"][kept].max()) if kept.any() else np.nan
    place = ranking.order[0] if ranking.order else None
    plain = _reference(ranking.reference, ranking.utility, outlook)

    def reached(where: tuple[int, int] | None) -> tuple[bool, bool, float]:
        if where is None:
            return False, False, np.nan
        ok = bool(kept[where])
        return ok, ok and bool(obtained["accuracy"][where] >= best - POINT), float(obtained["accuracy"][where])

    first, second = reached(place), reached(plain)
    told = np.isfinite(first[2]) and np.isfinite(second[2])
    return Trial(
        fitted.settings[i],
        None if place is None else (fitted.choices[place[0]], fitted.rounds[place[1]]),
        first[0],
        first[1],
        second[0],
        second[1],
        first[2] - second[2] if told else None,
        best - first[2] if np.isfinite(best) and np.isfinite(first[2]) else None,
        bool(kept.any()),
    )


def costs_of(fitted: Fitted, i: int) -> dict[str, Floats]:
    """What was counted in a setting; seconds by the clock are there those of its one process."""
    found = {cost: y[i] for cost, y in fitted.costs.items()}
    return {**found, "seconds": found["cpu_seconds"]}


def _reference(j: int | None, utility: Floats, outlook: Outlook) -> tuple[int, int] | None:
    """FedAvg at the rounds with the largest utility that was foreseen, its limits being judged afterwards."""
    if j is None or not np.isfinite(utility[j]).any():
        return None
    return pick(j, np.isfinite(utility[j]), utility, outlook)


def _others(fitted: Fitted, i: int, new_data: bool) -> np.ndarray:
    """The settings that may be known where ``i`` is left out: those of other data sets, or all but itself."""
    if new_data and fitted.by_data:
        return np.flatnonzero(np.array(fitted.data) != fitted.data[i])
    return np.flatnonzero(np.arange(len(fitted.data)) != i)


def _outlook(fitted: Fitted, i: int, rest: np.ndarray, told: bool, new_data: bool) -> tuple[Outlook, float | None]:
    """What would have been foreseen of setting ``i``, and its baseline's accuracy where the user tells his."""
    left = fitted.by_data if new_data and fitted.by_data else fitted.by_setting
    base = fitted.levels["accuracy"] if told else np.zeros(len(fitted.data))
    values, spread = {}, {}
    for quality, y in fitted.gaps.items():
        levels = fitted.levels[LEVEL_OF.get(quality, quality)]
        mean = float(np.nanmean((levels - base)[rest]))
        off = (levels - base)[rest] - mean
        values[quality] = from_logit(base[i] + mean + left[quality][i])
        errors = (y - left[quality])[rest]
        spread[quality] = from_logit(base[i] + mean + left[quality][i] + off[:, None, None] + errors)
    values |= costs_of(fitted, i)
    away = 1.0 / np.maximum(np.square((fitted.x[rest] - fitted.x[i]) / fitted.scale).sum(axis=1), 1e-12)[:, None]
    known = np.isfinite(fitted.finishes[rest])
    sums = (away * known).sum(axis=0)
    share = (away * np.nan_to_num(fitted.finishes[rest])).sum(axis=0)
    finishes = np.divide(share, sums, out=np.full(sums.shape, np.nan), where=sums > 0)
    alike = groups(fitted, new_data)
    return Outlook(values, spread, finishes, [alike[k] for k in rest]), float(
        from_logit(np.asarray(base[i]))
    ) if told else None

"""Quality of the answers where it can be checked: in the measured federations most like the user's, left out in turn.

Each is queried with the same requirements as if it were new (with its whole data set left out if there are several). The best
answer is compared with the measurements there, and with FedAvg at the rate that the study picked for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedatlas.recommender.choice_costs import costs_in
from fedatlas.recommender.contest import Fitted, from_logit
from fedatlas.recommender.ranking import Forecast, Place, forecast, holds, permitted_by, pick, rank
from fedatlas.recommender.requirements import Requirements
from fedatlas.rng import numpy_stream
from fedatlas.study.measurements import Bools, Floats
from fedatlas.study.responses import RESPONSES

MOST = 20  # most federations in a record
POINT = 0.01  # of accuracy
DRAWS = 2000


class LeftOutTrial(NamedTuple):
    """One left-out federation: whether it got an answer, and how good the answer was."""

    answered: bool
    kept: bool  # the answer finished there and kept all limits
    near_best: bool  # within one point of the best accuracy that keeps the limits
    reference_kept: bool
    reference_near_best: bool
    difference: float | None  # accuracy minus the reference's, at the rounds of each
    regret: float | None  # in accuracy, from the best
    possible: bool  # something measured there keeps the limits
    none: bool = False  # the answer is none, not only not known


def track_record(
    fitted: Fitted,
    asked: Requirements,
    at: Floats,
) -> dict[str, Any]:
    """Return the record over the `MOST` federations nearest to ``at``; the paired difference has a 95% bootstrap interval over them."""
    trials = [trial(fitted, asked, int(i)) for i in fitted.nearest(at)[:MOST]]
    answered = [t for t in trials if t.answered]
    pairs = np.array([t.difference for t in answered if t.difference is not None])
    interval: list[float | None] = [None, None]
    if len(pairs) > 1:
        picks = numpy_stream(0, "track").integers(len(pairs), size=(DRAWS, len(pairs)))
        interval = [float(x) for x in np.quantile(pairs[picks].mean(axis=1), [0.025, 0.975])]
    value = float(pairs.mean()) if len(pairs) else None
    return {
        "federations": len(trials),
        **tally(trials),
        "difference": {"value": value, "low": interval[0], "high": interval[1], "federations": len(pairs)},
    }


def tally(trials: Sequence[LeftOutTrial]) -> dict[str, int]:
    """Count the left-out federations by the outcome of their answers."""
    answered = [t for t in trials if t.answered]
    kept = ("kept", "near_best", "reference_kept", "reference_near_best")
    return {
        "answered": len(answered),
        "not_known": sum(not t.answered and not t.none for t in trials),
        "wrong_none": sum(t.possible and t.none for t in trials),
        **{name: sum(getattr(t, name) for t in answered) for name in kept},
    }


def trial(fitted: Fitted, asked: Requirements, i: int) -> LeftOutTrial:
    """Return the trial of setting ``i`` as if it had not been measured; its costs, which are computed, are its own."""
    costs = with_seconds(fitted, i)
    gaps = {quality: y[i] for quality, y in fitted.left_out().items() if quality in fitted.gaps}
    level = None if asked.centralised is None else fitted.levels["accuracy"][i]
    seen = forecast(fitted, fitted.x[i], gaps, level, costs, fitted.others(i))
    ranking = rank(fitted, seen, asked)
    accuracy, kept = measured_in(fitted, asked, i)
    best = float(accuracy[kept].max()) if kept.any() else np.nan
    place = ranking.order[0] if ranking.order else None

    def reached(where: Place | None) -> tuple[bool, bool, float]:
        if where is None:
            return False, False, np.nan
        ok = bool(kept[where])
        return ok, ok and bool(accuracy[where] >= best - POINT), float(accuracy[where])

    first, second = reached(place), reached(_reference(ranking.reference, ranking.average, seen))
    return LeftOutTrial(
        place is not None,
        *first[:2],
        *second[:2],
        first[2] - second[2] if np.isfinite(first[2] - second[2]) else None,
        best - first[2] if np.isfinite(best - first[2]) else None,
        bool(kept.any()),
        ranking.none_fits(asked),
    )


def with_seconds(fitted: Fitted, i: int) -> dict[str, Floats]:
    """Return cost -> (J, R) as in setting ``i``; seconds by the clock are those of its one process."""
    costs = costs_in(fitted, i)
    return {**costs, "seconds": costs["cpu_seconds"]}


def measured_in(fitted: Fitted, asked: Requirements, i: int) -> tuple[Floats, Bools]:
    """Return (J, R) the accuracy measured in setting ``i``, and which candidates finished there and keep all limits."""
    measured = {q: from_logit(fitted.levels[RESPONSES[q].against or q][i] + y[i]) for q, y in fitted.gaps.items()}
    accuracy = measured["accuracy"]
    done = (np.nan_to_num(fitted.finishes[i]) > 0.5) & permitted_by(fitted, asked)
    return accuracy, holds({**measured, **with_seconds(fitted, i)}, asked) & done[:, None] & np.isfinite(accuracy)


def _reference(j: int | None, utility: Floats, seen: Forecast) -> Place | None:
    """Return FedAvg at the rounds with the largest utility on average; its limits are checked afterwards."""
    if j is None or not np.isfinite(utility[j]).any():
        return None
    return pick(j, np.isfinite(utility[j]), utility, seen)

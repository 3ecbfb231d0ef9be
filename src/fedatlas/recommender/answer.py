"""Which configuration for these requirements, with the evidence (X12): an answer of plain values, or none and the nearest miss.

Quality is predicted and has an interval; costs are computed: those of the nearest measured setting, bytes and messages in
proportion to nodes, operations and CPU-seconds to rows, unless ``computed`` gives the user's own. Choices that were not measured
are never named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedatlas.errors import ConfigError
from fedatlas.recommender.contest import (
    COSTS,
    LEVEL_OF,
    Fitted,
    from_logit,
    groups,
    logit,
    predict_finishes,
    predict_gaps,
    quantiles,
    residuals,
)
from fedatlas.recommender.ranking import Outlook, Ranking, chances, pick, rank
from fedatlas.recommender.requirements import SEES, Requirements
from fedatlas.recommender.track_record import track_record
from fedatlas.study.front import not_dominated
from fedatlas.study.measurements import Floats, describe

TOP = 3
NEAREST = 3  # measured settings that are shown as evidence for a choice
REFERENCES = ("fedavg", "fedavg_secagg")


def recommend(
    fitted: Fitted,
    asked: Requirements,
    *,
    references: Sequence[str] = REFERENCES,
    computed: Mapping[str, Floats] | None = None,
    new_data: bool = True,
    track: bool = True,
    barred: Mapping[str, str] | None = None,
    outlook: Outlook | None = None,
) -> dict[str, Any]:
    """The answer to requirements whose federation is known.

    ``computed``: response -> (J, R) figures of the user's own model and machine, nan where not known. ``new_data`` False only for
    one of the study's own data sets: intervals then come from left-out settings instead of left-out data sets. ``barred``: choice ->
    why it cannot run there. ``outlook``: what was measured there, in place of what is foreseen.
    """
    at, barred = place_of(fitted, asked), barred or {}
    seen = outlook or foresee(fitted, at, asked.centralised, new_data=new_data, computed=computed)
    ranking = rank(fitted, seen, asked, references, barred)
    top = [_entry(fitted, seen, asked, ranking, place, at) for place in ranking.order[:TOP]]
    return {
        "answer": "found" if top else "none",
        "top": top,
        "nearest_miss": None if top else _nearest_miss(fitted, seen, asked, ranking),
        "refused": _refused(fitted, asked, barred),
        "reference": None if ranking.reference is None else fitted.choices[ranking.reference],
        "setting": _setting(fitted, asked, at),
        "predicted_by": fitted.way,
        "notes": _notes(fitted, asked, computed, new_data) if outlook is None else [],
        "track_record": track_record(fitted, asked, at, references, new_data=new_data) if track else None,
    }


def _refused(fitted: Fitted, asked: Requirements, barred: Mapping[str, str]) -> list[dict[str, str]]:
    """The choices that are out of the question, with the sentence that says why."""
    out = [{"choice": name, "reason": reason} for name, reason in sorted(barred.items()) if name in fitted.choices]
    for name, sees in zip(fitted.choices, fitted.sees, strict=True):
        if name not in barred and SEES.index(sees) < SEES.index(asked.server_sees):
            out.append(
                {"choice": name, "reason": f"the server sees {sees}, privacy.server_sees asks for {asked.server_sees}."}
            )
    return out


def place_of(fitted: Fitted, asked: Requirements) -> Floats:
    """The features of the user's federation; unknown classes are the median of the study's."""
    if asked.nodes is None or asked.rows is None or asked.heterogeneity is None:
        raise ConfigError(
            "the federation is not known yet: its experiment has to be measured first, or give nodes, rows, heterogeneity."
        )
    classes = float(np.median(fitted.x[:, 3])) if asked.classes is None else asked.classes
    return describe(asked.nodes, asked.rows, asked.heterogeneity, classes)


def foresee(
    fitted: Fitted,
    at: Floats,
    centralised: float | None,
    *,
    new_data: bool,
    computed: Mapping[str, Floats] | None = None,
) -> Outlook:
    """What is foreseen of every choice and number of rounds in a federation with features ``at``."""
    values, spread = {}, {}
    for quality in fitted.gaps:
        gap, error = predict_gaps(fitted, at, quality), residuals(fitted, quality, new_data)
        level, off = level_of(fitted, quality, centralised)
        values[quality] = from_logit(level + gap)
        spread[quality] = from_logit(level + off[:, None, None] + gap + error)
    values |= _nearest_costs(fitted, at) | dict(computed or {})
    return Outlook(values, spread, predict_finishes(fitted, at), groups(fitted, new_data))


def level_of(fitted: Fitted, quality: str, centralised: float | None) -> tuple[float, Floats]:
    """The baseline's logit that a gap is added to, and (n,) how far the study's settings lie off it.

    Where the accuracy of the baseline is known, another quality differs from it as it does in the study; where not, the level is
    the study's own.
    """
    levels = fitted.levels[LEVEL_OF.get(quality, quality)]
    base = np.zeros(len(levels)) if centralised is None else fitted.levels["accuracy"]
    known = 0.0 if centralised is None else float(logit(centralised))
    mean = float(np.nanmean(levels - base))
    return known + mean, levels - base - mean


def _nearest_costs(fitted: Fitted, at: Floats) -> dict[str, Floats]:
    """cost -> (J, R) of the nearest setting in which the choice was measured, in proportion to nodes or rows."""
    found = {cost: np.full(y.shape[1:], np.nan) for cost, y in fitted.costs.items()}
    order = np.argsort(distances(fitted, at), kind="stable")
    for j in range(len(fitted.choices)):
        near = next((i for i in order if np.isfinite(fitted.costs["bytes"][i, j]).any()), None)
        if near is None:
            continue
        nodes = float(np.exp(at[0] - fitted.x[near, 0]))
        rows = nodes * float(np.exp(at[1] - fitted.x[near, 1]))
        factor = {"bytes": nodes, "messages": nodes, "flops": rows, "cpu_seconds": rows}
        for cost in COSTS:
            found[cost][j] = fitted.costs[cost][near, j] * factor.get(cost, 1.0)
    return found


def distances(fitted: Fitted, at: Floats) -> Floats:
    """(n,) distances of the measured settings, each feature in its standard deviations."""
    found: Floats = np.sqrt(np.square((fitted.x - at) / fitted.scale).sum(axis=1))
    return found


def _entry(
    fitted: Fitted, outlook: Outlook, asked: Requirements, ranking: Ranking, place: tuple[int, int], at: Floats
) -> dict[str, Any]:
    """One line of the answer."""
    j, r = place
    return {
        "choice": fitted.choices[j],
        "rounds": fitted.rounds[r],
        "predicted": {name: predicted(outlook, name, place, asked.confidence) for name in outlook.values},
        "utility": float(ranking.utility[place]),
        "chance": float(ranking.chance[place]),
        "finishes": float(outlook.finishes[j]),
        "front": _on_front(outlook, ranking, place),
        "binding": _binding(outlook, asked, ranking, place),
        "distance": float(distances(fitted, at).min()),
        "evidence": _evidence(fitted, place, at, ranking.reference),
    }


def predicted(outlook: Outlook, name: str, place: tuple[int, int], confidence: float) -> dict[str, float | None]:
    """value, low and high of a response; what is computed has no interval, and what is not known is None."""
    value = float(outlook.values[name][place])
    low, high = value, value
    if name in outlook.spread:
        low, high = quantiles(outlook.spread[name][:, place[0], place[1]], confidence)
        low, high = min(low, value), max(high, value)
    return {key: float(x) if np.isfinite(x) else None for key, x in (("value", value), ("low", low), ("high", high))}


def _on_front(outlook: Outlook, ranking: Ranking, place: tuple[int, int]) -> bool:
    """Whether no other allowed choice of the answer has better accuracy, CPU-seconds and bytes together."""
    points = np.array(
        [
            [s * outlook.values[n][at] for n, s in (("accuracy", 1), ("cpu_seconds", -1), ("bytes", -1))]
            for at in ranking.order
        ]
    )
    return bool(not_dominated(points)[ranking.order.index(place)])


def _binding(outlook: Outlook, asked: Requirements, ranking: Ranking, place: tuple[int, int]) -> list[str]:
    """The limits without which this choice would reach a larger utility."""
    found, j = [], place[0]
    for table, limits in (("at_least", asked.at_least), ("at_most", asked.at_most)):
        for response in limits:
            kept = {name: limit for name, limit in limits.items() if name != response}
            fewer = asked._replace(at_least=kept) if table == "at_least" else asked._replace(at_most=kept)
            without = chances(outlook, fewer)
            allowed = (without[j] >= asked.confidence - 1e-12) & np.isfinite(ranking.utility[j])
            if (
                allowed.any()
                and ranking.utility[pick(j, allowed, ranking.utility, outlook)] > ranking.utility[place] + 1e-12
            ):
                found.append(f"{table}.{response}")
    return found


def _evidence(fitted: Fitted, place: tuple[int, int], at: Floats, reference: int | None) -> list[dict[str, Any]]:
    """The nearest settings in which this choice was measured: how far away, its accuracy there, the reference's, the baseline's."""
    j, r = place
    away, found = distances(fitted, at), []
    reached = from_logit(fitted.levels["accuracy"][:, None, None] + fitted.gaps["accuracy"])
    for i in [i for i in np.argsort(away, kind="stable") if np.isfinite(reached[i, j, r])][:NEAREST]:
        beside = (
            None if reference is None or not np.isfinite(reached[i, reference, r]) else float(reached[i, reference, r])
        )
        found.append(
            {
                "setting": list(fitted.settings[i]),
                "data": fitted.data[i],
                "distance": float(away[i]),
                "rounds": fitted.rounds[r],
                "accuracy": float(reached[i, j, r]),
                "reference": beside,
                "centralised": float(from_logit(fitted.levels["accuracy"][i])),
            }
        )
    return found


def _nearest_miss(fitted: Fitted, outlook: Outlook, asked: Requirements, ranking: Ranking) -> dict[str, Any] | None:
    """The candidate likeliest to keep all limits, ties to the larger utility, and by how much it misses each limit at this confidence."""
    known = ranking.permitted[:, None] & np.isfinite(ranking.utility)
    if not known.any():
        return None
    places = [(int(j), int(r)) for j, r in np.argwhere(known)]
    j, r = max(places, key=lambda at: (ranking.chance[at], ranking.utility[at]))
    violates = []
    for limits, end, sign in ((asked.at_least, "low", 1), (asked.at_most, "high", -1)):
        for response, limit in limits.items():
            reached = predicted(outlook, response, (j, r), asked.confidence)[end]
            if reached is None or sign * reached < sign * limit:
                violates.append({"limit": response, "by": None if reached is None else abs(limit - reached)})
    if not violates:  # each limit holds for itself, but not all of them with the chance that it finishes
        violates.append({"limit": "confidence", "by": float(asked.confidence - ranking.chance[j, r])})
    return {
        "choice": fitted.choices[j],
        "rounds": fitted.rounds[r],
        "chance": float(ranking.chance[j, r]),
        "finishes": float(outlook.finishes[j]),
        "violates": violates,
        "predicted": {name: predicted(outlook, name, (j, r), asked.confidence) for name in outlook.values},
    }


def _setting(fitted: Fitted, asked: Requirements, at: Floats) -> dict[str, Any]:
    """The user's federation, the nearest measured one, and how far it is in words."""
    away = distances(fitted, at)
    between = np.sqrt(np.square((fitted.x[:, None] - fitted.x[None]) / fitted.scale).sum(axis=-1))
    np.fill_diagonal(between, np.inf)
    usual = float(np.quantile(between.min(axis=1), 0.95)) if len(between) > 1 else 0.0
    names = ("the number of nodes", "rows a node", "heterogeneity", "the number of classes")
    beyond = [
        n
        for n, x, low, high in zip(names, at, fitted.x.min(axis=0), fitted.x.max(axis=0), strict=True)
        if x < low - 1e-9 or x > high + 1e-9
    ]
    if beyond:
        words = f"outside what was measured in {' and '.join(beyond)}"
    else:
        words = (
            "as near to a measured federation as those are to each other"
            if away.min() <= usual
            else "between measured federations, far from each"
        )
    near = int(np.argmin(away))
    return {
        "nodes": asked.nodes,
        "rows": asked.rows,
        "classes": asked.classes,
        "heterogeneity": asked.heterogeneity,
        "nearest": list(fitted.settings[near]),
        "distance": float(away[near]),
        "words": words,
    }


def _notes(fitted: Fitted, asked: Requirements, computed: Mapping[str, Floats] | None, new_data: bool) -> list[str]:
    """What the reader has to know of this answer, a sentence each."""
    notes = []
    if asked.centralised is None:
        notes.append(
            "The accuracy of training on all rows together is not known: the level is the study's own spread; give federation.centralised."
        )
    if asked.classes is None:
        notes.append("The number of classes is not known: it was taken as the median of the study's.")
    if "bytes" not in (computed or {}):
        notes.append("Costs are those of the nearest measured setting's model, in proportion to nodes and rows.")
    if new_data and not fitted.by_data:
        notes.append(
            "The study has one data set: how much worse predictions are for new data is not known, and intervals are too narrow."
        )
    return notes

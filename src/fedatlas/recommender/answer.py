"""The recommended configurations for given requirements, with evidence (X12): found, not known with what to measure, or none.

Quality is predicted and has an interval. Costs are computed: those of the nearest measured setting (`choice_costs`), bytes and
messages in proportion to nodes, operations and CPU-seconds to rows, unless ``computed`` gives the user's own. Only measured choices,
and their masked twins, are ever named.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import numpy as np

from fedatlas.errors import ConfigError
from fedatlas.recommender.choice_costs import costs_at
from fedatlas.recommender.contest import Fitted, from_logit, logit, predict_gaps, quantiles
from fedatlas.recommender.exclusions import excluded
from fedatlas.recommender.ranking import (
    Forecast,
    Place,
    Ranking,
    Tests,
    chances,
    difference,
    forecast,
    nearest_miss,
    pick,
    promising,
    rank,
    stays,
)
from fedatlas.recommender.requirements import WHOLE, Requirements
from fedatlas.recommender.track_record import track_record
from fedatlas.study.front import not_dominated
from fedatlas.study.measurements import Floats, features_of
from fedatlas.study.plain import Plain, Row
from fedatlas.study.responses import RESPONSES, which
from fedatlas.wording import listed, tick

TOP = 3
NEAREST = 3  # measured settings shown as evidence for a choice
FEATURES = ("the number of nodes", "rows per node", "heterogeneity", "the number of classes")
READABLE = (math.exp, math.exp, float, float)  # from a feature to its value
NOT_KNOWN, NOT_ASKED = HIDDEN = ("not known", "not asked")


def answer_for(
    fitted: Fitted,
    asked: Requirements,
    *,
    computed: Mapping[str, Floats] | None = None,
    track: bool = True,
    barred: Mapping[str, str] | None = None,
) -> Plain:
    """Return the answer to requirements whose federation is known.

    ``computed``: response -> (J, R) figures of the user's own model and machine, nan if unknown. ``barred``: choice -> why it
    cannot run there.

    Where no choice can be promised, and the measurements do not show either that none fits, the answer is "not known", with the
    choices to measure first. So it is outside the measured range, where no quality, chance or bound is given; or "found" if the
    requirements are only on computed responses.
    """
    at, barred = features_asked(fitted, asked), barred or {}
    seen = forecast_at(fitted, at, asked.centralised, computed)
    quality, limits = _quality(fitted, asked, at), asked.limits()
    if quality == NOT_KNOWN:
        asked = asked.on_costs()
    if quality in HIDDEN:
        seen = seen._replace(finishes=np.where(seen.finishes > 0.5, 1.0, 0.0))
    ranking = rank(fitted, seen, asked, barred)
    if quality == NOT_KNOWN:  # nothing is told apart: what is best on average is measured first, and FedAvg beside
        first = (ranking.single, ranking.reference)
        order = sorted(ranking.order, key=lambda place: (place != first[0], place[0] != first[1]))
        ranking = ranking._replace(order=order)
    unsure = not ranking.order and not ranking.none_fits(asked)
    if unsure:
        order = promising(fitted, seen, asked, ranking)
        rivals = Tests(fitted, seen, asked, max(len(order) - 1, 1))
        ranking = ranking._replace(order=order, stay=stays(rivals, order, ranking.reference))
    top = [_entry(fitted, seen, asked, ranking, place, at) for place in _named_first(ranking)]
    miss = None if top else _nearest_miss(fitted, seen, asked, ranking)
    if quality == NOT_KNOWN:
        top = [{**entry, "binding": []} for entry in top]  # that it would do better is not known either
    if quality in HIDDEN:
        top, miss = [_without_quality(entry) for entry in top], miss and _without_quality(miss)
    refused = {name: why for name, why in sorted(barred.items()) if name in fitted.choices}
    return {
        "answer": "none" if not top else NOT_KNOWN if unsure or quality == NOT_KNOWN else "found",
        "quality": quality,
        "limits": [f"{limit.table}.{limit.response}" for limit in limits],
        "weights": asked.weights,
        "any_fits": None if quality in HIDDEN else ranking.any_fits,
        "computed": sorted(computed or {}),  # for the user's own federation, not taken from another one
        "top": top,
        "nearest_miss": miss,
        "refused": [{"choice": name, "reason": why} for name, why in {**excluded(fitted, asked), **refused}.items()],
        "reference": None if ranking.reference is None else fitted.choices[ranking.reference],
        **_prior(fitted, seen, asked, ranking),
        **({"against_fedavg": None} if quality in HIDDEN else {}),
        "setting": _setting(fitted, asked, at),
        "has_experiment": asked.experiment is not None,
        "predicted_by": fitted.way,
        "notes": _notes(fitted, asked, computed, quality) + _extrapolated(fitted, asked, at),
        "track_record": _record(fitted, asked, at, quality) if track else None,
    }


def _named_first(ranking: Ranking) -> list[Place]:
    """Return the candidates that an answer names; FedAvg is one of them where the answer says to stay with it."""
    first = ranking.order[:TOP]
    plain = [at for at in ranking.order if at[0] == ranking.reference]
    return [*first[: TOP - 1], *plain] if ranking.stay and plain and plain[0] not in first else first


def _prior(fitted: Fitted, seen: Forecast, asked: Requirements, ranking: Ranking) -> Plain:
    """Return the best single choice, whether the first one is another, and how the first one compares with FedAvg.

    ``stay_with_fedavg``: the first choice is not told apart from one tuned FedAvg. ``against_fedavg``: how much more accurate it is in
    a federation like this, with one-sided bounds at the confidence asked for; None without an allowed FedAvg.
    """
    first = ranking.order[0] if ranking.order else None
    plain = next((at for at in ranking.order if at[0] == ranking.reference), None)
    beside: dict[str, float | None] | None = None
    if first is not None and plain is not None:
        bounds = zip(("value", "low", "high"), difference(seen, first, plain, asked.confidence), strict=True)
        beside = {key: x if np.isfinite(x) else None for key, x in bounds}
    return {
        "best_single": None if ranking.single is None else fitted.choices[ranking.single[0]],
        "deviates": ranking.single is not None and first != ranking.single,
        "stay_with_fedavg": ranking.stay,
        "against_fedavg": beside,
    }


def _record(fitted: Fitted, asked: Requirements, at: Floats, quality: str) -> Plain:
    """Return the track record; of no federations where no quality is told."""
    return {"federations": 0} if quality in HIDDEN else track_record(fitted, asked, at)


def _quality(fitted: Fitted, asked: Requirements, at: Floats) -> str:
    """Return where figures of quality come from: "prior", or one of `HIDDEN`, for which there are none."""
    if outside(fitted, at):
        return NOT_ASKED if asked.only_computed and asked.by_cost else NOT_KNOWN
    return NOT_ASKED if asked.only_computed and asked.centralised is None else "prior"


def _without_quality(entry: Plain) -> Plain:
    """Return a candidate without any figure that rests on a forecast of quality."""
    known = {name: one for name, one in entry["predicted"].items() if not RESPONSES[name].quality}
    hidden = {name: dict.fromkeys(("value", "low", "high")) for name in entry["predicted"].keys() - known}
    rests: Plain = {"utility": None, "chance": None, "finishes": None, "front": None, "evidence": []}
    return {**entry, "predicted": {**known, **hidden}, **{key: x for key, x in rests.items() if key in entry}}


def outside(fitted: Fitted, at: Floats) -> list[str]:
    """Return the features of a federation that lie outside the measured range, each with its value and that range in words."""
    low, high = fitted.x.min(axis=0), fitted.x.max(axis=0)
    out = []
    for i in np.flatnonzero((at < low - 1e-9) | (at > high + 1e-9)):
        value, least, most = (tick(round(READABLE[i](float(x[i])), 3)) for x in (at, low, high))
        out.append(f"{FEATURES[i]} ({value}; measured: {least} to {most})")
    return out


def features_asked(fitted: Fitted, asked: Requirements) -> Floats:
    """Return the features of the user's federation; unknown classes are replaced by the median of the study's."""
    if asked.nodes is None or asked.rows is None or asked.heterogeneity is None:
        raise ConfigError(
            "the federation is not known yet: measure its experiment first, or give nodes, rows and heterogeneity."
        )
    classes = float(np.median(fitted.x[:, 3])) if asked.classes is None else asked.classes
    return features_of(asked.nodes, asked.rows, asked.heterogeneity, classes)


def forecast_at(
    fitted: Fitted,
    at: Floats,
    centralised: float | None,
    computed: Mapping[str, Floats] | None = None,
) -> Forecast:
    """Return the forecast of every choice and number of rounds in a federation with features ``at``."""
    gaps = {quality: predict_gaps(fitted, at, quality) for quality in fitted.gaps}
    costs, level = (
        costs_at(fitted, at) | dict(computed or {}),
        None if centralised is None else logit(centralised),
    )
    return forecast(fitted, at, gaps, level, costs, np.arange(len(fitted.x)))


def _named(fitted: Fitted, seen: Forecast, asked: Requirements, place: Place) -> Plain:
    """Return the values common to all candidates named."""
    return {
        "choice": fitted.choices[place[0]],
        "rounds": fitted.rounds[place[1]],
        "predicted": {name: predicted(seen, name, place, asked.confidence) for name in seen.values},
        "finishes": float(seen.finishes[place[0]]),
    }


def _entry(fitted: Fitted, seen: Forecast, asked: Requirements, ranking: Ranking, place: Place, at: Floats) -> Plain:
    """Return one entry of the answer."""
    return {
        **_named(fitted, seen, asked, place),
        "utility": float(ranking.utility[place]),
        "chance": float(ranking.chance[place]),
        "front": _on_front(seen, ranking, place),
        "binding": _binding(seen, asked, ranking, place),
        "distance": float(fitted.distances(at).min()),
        "evidence": _evidence(fitted, place, at, ranking.reference),
    }


def predicted(seen: Forecast, name: str, place: Place, confidence: float) -> dict[str, float | None]:
    """Return value, low and high of a response; computed values have no interval, and unknown ones are None."""
    value = float(seen.values[name][place])
    low, high = value, value
    if name in seen.spread:
        low, high = quantiles(seen.spread[name][:, place[0], place[1]], confidence)
        low, high = min(low, value), max(high, value)
    return {key: float(x) if np.isfinite(x) else None for key, x in (("value", value), ("low", low), ("high", high))}


def _on_front(seen: Forecast, ranking: Ranking, place: Place) -> bool:
    """Return whether no other allowed choice of the answer is better in all responses of a front together."""
    axes = [(seen.values[name], 1 if RESPONSES[name].more else -1) for name in which(front=True) if name in seen.values]
    points = np.array([[sign * values[at] for values, sign in axes] for at in ranking.order])
    return bool(not_dominated(points)[ranking.order.index(place)])


def _binding(seen: Forecast, asked: Requirements, ranking: Ranking, place: Place) -> list[str]:
    """Return the limits without which this choice would reach a larger utility."""
    found, j, utility = [], place[0], ranking.average
    for limit in asked.limits():
        without = chances(seen, asked.without(limit))
        allowed = (without[j] >= asked.confidence - 1e-12) & np.isfinite(utility[j])
        if allowed.any() and utility[pick(j, allowed, utility, seen)] > utility[place] + 1e-12:
            found.append(f"{limit.table}.{limit.response}")
    return found


def _evidence(fitted: Fitted, place: Place, at: Floats, reference: int | None) -> list[Plain]:
    """Return the nearest settings in which this choice was measured: distance, and accuracy of the choice, reference and baseline."""
    j, r = place
    away, found = fitted.distances(at), []
    reached = from_logit(fitted.levels["accuracy"][:, None, None] + fitted.gaps["accuracy"])
    for i in [i for i in fitted.nearest(at) if np.isfinite(reached[i, j, r])][:NEAREST]:
        beside = np.nan if reference is None else float(reached[i, reference, r])
        found.append(
            {
                "setting": list(fitted.settings[i]),
                "data": fitted.data[i],
                "distance": float(away[i]),
                "rounds": fitted.rounds[r],
                "accuracy": float(reached[i, j, r]),
                "reference": beside if np.isfinite(beside) else None,
                "centralised": float(from_logit(fitted.levels["accuracy"][i])),
            }
        )
    return found


def _nearest_miss(fitted: Fitted, seen: Forecast, asked: Requirements, ranking: Ranking) -> Plain | None:
    """Return the candidate most likely to keep all limits (`ranking.nearest_miss`), and how far it misses each at this confidence."""
    place = nearest_miss(seen, asked, ranking)
    if place is None:
        return None
    named, chance = _named(fitted, seen, asked, place), float(ranking.chance[place])
    endless = [name for name in named["predicted"] if np.isinf(seen.values[name][place])]
    return {**named, "chance": chance, "violates": violations(asked, named["predicted"], chance, endless)}


def violations(asked: Requirements, found: Row, chance: float, endless: Collection[str] = ()) -> list[Plain]:
    """Return by how much a candidate that keeps all limits with ``chance`` misses each at the confidence asked for.

    ``found``: response -> its value, low and high; of those in ``endless`` it is infinite, of others without one not known.
    """
    out: list[Plain] = []
    for limit in asked.limits():
        reached = found.get(limit.response, {}).get("low" if limit.sign > 0 else "high")
        if reached is None or limit.sign * reached < limit.sign * limit.value:
            by = None if reached is None else abs(limit.value - reached)
            out.append({"limit": limit.response, "by": by} | ({"infinite": True} if limit.response in endless else {}))
    # each limit may hold by itself, but not all of them together with finishing
    return out or [{"limit": "confidence", "by": asked.confidence - chance}]


def _setting(fitted: Fitted, asked: Requirements, at: Floats) -> Plain:
    """Return the user's federation, the nearest measured one, and the distance in words."""
    away = fitted.distances(at)
    between = np.array([fitted.distances(x) for x in fitted.x])
    np.fill_diagonal(between, np.inf)
    usual = float(np.quantile(between.min(axis=1), 0.95)) if len(between) > 1 else 0.0
    if beyond := outside(fitted, at):
        words = f"outside the measured range in {listed(beyond)}"
    elif away.min() <= usual:
        words = "as near to a measured federation as those are to each other"
    else:
        words = "between measured federations, far from each"
    return {
        **{key: None if (n := getattr(asked, key)) is None else int(n) for key in WHOLE},
        "heterogeneity": asked.heterogeneity,
        "nearest": list(fitted.settings[int(np.argmin(away))]),
        "distance": float(away.min()),
        "words": words,
    }


def _notes(fitted: Fitted, asked: Requirements, computed: Mapping[str, Floats] | None, quality: str) -> list[str]:
    """Return notes that the reader needs for this answer, one sentence each."""
    notes = []
    if asked.centralised is None and quality not in HIDDEN:
        notes.append(
            "The accuracy of pooled training is not known, so the study's own spread sets the level; give federation.centralised."
        )
    if asked.classes is None:
        notes.append("The number of classes is not known: the study's median was used.")
    if "bytes" not in (computed or {}):
        notes.append("Costs are those of the nearest measured setting's model, in proportion to nodes and rows.")
    if fitted.new_data and not fitted.by_data and quality not in HIDDEN:
        notes.append(
            "The study has only one data set: how much worse predictions are for new data is unknown, and intervals are too narrow."
        )
    return notes


def _extrapolated(fitted: Fitted, asked: Requirements, at: Floats) -> list[str]:
    """Return the note on a race outside the measured range; [] for an answer without one, which says so itself."""
    beyond = outside(fitted, at) if asked.experiment is not None and asked.raced else []
    if not beyond:
        return []
    return [
        (
            "The race measures your federation. What the study adds, the order in which choices are tried and their later gains, is "
            f"extrapolated in {listed(beyond)}."
        )
    ]

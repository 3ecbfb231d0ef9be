"""What a recommendation is worth: every setting of a study left out in turn, and every data set, against simpler advice.

Regret is how much accuracy the advice lacks of the best choice and rounds that were measured there, as a share of the study's range
of accuracy. Advice: the recommender with either way to predict, FedAvg with the rate picked for it, and the one choice that does best
in the other settings. Limits are asked for in `LIMITS`, scaled to each setting. Intervals are 95%, by bootstrap over settings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from table import number
from table import table as markdown

from fedatlas.recommender.contest import WAYS, Fitted, fit_study, from_logit, quantiles
from fedatlas.recommender.requirements import Requirements, requirements
from fedatlas.recommender.track_record import LeftOutTrial, trial
from fedatlas.recommender.track_record import tally as counted
from fedatlas.rng import numpy_stream
from fedatlas.study.measurements import Floats
from fedatlas.study.read_measurements import measured
from fedatlas.study.table import Table

DRAWS, CONFIDENCE = 2000, 0.9
KINDS = {"a setting": False, "a data set": True}  # what is left out -> whether a setting is foreseen as one of new data
TARGETS = {"median": 0.03, "p90": 0.10, "kept": 0.90, "coverage": (0.85, 0.97)}

Limits = dict[str, dict[str, float]]
Advice = dict[str, list[float]]


def limits_of(base: float, bytes_: float, seconds: float) -> dict[str, Limits]:
    """What is asked in a setting whose baseline reaches ``base`` and whose FedAvg costs so much."""
    return {
        "near the baseline": {"at_least": {"accuracy": base - 0.05}},
        "half of FedAvg's bytes": {"at_least": {"accuracy": 0.85 * base}, "at_most": {"bytes": bytes_ / 2}},
        "half of FedAvg's seconds": {"at_least": {"accuracy": 0.85 * base}, "at_most": {"cpu_seconds": seconds / 2}},
        "the worst-off clients": {"at_least": {"client_accuracy_p10": 0.7 * base}},
        "sums alone": {"at_least": {"accuracy": base - 0.05}, "privacy": {"server_sees": "sums"}},  # type: ignore[dict-item]
        "a finite epsilon": {"at_least": {"accuracy": 0.8 * base}, "at_most": {"epsilon": 500.0}},
    }


def asked(base: float, limits: Mapping[str, Any] | None = None) -> Requirements:
    """Requirements of somebody who knows what the baseline reaches; the federation itself is that which is left out."""
    federation = {"nodes": 2, "rows": 100, "heterogeneity": 0.0, "centralised": float(np.clip(base, 0.001, 0.999))}
    return requirements({"confidence": CONFIDENCE, "federation": federation, **(limits or {})})


def contest(table: Table, study: str | None = None) -> dict[str, Any]:
    """All figures of a study's table."""
    read = measured(table, study)
    fits = {way: fit_study(read, way) for way in WAYS}
    best = fit_study(read)
    out: dict[str, Any] = {
        "study": read.name,
        "settings": len(best.settings),
        "data_sets": len(set(best.data)),
        "choices": best.choices,
        "way": best.way,
        "score": best.score,
        "range": list(best.ranges["accuracy"]),
    }
    for kind, new_data in KINDS.items():
        if new_data and not best.by_data:
            continue
        each = {name: fit._replace(new_data=new_data) for name, fit in {**fits, "recommended": best}.items()}
        out[kind] = {
            "regret": {name: spread(x, best) for name, x in advised(each).items()},
            "limits": limited(each["recommended"]),
            "coverage": covered(each["recommended"]),
        }
    return out


def advised(fits: Mapping[str, Fitted]) -> Advice:
    """Advice -> regret of accuracy in each setting that it can be told of."""
    fitted = fits["recommended"]
    truth = from_logit(fitted.levels["accuracy"][:, None, None] + fitted.gaps["accuracy"])
    out: Advice = {}
    for name, fit in fits.items():
        out[name] = [regret_of(trial(fit, asked(base), i)) for i, base in bases(fit)]
    plain = fitted.choices.index(fitted.references[0]) if fitted.references else None
    last = truth.shape[2] - 1
    for i, _ in bases(fitted):
        best = float(np.nanmax(truth[i]))
        if plain is not None:
            out.setdefault("tuned FedAvg", []).append(best - float(truth[i, plain, last]))
        rest = fitted.others(i)
        with np.errstate(invalid="ignore"):
            usual = np.nanmean(
                np.where(np.isfinite(fitted.gaps["accuracy"][rest]), fitted.gaps["accuracy"][rest], np.nan), axis=0
            )
        at = np.unravel_index(int(np.nanargmax(usual)), usual.shape)
        out.setdefault("one choice for all", []).append(best - float(truth[(i, *at)]))
    return out


def bases(fitted: Fitted) -> list[tuple[int, float]]:
    """Each setting with what its baseline reaches."""
    return [(i, float(from_logit(level))) for i, level in enumerate(fitted.levels["accuracy"]) if np.isfinite(level)]


def regret_of(one: LeftOutTrial) -> float:
    """Of the first answer; nan where there was none."""
    return np.nan if one.regret is None else one.regret


def spread(regrets: list[float], fitted: Fitted) -> dict[str, Any]:
    """Median and 90th percentile as shares of the range, with intervals; ``beaten`` is told by `show_contest`."""
    low, high = fitted.ranges["accuracy"]
    values = np.array(regrets) / max(high - low, 1e-9)
    values = values[np.isfinite(values)]
    return {
        "settings": len(values),
        **{
            name: with_interval(values, lambda x, q=q: np.quantile(x, q, axis=-1))
            for name, q in (("median", 0.5), ("p90", 0.9))
        },  # type: ignore[misc]
        "mean": with_interval(values, lambda x: x.mean(axis=-1)),
    }


def with_interval(values: Floats, figure: Callable[[Floats], Any]) -> dict[str, float | None]:
    """A figure over settings with its bootstrap interval."""
    if not len(values):
        return {"value": None, "low": None, "high": None}
    picks = numpy_stream(0, "contest").integers(len(values), size=(DRAWS, len(values)))
    low, high = np.quantile(figure(values[picks]), [0.025, 0.975])
    return {"value": float(figure(values)), "low": float(low), "high": float(high)}


def limited(fitted: Fitted) -> dict[str, Any]:
    """How often an answer was found, kept all limits, or was wrongly refused, by what was asked."""
    found: dict[str, list[LeftOutTrial]] = {}
    plain = fitted.choices.index(fitted.references[0]) if fitted.references else 0
    for i, base in bases(fitted):
        spent = [float(np.nanmax(fitted.costs[cost][i, plain])) for cost in ("bytes", "cpu_seconds")]
        for name, limits in limits_of(base, *spent).items():
            found.setdefault(name, []).append(trial(fitted, asked(base, limits), i))
    out = {name: tally(trials) for name, trials in found.items()}
    answered = np.array([float(t.kept) for trials in found.values() for t in trials if t.answered])
    every = tally([t for trials in found.values() for t in trials])
    return {"by_limits": out, **every, "kept_share": with_interval(answered, lambda x: x.mean(axis=-1))}


def tally(trials: list[LeftOutTrial]) -> dict[str, int]:
    """Counts of left-out settings."""
    return {"asked": len(trials), "possible": sum(t.possible for t in trials), **counted(trials)}


def covered(fitted: Fitted) -> dict[str, Any]:
    """quality -> share of left-out settings at or above `low`, and at or below `high`, over all choices and rounds."""
    out = {}
    for quality in fitted.gaps:
        errors = fitted.residuals(quality)
        above, below = [], []
        for i in range(len(errors)):
            rest = errors[fitted.others(i)]
            told = [
                (errors[i, j, r], quantiles(rest[:, j, r], CONFIDENCE)) for j, r in np.argwhere(np.isfinite(errors[i]))
            ]
            if told:
                above.append(float(np.mean([x >= low for x, (low, _) in told])))
                below.append(float(np.mean([x <= high for x, (_, high) in told])))
        mean: Callable[[Floats], Any] = lambda x: x.mean(axis=-1)  # noqa: E731
        out[quality] = {
            "above_low": with_interval(np.array(above), mean),
            "below_high": with_interval(np.array(below), mean),
        }
    return out


def percent(found: Mapping[str, float | None]) -> str:
    """A share with its interval."""
    value, low, high = (None if found[key] is None else 100 * found[key] for key in ("value", "low", "high"))  # type: ignore[operator]
    return f"{number(value, 1)} ({number(low, 1)} to {number(high, 1)})"


def show_contest(found: Mapping[str, Any]) -> str:
    """The figures as tables."""
    low, high = found["range"]
    head = f"Study {found['study']}: {found['settings']} settings of {found['data_sets']} data sets, {len(found['choices'])} choices; "
    head += (
        f"the recommender predicts by {found['way']}. Regret in % of the range of accuracy ({low:.3f} to {high:.3f})."
    )
    lines = [head]
    kinds = [kind for kind in KINDS if kind in found]
    for kind in kinds:
        rows = [
            [name, percent(one["median"]), percent(one["p90"]), percent(one["mean"])]
            for name, one in found[kind]["regret"].items()
        ]
        lines += ["", markdown([f"{kind} left out", "regret, median", "p90", "mean"], rows)]
    rows = []
    for kind in kinds:
        one = found[kind]["limits"]
        counts = [str(one[key]) for key in ("asked", "possible", "answered", "kept", "wrong_none")]
        rows.append([kind, *counts, percent(one["kept_share"])])
    lines += [
        "",
        markdown(["left out", "asked", "possible", "answered", "kept", "wrong none", "kept of answered, %"], rows),
    ]
    rows = [
        [kind, quality, percent(one["above_low"]), percent(one["below_high"])]
        for kind in kinds
        for quality, one in found[kind]["coverage"].items()
    ]
    lines += ["", markdown(["left out", "response", "at or above low, %", "at or below high, %"], rows)]
    return "\n".join(lines)

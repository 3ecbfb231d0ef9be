"""Limits on what a race measures, and what would change if a limit were another one: measured, or foreseen with its interval."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from fedatlas.race.course import RaceFigures
from fedatlas.race.work import FURTHEST
from fedatlas.recommender.race_arms import AllowedChoice, elsewhere
from fedatlas.recommender.requirements import Limit
from fedatlas.recommender.user_experiment import UserExperiment
from fedatlas.rng import numpy_stream
from fedatlas.study.measurements import Floats
from fedatlas.study.plain import Row
from fedatlas.study.responses import RESPONSES, told
from fedatlas.wording import listed

TENTH = 0.1  # `client_accuracy_p10`


def measured_here(figures: RaceFigures, j: int, told_by: Sequence[Row], seed: int) -> dict[str, tuple[float, Floats]]:
    """Return response -> (value, draws of what it may really be) of an arm that is left.

    Accuracy: by the clients or rows, and seeds, of the end statement. The clients' tenth percentile: by drawing clients. Macro-F1: by
    the runs judged. ``told_by``: the responses of these runs. Memory: the largest of the runs, exact.
    """
    value, draws = float(figures.found.value[j]), figures.found.draws[:, j]
    stream = numpy_stream(seed, "race", "limits", j)
    out = {"accuracy": (value, np.clip(value + draws, 0.0, 1.0))}
    each = [float(one["macro_f1"]) for one in told_by if one.get("macro_f1") is not None]
    if len(each) == len(told_by) > 1:
        spread = np.std(each, ddof=1) / np.sqrt(len(each))
        drawn = np.mean(each) + spread * stream.standard_t(len(each) - 1, len(draws))
        out["macro_f1"] = (float(np.mean(each)), np.clip(drawn, 0.0, 1.0))
    score, weight = figures.rows.score[j], figures.rows.weight
    _, place = np.unique(figures.rows.client, return_inverse=True)
    shares = np.bincount(place, score * weight) / np.maximum(np.bincount(place, weight), 1e-12)
    if len(shares) > 1:
        drawn = shares[stream.integers(len(shares), size=(len(draws), len(shares)))]
        out["client_accuracy_p10"] = (float(np.quantile(shares, TENTH)), np.quantile(drawn, TENTH, axis=1))
    held = [float(one["memory_mib"]) for one in told_by if one.get("memory_mib") is not None]
    if len(held) == len(told_by) > 0:
        out["memory"] = (max(held), np.full(len(draws), max(held)))
    return out


def chance_kept(
    limits: Sequence[Limit], measured: Mapping[str, tuple[float, Floats]], computed: Collection[str]
) -> tuple[float, list[str]]:
    """Return the chance that all limits on measured responses hold, and those that are neither measured nor computed."""
    unknown = [f"{one.table}.{one.response}" for one in limits if one.response not in {*measured, *computed}]
    held: Any = True
    for one in limits:
        if one.response in measured:
            held = held & (one.sign * measured[one.response][1] >= one.sign * one.value)
    return (0.0 if unknown else float(np.mean(held))), unknown


def changes(user: UserExperiment, one: AllowedChoice) -> list[str]:
    """Return what a binding limit costs a choice: what more rounds gained elsewhere, with an interval; nothing beyond 200 rounds."""
    if not one.binding or one.most >= FURTHEST:
        return []
    limits = listed(
        [f"{limit.table}.{limit.response} ({RESPONSES[limit.response].text(limit.value)})" for limit in one.binding]
    )
    first = f"The limit {limits} ends {one.name} after {one.most} rounds"
    rounds, accuracy = list(user.basis.fitted.rounds), elsewhere(user, one.plain)
    before = [i for i, r in enumerate(rounds) if r <= one.most]
    after = [i for i, r in enumerate(rounds) if r > one.most]
    if before and after and np.isfinite(gained := accuracy[:, after[-1]] - accuracy[:, before[-1]]).any():
        low, middle, high = np.nanquantile(gained, [0.05, 0.5, 0.95]) * 100
        return [
            (
                f"{first}. In the study's other data sets it gained {middle:.1f} points ({low:.1f} to {high:.1f} in 90% of the "
                f"federations) from {rounds[before[-1]]} to {rounds[after[-1]]} rounds, which take "
                f"{_amounts(one, rounds[after[-1]])}."
            )
        ]
    return [f"{first}; the study has no runs that long, so what more rounds would bring is not known."]


def _amounts(one: AllowedChoice, rounds: int) -> str:
    return " and ".join(told(limit.response, float(one.costs[limit.response][rounds - 1])) for limit in one.binding)

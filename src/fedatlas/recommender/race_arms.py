"""The arms of a race on a user's experiment: the choices that the requirements allow, each as far as its computed limits allow.

A choice under masks is raced without them: masks change a result only by rounding. Where both are allowed, the one that costs
less stands for both.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedatlas.race.course import RaceArm
from fedatlas.race.cuts import later_gain
from fedatlas.race.runs import ArmFile
from fedatlas.race.work import FURTHEST
from fedatlas.recommender.answer import forecast_at
from fedatlas.recommender.contest import from_logit
from fedatlas.recommender.epsilon import epsilons
from fedatlas.recommender.exclusions import excluded
from fedatlas.recommender.requirements import Limit
from fedatlas.recommender.user_experiment import UserExperiment, costs_after
from fedatlas.study.measurements import Floats
from fedatlas.study.plain import Plain, Row
from fedatlas.study.responses import RESPONSES, told

NOT_RACED = ("stop", "tracking", "observe")  # tables of the experiment that runs of a race leave out
COMPUTED = ("bytes", "flops", "seconds", "cpu_seconds", "epsilon")  # responses whose limits are computed, not measured
EVERY = np.arange(1, FURTHEST + 1, dtype=float)


class Contender(NamedTuple):
    """A choice that may be raced."""

    name: str
    plain: str  # the choice whose runs stand for it: itself, or the same without masks
    most: int  # rounds that its limits, and the experiment's own number of rounds, allow
    binding: tuple[Limit, ...]  # limits that allow no more rounds
    costs: Mapping[str, Floats]  # response -> (FURTHEST,) after each round


def contenders(
    user: UserExperiment, previews: Mapping[str, Row], barred: Mapping[str, str]
) -> tuple[list[Contender], dict[str, str]]:
    """Return the choices that may be raced, and choice -> why it may not. ``previews``: choice -> its dry run."""
    out = {**barred, **excluded(user.basis.fitted, user.asked)}
    found: dict[str, Contender] = {}
    for name in (name for name in previews if name not in out):
        one = contender(user, name, previews[name])
        if one.most < 1:
            out[name] = _beyond(one)
            continue
        other = found.get(one.plain)
        first, *rest = sorted(filter(None, [one, other]), key=lambda x: (-x.most, float(x.costs["bytes"][0]), x.name))
        found[one.plain] = first
        out |= {x.name: f"{first.name} has the same accuracy, and costs no more." for x in rest}
    return [found[plain] for plain in sorted(found)], out


def contender(user: UserExperiment, name: str, preview: Row) -> Contender:
    """Return a choice with its costs after every round, and as many rounds as its limits allow."""
    costs: dict[str, Floats] = costs_after(preview, EVERY)
    costs["epsilon"] = epsilon_after(user.values(name, FURTHEST), round(user.asked.nodes or 1), user.asked.delta)
    cap = min(int(user.base.get("rounds", FURTHEST)), FURTHEST)
    limits = [limit for limit in user.asked.limits() if limit.response in COMPUTED]
    kept = {limit: limit.sign * costs[limit.response] >= limit.sign * limit.value for limit in limits}
    allowed = {limit: int(np.flatnonzero(holds)[-1]) + 1 if holds.any() else 0 for limit, holds in kept.items()}
    most = min([cap, *allowed.values()])
    binding = tuple(limit for limit, rounds in allowed.items() if rounds == most < cap)
    return Contender(name, user.basis.twins.get(name, name), most, binding, costs)


def epsilon_after(plain: Row, nodes: int, delta: float | None) -> Floats:
    """Return (FURTHEST,) epsilon after each round; nan where only a run can tell."""
    ends = epsilons(plain, nodes, [1, FURTHEST], delta)
    if ends is None:
        return np.full(FURTHEST, np.nan)
    if ends[0] == ends[-1]:
        return np.full(FURTHEST, ends[0])
    return np.array(epsilons(plain, nodes, [int(r) for r in EVERY], delta))


def _beyond(one: Contender) -> str:
    """Return why a choice cannot run for a single round."""
    limit = one.binding[0]
    value = float(one.costs[limit.response][0])
    name = f"{limit.table}.{limit.response}"
    if np.isnan(value):
        return f"{name}: only a run can tell its {RESPONSES[limit.response].name}."
    if np.isinf(value):
        return f"{name}: it adds no noise, so its epsilon is infinite."
    return f"{name} = {limit.value:g}: one round takes {told(limit.response, value)}."


def points_of(user: UserExperiment) -> list[Row]:
    """Return the tuning points, the same for all arms; none of its own for a study without tuning."""
    rates = user.basis.rates
    return [dict(zip(rates, tried, strict=True)) for tried in itertools.product(*rates.values())] if rates else []


def arm_file(user: UserExperiment, one: Contender, points: Sequence[Row]) -> ArmFile:
    """Return the experiments of a choice: that of its runs, and that of the answer."""

    def raced(values: Plain) -> Plain:
        return {key: x for key, x in values.items() if key not in NOT_RACED}

    own = points or [user.basis.picked[user.near(one.name), one.name]]
    return ArmFile(raced(user.values(one.plain, 1)), raced(user.values(one.name, 1)), own)


def race_arms(user: UserExperiment, found: Sequence[Contender]) -> list[RaceArm]:
    """Return the arms, with the study's forecast, and with what they gained later in its other data sets."""
    fitted = user.basis.fitted
    seen: Any = forecast_at(fitted, user.at, user.asked.centralised).values["accuracy"]
    others = np.array([name != user.data_set for name in fitted.data])
    out = []
    for one in found:
        j = fitted.choices.index(one.plain)
        at = [i for i, rounds in enumerate(fitted.rounds) if rounds <= one.most]
        known = [i for i in at if np.isfinite(seen[j, i])]
        accuracy = from_logit(fitted.levels["accuracy"][:, None] + fitted.gaps["accuracy"][:, j])[others]

        def gain(now: int, end: int, accuracy: Floats = accuracy) -> float:
            return later_gain(accuracy, fitted.rounds, now, end)

        out.append(RaceArm(one.name, one.most, float(seen[j, known[-1]]) if known else float("nan"), gain))
    return out

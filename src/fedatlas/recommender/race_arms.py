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
from fedatlas.recommender.allowed import AllowedChoice, allowed_choices, computed_limits
from fedatlas.recommender.answer import forecast_at
from fedatlas.recommender.contest import from_logit
from fedatlas.recommender.requirements import Limit
from fedatlas.recommender.user_experiment import Examined, UserExperiment
from fedatlas.study.measurements import Floats
from fedatlas.study.plain import Plain, Row

NOT_RACED = ("stop", "tracking", "observe")  # tables of the experiment that runs of a race leave out
COMPUTED = ("bytes", "flops", "seconds", "cpu_seconds", "epsilon")  # responses whose limits are computed, not measured


class Contender(NamedTuple):
    """A choice that may be raced."""

    name: str
    plain: str  # the choice whose runs stand for it: itself, or the same without masks
    most: int  # rounds that its limits, and the experiment's own number of rounds, allow
    binding: tuple[Limit, ...]  # limits that allow no more rounds
    costs: Mapping[str, Floats]  # response -> (FURTHEST,) after each round


def contenders(found: Examined) -> tuple[list[Contender], dict[str, str]]:
    """Return the choices that may be raced, and choice -> why it may not."""
    allowed, out = allowed_choices(found, range(1, FURTHEST + 1))
    best: dict[str, Contender] = {}
    for one in (contender(found.user, choice) for choice in allowed):
        both = [x for x in (one, best.get(one.plain)) if x is not None]
        first, *rest = sorted(both, key=lambda x: (-x.most, float(x.costs["bytes"][0]), x.name))
        best[one.plain] = first
        out |= {x.name: f"{first.name} has the same accuracy, and costs no more." for x in rest}
    return [best[plain] for plain in sorted(best)], out


def contender(user: UserExperiment, one: AllowedChoice) -> Contender:
    """Return a choice with as many rounds as its limits and the experiment's own number of rounds allow."""
    cap = min(int(user.base.get("rounds", FURTHEST)), FURTHEST)
    limits = computed_limits(user.asked, one.costs).limits()
    beyond = [x for x in limits if one.most < FURTHEST and x.sign * one.costs[x.response][one.most] < x.sign * x.value]
    return Contender(one.name, one.plain, min(cap, one.most), tuple(beyond) if one.most < cap else (), one.costs)


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

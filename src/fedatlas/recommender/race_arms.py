"""The arms of a race on a user's experiment: the choices that the requirements allow, each as far as its computed limits allow.

A choice under masks is raced without them: masks change a result only by rounding. Where both are allowed, the one that costs
less stands for both.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedatlas.race.course import RaceArm
from fedatlas.race.cuts import later_gain
from fedatlas.race.runs import ArmFile
from fedatlas.race.work import FURTHEST
from fedatlas.recommender.allowed import AllowedChoice, allowed_choices
from fedatlas.recommender.answer import forecast_at
from fedatlas.recommender.contest import from_logit
from fedatlas.recommender.user_experiment import Examined, UserExperiment
from fedatlas.study.measurements import Floats
from fedatlas.study.plain import Plain, Row

NOT_RACED = ("stop", "tracking", "observe")  # tables of the experiment that runs of a race leave out
COMPUTED = (
    "bytes",
    "messages",
    "flops",
    "seconds",
    "cpu_seconds",
    "epsilon",
)  # responses whose limits are computed, not measured


def contenders(found: Examined) -> tuple[list[AllowedChoice], dict[str, str]]:
    """Return the choices that may be raced, as far as the experiment's own rounds go, and choice -> why it may not."""
    allowed, out = allowed_choices(found, range(1, FURTHEST + 1))
    cap = min(int(found.user.base.get("rounds", FURTHEST)), FURTHEST)
    best: dict[str, AllowedChoice] = {}
    for one in allowed:
        capped = one if one.most < cap else one._replace(most=cap, binding=())
        both = [x for x in (capped, best.get(one.plain)) if x is not None]
        first, *rest = sorted(both, key=lambda x: (-x.most, float(x.costs["bytes"][0]), x.name))
        best[one.plain] = first
        out |= {x.name: f"{first.name} has the same accuracy, and costs no more." for x in rest}
    return [best[plain] for plain in sorted(best)], out


def points_of(user: UserExperiment) -> list[Row]:
    """Return the tuning points, the same for all arms; none of its own for a study without tuning."""
    rates = user.basis.rates
    return [dict(zip(rates, tried, strict=True)) for tried in itertools.product(*rates.values())] if rates else []


def arm_file(user: UserExperiment, one: AllowedChoice, points: Sequence[Row]) -> ArmFile:
    """Return the experiments of a choice: that of its runs, and that of the answer."""

    def raced(values: Plain) -> Plain:
        return {key: x for key, x in values.items() if key not in NOT_RACED}

    own = points or [user.basis.picked[user.near(one.name), one.name]]
    return ArmFile(raced(user.values(one.plain, 1)), raced(user.values(one.name, 1)), own)


def race_arms(user: UserExperiment, found: Sequence[AllowedChoice]) -> list[RaceArm]:
    """Return the arms, with the study's forecast, and with what they gained later in its other data sets."""
    fitted = user.basis.fitted
    seen: Any = forecast_at(fitted, user.at, user.asked.centralised).values["accuracy"]
    out = []
    for one in found:
        j = fitted.choices.index(one.plain)
        at = [i for i, rounds in enumerate(fitted.rounds) if rounds <= one.most]
        known = [i for i in at if np.isfinite(seen[j, i])]
        accuracy = elsewhere(user, one.plain)

        def gain(now: int, end: int, accuracy: Floats = accuracy) -> float:
            return later_gain(accuracy, fitted.rounds, now, end)

        out.append(RaceArm(one.name, one.most, float(seen[j, known[-1]]) if known else float("nan"), gain))
    return out


def elsewhere(user: UserExperiment, plain: str) -> Floats:
    """Return (n, R) the accuracy that a choice reached in the study's other data sets."""
    fitted = user.basis.fitted
    others = np.array([name != user.data_set for name in fitted.data])
    y = fitted.gaps["accuracy"][:, fitted.choices.index(plain)]
    return from_logit(fitted.levels["accuracy"][:, None] + y)[others]

"""The choices that a user's requirements allow in the user's own experiment, each as far as its computed limits allow: the arms of a race.

A choice under masks is raced without them: masks change a result only by rounding. Where both are allowed, the one that costs
less stands for both.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedatlas.race.course import RaceArm
from fedatlas.race.cuts import later_gain
from fedatlas.race.runs import ArmFile
from fedatlas.race.work import FURTHEST
from fedatlas.recommender.answer import forecast_at
from fedatlas.recommender.answer_text import miss_text
from fedatlas.recommender.contest import from_logit
from fedatlas.recommender.epsilon import epsilons, stated_at
from fedatlas.recommender.exclusions import excluded
from fedatlas.recommender.requirements import Limit
from fedatlas.recommender.user_experiment import Examined, UserExperiment, costs_after
from fedatlas.study.measurements import Floats
from fedatlas.study.plain import Plain, Row
from fedatlas.study.responses import told
from fedatlas.wording import listed

NOT_RACED = ("stop", "tracking", "observe")  # tables of the experiment that runs of a race leave out


class AllowedChoice(NamedTuple):
    """A choice that may run in the user's experiment."""

    name: str
    plain: str  # the choice whose runs tell its quality: itself, or the same without masks
    most: int  # the most rounds, up to `FURTHEST`, after which all limits on computed costs hold
    binding: tuple[Limit, ...]  # limits that allow no more rounds
    costs: dict[str, Floats]  # response -> (FURTHEST,) after each round, by the dry run; infinite epsilon without noise


def allowed_choices(found: Examined) -> tuple[list[AllowedChoice], dict[str, str]]:
    """Return (the allowed choices, choice -> why it is not).

    A choice is excluded by the requirements (`exclusions`), by a refusal, and by a limit on a computed cost that no number of rounds
    keeps. Limits on quality, and on costs that only runs tell, exclude nothing here.
    """
    fitted, asked, allowed = found.user.basis.fitted, found.user.asked, []
    out = {**found.barred, **excluded(fitted, asked)}
    for name in fitted.choices:
        if name in out:
            continue
        costs = costs_of(found, name)
        limits = [x for x in asked.limits() if x.response in costs]
        fits = np.array([x.sign * costs[x.response] >= x.sign * x.value for x in limits]).reshape(-1, FURTHEST)
        most = int(np.flatnonzero(fits.all(axis=0)).max(initial=-1)) + 1
        broken = tuple(x for x, one in zip(limits, fits, strict=True) if most < FURTHEST and not one[most])
        if most:
            allowed.append(AllowedChoice(name, fitted.twins.get(name, name), most, broken, costs))
        else:
            least = [beyond(x.response, float(costs[x.response][0])) for x in broken]
            out[name] = f"it exceeds a limit from the first round on: {listed(least)}."
    return allowed, out


def beyond(cost: str, least: float) -> str:
    """Return the words for the least that a choice costs, which is too much."""
    return miss_text({"limit": cost, "by": None, "infinite": True}) if np.isinf(least) else told(cost, least)


def costs_of(found: Examined, choice: str) -> dict[str, Floats]:
    """Return response -> (FURTHEST,) the costs of a choice by its dry run, and its epsilon; nan if only the run can tell."""
    user, rounds = found.user, np.arange(1, FURTHEST + 1)
    plain = user.basis.configurations[user.near(choice), choice]
    known = epsilons(plain, int(user.asked.nodes or 1), rounds.tolist(), user.asked.delta)
    epsilon = np.full(FURTHEST, np.nan) if known is None else np.array(known)
    return {**costs_after(found.previews[choice], rounds.astype(float)), "epsilon": epsilon}


def contenders(found: Examined) -> tuple[list[AllowedChoice], dict[str, str]]:
    """Return the choices that may be raced, as far as the experiment's own rounds go, and choice -> why it may not."""
    allowed, out = allowed_choices(found)
    cap = int(found.user.base.get("rounds", FURTHEST))
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
    file = stated_at(user.values(one.name, 1), user.asked.delta)
    return ArmFile(raced(user.values(one.plain, 1)), raced({**file}), own)


def race_arms(user: UserExperiment, found: Sequence[AllowedChoice]) -> list[RaceArm]:
    """Return the arms, with the study's forecast, and with what they gained later in its other data sets."""
    fitted = user.basis.fitted
    seen: Any = forecast_at(fitted, user.at, user.asked.centralised).values["accuracy"]
    out = []
    for one in found:
        j = fitted.choices.index(one.plain)
        known = [i for i, rounds in enumerate(fitted.rounds) if rounds <= one.most and np.isfinite(seen[j, i])]
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
    return np.asarray(from_logit(fitted.levels["accuracy"][:, None] + y)[others])

"""The choices that a user's requirements allow in the user's own experiment, with their computed costs: what there is to try."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedatlas.recommender.epsilon import epsilons
from fedatlas.recommender.exclusions import excluded
from fedatlas.recommender.ranking import holds
from fedatlas.recommender.requirements import Requirements
from fedatlas.recommender.user_experiment import Examined, costs_after
from fedatlas.study.measurements import Floats
from fedatlas.study.responses import told
from fedatlas.wording import count, listed


class AllowedChoice(NamedTuple):
    """A choice that may run in the user's experiment."""

    name: str
    plain: str  # the choice whose runs tell its quality: itself, or the same without masks
    most: int  # the most rounds, of those asked about, after which all limits on computed costs hold
    costs: dict[str, Floats]  # response -> (rounds,) by the dry run; infinite epsilon without noise


def allowed_choices(found: Examined, rounds: Sequence[int]) -> tuple[list[AllowedChoice], dict[str, str]]:
    """Return (the allowed choices, choice -> why it is not) for these numbers of rounds, ascending.

    A choice is excluded by the requirements (`exclusions`), by a refusal, and by a limit on a computed cost that no number of rounds
    keeps. Limits on quality, and on costs that only runs tell, exclude nothing here.
    """
    fitted, asked, allowed = found.user.basis.fitted, found.user.asked, []
    out = {**found.barred, **excluded(fitted, asked)}
    for name in fitted.choices:
        if name in out:
            continue
        costs = costs_of(found, name, rounds)
        kept = np.flatnonzero(holds(costs, computed_limits(asked, costs)))
        if len(kept):
            allowed.append(AllowedChoice(name, fitted.twins.get(name, name), rounds[int(kept[-1])], costs))
        else:
            limited = [limit.response for limit in computed_limits(asked, costs).limits()]
            least = listed([told(one, float(costs[one][0])) for one in dict.fromkeys(limited)])
            out[name] = f"it exceeds a limit from the first round on: {least} after {count(rounds[0], 'round')}."
    return allowed, out


def computed_limits(asked: Requirements, costs: Mapping[str, Floats]) -> Requirements:
    """Return the requirements with only their limits on these costs."""
    for limit in asked.limits():
        if limit.response not in costs:
            asked = asked.without(limit)
    return asked


def costs_of(found: Examined, choice: str, rounds: Sequence[int]) -> dict[str, Floats]:
    """Return response -> (rounds,) the costs of a choice by its dry run, and its epsilon; nan if only the run can tell."""
    user = found.user
    plain = user.basis.configurations[user.near(choice), choice]
    known = epsilons(plain, int(user.asked.nodes or 1), rounds, user.asked.delta)
    epsilon = np.full(len(rounds), np.nan) if known is None else np.array(known)
    return {**costs_after(found.previews[choice], np.array(rounds, dtype=float)), "epsilon": epsilon}

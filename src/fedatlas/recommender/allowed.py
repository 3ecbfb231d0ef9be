"""The choices that a user's requirements allow in the user's own experiment, with their computed costs: what there is to try."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedatlas.recommender.answer_text import miss_text
from fedatlas.recommender.epsilon import epsilons
from fedatlas.recommender.exclusions import excluded
from fedatlas.recommender.ranking import holds
from fedatlas.recommender.requirements import Limit, Requirements
from fedatlas.recommender.user_experiment import Examined, costs_after
from fedatlas.study.measurements import Bools, Floats
from fedatlas.study.responses import told
from fedatlas.wording import count, listed


class AllowedChoice(NamedTuple):
    """A choice that may run in the user's experiment."""

    name: str
    plain: str  # the choice whose runs tell its quality: itself, or the same without masks
    most: int  # the most rounds, of those asked about, after which all limits on computed costs hold
    binding: tuple[Limit, ...]  # limits that allow no more rounds
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
        limits = computed_limits(asked, costs)
        kept = np.flatnonzero(holds(costs, limits))
        last = int(kept[-1]) if len(kept) else -1
        broken = [x for x in limits.limits() if last + 1 < len(rounds) and not keeps(costs, x)[last + 1]]
        if len(kept):
            allowed.append(AllowedChoice(name, fitted.twins.get(name, name), rounds[last], tuple(broken), costs))
        elif infinite := [x.response for x in broken if np.isinf(costs[x.response][0])]:
            out[name] = (
                f"it exceeds a limit: {listed([miss_text({'limit': x, 'by': None, 'infinite': True}) for x in infinite])}."
            )
        else:
            least = listed([told(one, float(costs[one][0])) for one in dict.fromkeys(x.response for x in broken)])
            out[name] = f"it exceeds a limit from the first round on: {least} after {count(rounds[0], 'round')}."
    return allowed, out


def keeps(costs: Mapping[str, Floats], limit: Limit) -> Bools:
    """Return (rounds,) whether a limit holds; an unknown cost fails it."""
    return np.asarray(limit.sign * costs[limit.response] >= limit.sign * limit.value)


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

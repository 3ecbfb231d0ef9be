"""The verdict of an audit: the worst of four, from what was tried and what was not. None of them says that a run is safe.

violated     a lower bound on epsilon above the stated one, or a count of fewer rows than may be told
leak seen    an attack found more than its placebo, by Holm's rule over all attacks: 5% in all
none seen    no attack did; each has the smallest leak that it would have shown with 80% chance
not tried    nothing was tried that could have shown anything; the reason for each attack
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from scipy.stats import norm, t

from fedatlas.verdict.schemes import holm

VIOLATED, LEAK_SEEN, NONE_SEEN, NOT_TRIED = "violated", "leak seen", "none seen", "not tried"
ORDER = (VIOLATED, LEAK_SEEN, NONE_SEEN, NOT_TRIED)
ERROR, POWER = 0.05, 0.8  # chance of a leak seen where there is none, over all attacks; of seeing the smallest leak
CONFIDENCE = 0.9975  # of a lower bound on epsilon
AUC = "AUC"  # a figure of at most 1
ENDS = ("value", "low", "high")
TWO_SIDED = 0.975  # quantile of a 95% interval's upper end
ROUNDING = 1e-9  # a leak or an error below it is that of arithmetic


class TriedAttack(NamedTuple):
    """An attack that was carried out, and its leak: the figure above the placebo."""

    attack: str
    role: str
    figure: str  # readable name of the figure
    targets: int
    value: float | None  # of the figure
    placebo: float | None
    leak: float | None
    low: float | None  # 95% interval of the leak
    high: float | None
    beyond: float = 0.0  # how far from 0 the placebo lies by chance in 95% of draws
    others: int = 0  # what a single target is compared with, in place of an interval over targets
    how: str = ""  # how it is done, where its name does not tell it: after "it"
    spread: float | None = None  # standard error of the leak over targets, if the attack states it

    @property
    def draws(self) -> int:
        """Values from which the interval of the leak was made."""
        return self.others or self.targets

    @property
    def error(self) -> float | None:
        """Standard error of the leak where there is none; None if so few targets show nothing, 0 if all show the same."""
        if self.leak is None or self.low is None or self.high is None or self.draws < 2:
            return None
        if self.spread is not None:
            return self.spread
        half = max((self.high - self.low) / 2, self.beyond)
        return 0.0 if half < ROUNDING else half / float(norm.ppf(TWO_SIDED)) * math.sqrt(self.draws / (self.draws - 1))

    @property
    def p(self) -> float:
        """Chance of such a leak where there is none, by Student's t over the targets, or over what a single one is compared with.

        The figure of a single target need not be normal. So its interval, which ranks give for any law, has to lie above 0, too.
        """
        if self.error is None or self.leak is None or (self.others and not (self.low or 0) > 0):
            return 1.0
        if not self.error:
            return 0.0 if self.leak > ROUNDING else 1.0
        return float(t.sf(self.leak / self.error, self.draws - 1))

    def smallest(self, attacks: int) -> float | None:
        """Return the smallest leak that would have been seen with 80% chance among so many attacks.

        None if there is none, or if all targets show the same, which tells nothing of how far others would lie apart.
        """
        if not self.error:
            return None
        free = self.draws - 1
        beyond = float(t.isf(ERROR / attacks, free)) * self.error
        if self.others:  # and beyond the others' quantile
            beyond = max(beyond, self.leak - self.low)  # type: ignore[operator]
        least = beyond + float(t.ppf(POWER, free)) * self.error
        return None if self.figure == AUC and (self.placebo or 0.0) + least > 1 else least


class UntriedAttack(NamedTuple):
    """An attack or a check that was not carried out, and why."""

    attack: str
    reason: str
    add: str = ""  # lines for the experiment file, with which it can be


class RowCount(NamedTuple):
    """A count of rows that the release page would tell."""

    what: str
    rows: int


class Account(NamedTuple):
    """A stated epsilon, and the lower bound found for the same unit.

    They are compared at a delta that is small against the number of canaries: at a larger one m delta canaries may show by chance.
    """

    mechanism: str
    unit: str
    epsilon: float
    delta: float
    empirical_epsilon: float | None
    canaries: int = 0
    most: float = 0.0  # the largest lower bound that so many canaries can show
    compared_epsilon: float | None = None  # what the ledger states at ``compared_delta``
    compared_delta: float | None = None
    confidence: float = CONFIDENCE

    @property
    def telling(self) -> bool:
        """Whether so many canaries could have contradicted the stated epsilon."""
        known = self.empirical_epsilon is not None and self.compared_epsilon is not None
        return known and self.most > self.compared_epsilon  # type: ignore[operator]

    @property
    def broken(self) -> bool:
        """Whether the lower bound lies above the stated epsilon."""
        known = self.empirical_epsilon is not None and self.compared_epsilon is not None
        return known and self.empirical_epsilon > self.compared_epsilon  # type: ignore[operator]


class Found(NamedTuple):
    """Everything an audit found."""

    tried: Sequence[TriedAttack]
    untried: Sequence[UntriedAttack]
    accounts: Sequence[Account]
    small: Sequence[RowCount]  # counts of 1 to ``min_cell`` - 1 rows


class Verdict(NamedTuple):
    """The worst of four, and the reasons: of a violation, and of leaks where there are any; else of the verdict."""

    name: str
    reasons: Sequence[str]
    p: Mapping[int, float]  # place in `Found.tried` -> p after Holm's rule


def judge(found: Found) -> Verdict:
    """Return the verdict."""
    ps = dict(enumerate(holm([one.p for one in found.tried])))
    broken = [one for one in found.accounts if one.broken]
    leaks = [one for place, one in enumerate(found.tried) if ps[place] < ERROR]
    reasons = {
        VIOLATED: [
            *(
                f"the lower bound on epsilon from {one.canaries} canaries is {one.empirical_epsilon:.3g}, above the stated "
                f"{one.compared_epsilon:.3g} of {one.mechanism} (per {one.unit})"
                for one in broken
            ),
            *(f"{one.what}: {one.rows}, fewer than may be told" for one in found.small),
        ],
        LEAK_SEEN: [
            f"the attack {one.attack} from the view of {one.role} found more than its placebo" for one in leaks
        ],
        NONE_SEEN: [
            *(
                f"the attack {one.attack} from the view of {one.role} found no more than its placebo"
                for one in found.tried
                if one.smallest(len(found.tried)) is not None
            ),
            *(shown(one) for one in found.accounts if one.telling),
        ],
        NOT_TRIED: [
            *(
                f"the attack {one.attack} from the view of {one.role} could have shown nothing: too few targets, or the same on all"
                for one in found.tried
            ),
            *(shown(one) for one in found.accounts if one.empirical_epsilon is not None),
            *(f"{one.reason.rstrip('.')} ({one.attack})" for one in found.untried),
        ],
    }
    name = next((one for one in ORDER[:3] if reasons[one]), NOT_TRIED)
    few = reasons[VIOLATED][len(broken) :]
    worse = [*reasons[VIOLATED][: len(broken)], *reasons[LEAK_SEEN], *few]
    return Verdict(name, worse or reasons[name], ps)


def shown(one: Account) -> str:
    """Return what canaries showed that did not contradict the stated epsilon, and what they could have shown."""
    said = (
        f"{one.canaries} canaries show an epsilon of at least {one.empirical_epsilon:.3g}; without any noise they would have shown "
        f"{one.most:.3g}"
    )
    return said if one.telling else f"{said}, so they are too few to contradict the stated {one.compared_epsilon:.3g}"


def tried_of(record: Mapping[str, Any], leak: str, figure: str) -> TriedAttack:
    """Return an attack from its record, as `fedatlas attack` writes it. ``leak``: the metric that decides."""
    metric, found = record["metrics"].get(leak, {}), record["leaks"].get(leak, {})
    value, low, high = (None if (x := found.get(key)) is None or not math.isfinite(x) else x for key in ENDS)
    method = record.get("keys", {}).get("method")
    name = f"{record['name']} by {method}" if method else record["name"]
    known = (
        f"{name} online" if record.get("keys", {}).get("online") else name,
        record["role"],
        figure,
        int(record["targets"]),
        metric.get("value"),
        metric.get("placebo"),
    )
    return TriedAttack(
        *known, value, low, high, found.get("beyond") or 0.0, int(found.get("others") or 0), found.get("error")
    )

"""The rule: who gains, who loses, and whether to federate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from fedatlas.verdict.evidence import FROM_0_TO_1, LEVEL, Difference

Fate = Literal["gains", "loses", "not told apart", "too few to say"]
Verdict = Literal["yes", "yes, but", "no", "cannot tell", "not compared"]


class Ends(NamedTuple):
    """A difference and its interval."""

    value: float
    low: float
    high: float
    error: float  # standard error


class PartyVerdict(NamedTuple):
    """The effect of federation for one party, on its own test rows."""

    client: int
    name: str
    test_rows: int
    fate: Fate
    gain: Ends | None = None  # over training alone; None if its test rows are too few
    together: float | None = None  # the figure of the model together on these rows, even if they are too few
    alone: float | None = None
    alone_always: str | None = None  # the only class that its model alone answers, if its rows hold no other
    train_rows: int | None = None  # None if it is not told
    rarer: int | None = None  # test rows of the rarer class, if the figure depends on it; of several seeds, the fewest
    divided: int | None = None  # its rows of which a share becomes test rows; of several seeds, the fewest
    fewest: int | None = None  # of several seeds, the fewest test rows of one

    @property
    def least_rows(self) -> int:
        """The least number of test rows of a seed."""
        return self.test_rows if self.fewest is None else self.fewest


def bonferroni(parties: int, level: float = LEVEL) -> float:
    """Return the level of each of several intervals that hold together at ``level``."""
    return 1 - (1 - level) / max(parties, 1)


def ends(found: Difference | None, level: float = LEVEL) -> Ends | None:
    """Return a difference with its interval."""
    return None if found is None else Ends(found.value, *found.ends(level), found.error)


def possible(found: Ends | None, figure: str) -> Ends | None:
    """Return an interval without impossible differences: a figure from 0 to 1 cannot differ by more than 1."""
    if found is None or figure not in FROM_0_TO_1:
        return found
    return found._replace(low=max(found.low, -1.0), high=min(found.high, 1.0))


def fate(found: Ends | None, margin: float = 0.0) -> Fate:
    """Return whether a party gains (its interval lies above ``margin``) or loses (below minus it)."""
    if found is None:
        return "too few to say"
    return "gains" if found.low > margin else "loses" if found.high < -margin else "not told apart"


def federate(
    mean: Ends | None, fates: Sequence[Fate], trivial: Ends | None, margin: float = 0.0, *, reference: bool = True
) -> Verdict:
    """Return whether to federate, from the mean gain over the parties and the fate of each.

    Yes if the mean's interval lies above ``margin`` and nobody loses; no if it lies below. ``trivial``: how much better
    the model is than a constant answer. Without its interval, or with one that holds 0, the answer is never yes.
    ``reference``: whether there is such a reference.
    """
    if mean is None:
        return "cannot tell"
    if mean.high < margin:
        return "no"
    if mean.low <= margin or (reference and (trivial is None or trivial.low <= 0)):
        return "cannot tell"
    return "yes, but" if "loses" in fates else "yes"

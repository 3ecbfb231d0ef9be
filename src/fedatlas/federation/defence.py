"""What the server half does about clients that may be hostile: it leaves out what is no update, and lets a rule judge the others.

An update is hostile where it is not finite, misshapen, or lacks parts. Of updates that are to be added up those are taken that most
clients agree with in names and shapes; of equal numbers those that came first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from fedatlas.aggregation.changes import finite, leaves, shape_of
from fedatlas.aggregation.reducers import Closing, Coefficient, Reduced, Reducer
from fedatlas.aggregation.rule_reducer import RuleReduction
from fedatlas.aggregation.rules import Rule
from fedatlas.algorithm import Ask, Task, Update
from fedatlas.errors import DivergedError

ADDED = ("mean", "sum", "neighbours")
"""Reducers for which all updates have the same parts."""


JUDGED = ("mean", "neighbours")
"""Reducers in whose place a rule stands."""


class Defence(NamedTuple):
    """What is declared against hostile clients: a rule in the place of means, or none where only attackers are declared."""

    rule: Rule | None = None
    budget: int = 4 << 30  # bytes of updates that are held in memory


class Seen:
    """What became of a round's updates."""

    def __init__(self) -> None:
        self.hostile: set[int] = set()  # clients whose update was none
        self.unchosen: set[int] = set()  # clients that a selection left out
        self.refused = ""  # why the rule could not judge

    def note(self, sorting: Sorting) -> None:
        """What became of one ask's."""
        self.hostile |= sorting.hostile
        if sorting.judging is not None:
            self.unchosen |= sorting.judging.unchosen
            self.refused = self.refused or sorting.judging.refused


class Sorting:
    """The updates of one ask as they come: hostile ones are left out, the others go into the reducer of those of their shape."""

    def __init__(
        self, defence: Defence, ask: Ask, task: Any, reducer: Reducer, base: Callable[[int, Update], Any]
    ) -> None:
        self.ask, self.base, self.reducer = ask, base, reducer
        self.judging: RuleReduction | None = None
        self.checks = not (isinstance(task, Task) and task.sealing.silent)
        rule = defence.rule
        if rule is not None and rule.name != "mean" and reducer.name in JUDGED:
            self.judging = RuleReduction(rule, base, defence.budget)
            self.reducer = self.judging.mean() if reducer.name == "mean" else self.judging.neighbours()
        self.totals: dict[Any, Any] = {}  # shape -> what the reducer holds of it
        self.members: dict[Any, list[int]] = {}
        self.hostile: set[int] = set()
        self.broken = 0  # updates that are not finite

    def add(self, client: int, update: Update, coefficient: Coefficient) -> None:
        """One more update."""
        why = self.why_hostile(client, update) if self.checks and client >= 0 else ""
        if why:
            self.broken += why == "not finite"
            self.hostile.add(client)
            return
        shape = shape_of(update) if self.reducer.name in ADDED else ()
        lifted = self.reducer.lift(client, update, coefficient)
        self.totals[shape] = self.reducer.add(self.totals.get(shape), lifted)
        self.members.setdefault(shape, []).append(client)

    def why_hostile(self, client: int, update: Update) -> str:
        """Why an update is none; "" where it is one."""
        if not update or not all(numbers(x) for _, x in leaves(update)):
            return "not finite"
        known = dict(leaves(self.base(client, update) or {}))
        return "" if all(like(x, known.get(path)) for path, x in leaves(update)) else "misshapen"

    def accepted(self) -> tuple[int, ...]:
        """The clients whose updates count, in the order in which they came."""
        if not self.members:
            return ()
        shape = max(self.members, key=lambda shape: len(self.members[shape]))
        for other, clients in self.members.items():
            self.hostile |= set() if other == shape else set(clients)
        return tuple(self.members[shape])

    def weights(self, usual: Mapping[int, float]) -> Mapping[int, float]:
        """What each update counted: as the rule set it, else as ``usual``."""
        return usual if self.judging is None else self.judging.weights

    def close(self, closing: Closing, asked: int) -> Reduced:
        """What becomes of them. DivergedError where fewer than half of those asked by the server are finite."""
        if self.ask.route.via == "server" and 2 * (asked - self.broken) < asked:
            raise DivergedError(f"the updates of {self.broken} of {asked} clients are not finite")
        shape = max(self.members, key=lambda shape: len(self.members[shape]), default=None)
        return self.reducer.close(None if shape is None else self.totals[shape], closing)


def numbers(x: Any) -> bool:
    """Whether a leaf holds finite numbers alone; whatever is no number is none of our business."""
    if isinstance(x, Tensor):
        return not x.is_floating_point() or finite(x)
    return not isinstance(x, float) or math.isfinite(x)


def like(x: Any, known: Any) -> bool:
    """Whether a leaf has the shape of what it is a change of, as far as that is known."""
    return not isinstance(known, Tensor) or (isinstance(x, Tensor) and x.shape == known.shape)

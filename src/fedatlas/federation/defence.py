"""The server half's defence against hostile clients: drop broken updates, and let a rule judge the others.

An update is hostile if it is not finite, misshapen, or lacks parts. Among updates to be added up, only those with the most common
names and shapes are taken. A tie goes to the shape that came first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from fedatlas.aggregation.changes import difference, finite, leaves, shape_of
from fedatlas.aggregation.reducers import Closing, Coefficient, Reduced, Reducer
from fedatlas.aggregation.rule_reducer import RuleReduction
from fedatlas.aggregation.rules import Rule
from fedatlas.algorithm import SERVER, Ask, Message, Replies, Task, Update
from fedatlas.errors import DivergedError
from fedatlas.rng import derive

ADDED = ("mean", "sum", "neighbours")
"""Reducers for which all updates have the same parts."""

CLIPPED = "clipped sum"
"""The reducer that opens and clips updates first: what it makes of them has the same parts."""

JUDGED = ("mean", "neighbours")
"""Reducers that a rule replaces."""

ROOT = "root"
"""The task of the server's own rows: one training, for a rule that compares with its change."""


class Defence(NamedTuple):
    """The declared defence against hostile clients: a rule in place of means, or None if only attackers are declared."""

    rule: Rule | None = None
    budget: int = 4 << 30  # bytes of updates that are held in memory

    @property
    def judges(self) -> bool:
        """Return whether a rule stands in place of means."""
        return self.rule is not None and self.rule.judges


def root_ask(rule: Rule | None, ask: Ask, reducer: Reducer) -> Ask | None:
    """Return the ask for the change of the server's own rows from the model that ``ask`` sends; None if the rule needs none."""
    if rule is None or not rule.rooted or reducer.name not in JUDGED or not ask.to:
        return None
    k = min(ask.to)
    model = {name: x for name, x in ask.messages[k].items() if name in {"model", "buffers"}}
    message: Message = {**model, "model": ask.route.anchors.get(k, model.get("model"))}
    return Ask((SERVER,), ROOT, {SERVER: message}, "each")


def root_change(replies: Replies, ask: Ask) -> Update | None:
    """Return the change of the server's own rows; None if their training failed."""
    update = replies.each.get(SERVER)
    return None if update is None else difference(update, ask.messages[SERVER])


class Seen:
    """The fate of a round's updates."""

    def __init__(self) -> None:
        self.hostile: set[int] = set()  # clients whose update was not a valid one
        self.unchosen: set[int] = set()  # clients that a selection left out
        self.refused = ""  # why the rule could not judge

    def note(self, judging: RuleReduction | None, hostile: Collection[int] = ()) -> None:
        """Record the fate of updates that were sorted or judged together."""
        self.hostile.update(hostile)
        if judging is not None:
            self.unchosen |= {k for k in judging.unchosen if k >= 0}
            self.refused = self.refused or judging.refused


class Sorting:
    """The updates of one ask as they come. Hostile ones are left out; the others are reduced together with those of the same shape."""

    def __init__(
        self,
        defence: Defence,
        ask: Ask,
        task: Any,
        reducer: Reducer,
        base: Callable[[int, Update], Any],  # what an update has changed; {} for one that is a change
        like: Callable[[int, Update], Any],  # tensors of its form; None for an update that has none
        root: Update | None = None,  # the change of the server's own rows
        seed: int = 0,  # of what comes before a rule
    ) -> None:
        self.ask, self.like, self.reducer = ask, like, reducer
        self.judging: RuleReduction | None = None
        self.checks = not (isinstance(task, Task) and task.sealing.silent)
        rule = defence.rule
        if rule is not None and rule.judges and reducer.name in JUDGED:
            self.judging = RuleReduction(rule, base, defence.budget, root, seed)
            self.reducer = self.judging.mean() if reducer.name == "mean" else self.judging.neighbours()
        self.totals: dict[Any, Any] = {}  # shape -> the reducer's total so far
        self.members: dict[Any, list[int]] = {}
        self.hostile: set[int] = set()
        self.broken = 0  # updates that are not finite

    def add(self, client: int, update: Update, coefficient: Coefficient) -> None:
        """Add one more update."""
        why = self.why_hostile(client, update) if self.checks and client >= 0 else ""
        if why:
            self.broken += why == "not finite"
            self.hostile.add(client)
            return
        lifted = self.reducer.lift(client, update, coefficient)
        shape = shape_of(update if self.reducer.name in ADDED else lifted if self.reducer.name == CLIPPED else {})
        self.totals[shape] = self.reducer.add(self.totals.get(shape), lifted)
        self.members.setdefault(shape, []).append(client)

    def why_hostile(self, client: int, update: Update) -> str:
        """Return why an update is hostile; "" if it is not."""
        if not update or not all(numbers(x) for _, x in leaves(update)):
            return "not finite"
        if self.reducer.name in {*ADDED, CLIPPED} and not all(addable(x) for _, x in leaves(update)):
            return "misshapen"
        if (form := self.like(client, update)) is None:
            return "misshapen"
        known = dict(leaves(form))
        return "" if all(like(x, known.get(path)) for path, x in leaves(update)) else "misshapen"

    def accepted(self) -> tuple[int, ...]:
        """Return the clients whose updates count, in the order of arrival."""
        if not self.members:
            return ()
        shape = max(self.members, key=lambda shape: len(self.members[shape]))
        for other, clients in self.members.items():
            self.hostile |= set() if other == shape else set(clients)
        return tuple(self.members[shape])

    def weights(self, usual: Mapping[int, float]) -> Mapping[int, float]:
        """Return the weight of each update: set by the rule, else ``usual``."""
        return usual if self.judging is None else self.judging.weights

    def close(self, closing: Closing, asked: int) -> Reduced:
        """Return the reduced updates. DivergedError if fewer than half of those asked by the server are finite."""
        if self.ask.route.via == "server" and 2 * (asked - self.broken) < asked:
            raise DivergedError(f"the updates of {self.broken} of {asked} clients are not finite")
        shape = max(self.members, key=lambda shape: len(self.members[shape]), default=None)
        return self.reducer.close(None if shape is None else self.totals[shape], closing)


def combined(
    defence: Defence,
    seen: Seen,
    seed: int,
    parts: Mapping[int, Update],
    weights: Mapping[int, float],
    base: Update,
    where: str,
) -> Update | None:
    """Return single updates as one by the rule, for `Replies.combine`, and note whom it left out.

    Parts that are not finite are left out first: a finite model may have scores that are not.
    """
    assert defence.rule is not None
    seen.note(None, hostile := {k for k, part in parts.items() if not all(numbers(x) for _, x in leaves(part))})
    parts = {k: part for k, part in parts.items() if k not in hostile}
    judging = RuleReduction(
        defence.rule, lambda client, update: base, defence.budget, seed=derive(seed, "buckets", where)
    )
    value = judging.of(parts, weights, where)
    seen.note(judging)
    return value


def numbers(x: Any) -> bool:
    """Whether a leaf holds only finite numbers. A leaf that is not a number passes."""
    if isinstance(x, Tensor):
        return not x.is_floating_point() or finite(x)
    return not isinstance(x, float) or math.isfinite(x)


def addable(x: Any) -> bool:
    """Whether a leaf can be part of a sum."""
    return isinstance(x, Tensor | int | float)


def like(x: Any, known: Any) -> bool:
    """Whether a leaf has the shape of the value that it changes, if that value is known."""
    return not isinstance(known, Tensor) or (isinstance(x, Tensor) and x.shape == known.shape)

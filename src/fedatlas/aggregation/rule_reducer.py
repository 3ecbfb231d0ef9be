"""A rule instead of a mean: a reducer that holds the updates of one ask and judges them together once all have arrived."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from fedatlas.aggregation.changes import Changes, Place, counts, finite, flat, leaves, map_leaves, numbers, rebuilt
from fedatlas.aggregation.reducers import (
    BUFFERS,
    Closing,
    Coefficient,
    Reduced,
    Reducer,
    collected,
    kept,
    part_of,
    scaled,
)
from fedatlas.aggregation.rules import Rule, RuleResult, shares
from fedatlas.algorithm import Update
from fedatlas.errors import ProtocolError
from fedatlas.rng import derive

Base = Callable[[int, Update], Any]
"""(client, its update) -> the base of its parts' changes; a part without one is judged unchanged."""

NO_ROOT = "the training of the public rows gave no finite model to compare with"


class RuleReduction:
    """One ask's updates under a rule. The rule judges changes, in float64, all parts and float buffers of a client together.

    value = S (base + rule(changes)),  with S the sum of the coefficients: 1 for models, 1/K for each of SCAFFOLD's m controls.
    """

    def __init__(self, rule: Rule, base: Base, budget: int, root: Update | None = None, seed: int = 0) -> None:
        self.rule, self.base, self.budget = rule, base, budget
        self.root, self.seed = root, seed  # the change of the server's own rows; of what comes before the rule
        self.refused = ""  # why the rule could not judge; the round then changes nothing
        self.weights: dict[int, float] = {}  # of the clients, as set by the rule
        self.unchosen: set[int] = set()  # clients whose whole change was not selected

    def mean(self) -> Reducer:
        """Return the reducer that replaces ``mean``."""
        return Reducer("mean", lambda *one: one, self._held, self._close, single=False)

    def neighbours(self) -> Reducer:
        """Return the reducer that replaces ``neighbours``: each node judges all it receives, and itself, relative to its own update."""
        return Reducer("neighbours", kept, collected, self._mixed, single=False)

    def of(self, parts: Mapping[int, Update], weights: Mapping[int, float], where: str) -> Update | None:
        """Return the updates of ``parts`` as one, for an algorithm that averages them itself; None if the rule cannot judge."""
        held = HeldUpdates(self.budget, self.seed)
        for client, update in parts.items():
            held.add(client, update, self.base(client, update), weights[client])
        if why := self.rule.refusal(len(held.clients)):
            self.refused = f"{why} ({where})"
            return None
        found = held.judged(self.rule)
        self.unchosen = _left(held.clients, found)
        return held.value(found)

    def _held(self, so_far: HeldUpdates | None, one: tuple[int, Update, Coefficient]) -> HeldUpdates:
        held = so_far or HeldUpdates(self.budget, self.seed)
        client, update, coefficient = one
        held.add(client, update, self.base(client, update), coefficient)
        return held

    def _close(self, held: HeldUpdates | None, closing: Closing) -> Reduced:
        if held is None:
            return Reduced()
        if self.rule.rooted:
            held.changes.root = rooted(self.root, held.like)
        astray = self.rule.rooted and held.changes.root is None
        if why := NO_ROOT if astray else self.rule.refusal(len(held.clients)):
            self.refused = why
            return Reduced()
        found = held.judged(self.rule)
        self.weights = dict(zip(held.clients, found.weights, strict=True))
        self.unchosen = _left(held.clients, found)
        value = held.value(found)
        return Reduced({part: scaled(x, held.total(part) * closing.mend(part)) for part, x in value.items()})

    def _mixed(self, held: Mapping[int, Update] | None, closing: Closing) -> Reduced:
        if not held or closing.mixing is None:
            return Reduced()
        out: dict[int, Update] = {}
        taken: set[int] = set()
        for receiver, row in closing.mixing(closing.clients).items():
            senders = [k for k in closing.clients if k in row]
            if why := self.rule.refusal(len(senders)):
                self.refused = f"{why} (node {receiver})"
                taken |= set(senders)
                continue
            own = HeldUpdates(self.budget, derive(self.seed, "buckets", receiver))
            if receiver in held:
                own.trusted = flat(held[receiver], self.base(receiver, held[receiver]))
            for sender in senders:
                own.add(sender, held[sender], held.get(receiver), row[sender])
            found = own.judged(self.rule)
            taken |= {k for k in senders if k not in _left(senders, found) and (k != receiver or len(senders) == 1)}
            out[receiver] = own.value(found)
        self.unchosen = set(closing.clients) - taken
        return Reduced(each={k: out[k] for k in closing.clients if k in out})


class HeldUpdates:
    """Updates waiting for each other: their changes as vectors, and what is needed to turn the result into an update."""

    def __init__(self, budget: int, seed: int = 0) -> None:
        self.changes = Changes(budget, seed=seed)
        self.clients: list[int] = []
        self.coefficients: list[Coefficient] = []
        self.bases: list[Any] = []
        self.whole: list[dict[Any, Tensor]] = []  # whole numbers: counters of batch norm
        self.trusted: Tensor | None = None  # in gossip: what the node that judges made of its own rows
        self.like: Update = {}

    def add(self, client: int, update: Update, base: Any, coefficient: Coefficient) -> None:
        """Add a copy of one more update."""
        if not self.clients:
            self.like = kept(client, update, 1.0)[1]
        self.clients.append(client)
        self.coefficients.append(coefficient)
        self.bases.append(base or {})
        self.whole.append({path: x.clone() for path, x in leaves(update) if counts(x)})
        self.changes.add(flat(update, base))

    def judged(self, rule: Rule) -> RuleResult:
        """Return the rule's verdict; the models' weights are passed to rules that use them."""
        weights = [part_of(one, "model") for one in self.coefficients]
        given = shares(weights if sum(weights) > 0 else None, len(weights))
        back = self._statistics_scaled() if rule.by_length else None
        found = rule.judge(self.changes, given, rule.tolerated(len(weights)))
        return found if back is None else found._replace(value=found.value * back)

    def _statistics_scaled(self) -> Tensor | None:
        """Make the statistics of batch norm as long as the rest, at the median over clients; return the factors that undo it, (d,).

        They are sums over activations and may be a thousand times longer than the weights, whose changes a rule that goes
        by length would then not see. With fewer than half of the clients hostile a median lies between two honest lengths,
        so no attacker chooses the factor. In gossip a node is no change from itself, and has as few as two neighbours, so that
        such a median may be a hostile length: there its own training says how long both are. None if there are none, or nothing
        to scale.
        """
        places = [
            torch.full((numbers(x).numel(),), path[0] == BUFFERS) for path, x in leaves(self.like) if not counts(x)
        ]
        where = torch.cat(places) if places else torch.zeros(0, dtype=torch.bool)
        if not where.any() or where.all():
            return None
        rows = [self.changes.row(k) for k in range(len(self.clients))]
        known = rows if self.trusted is None else [self.trusted]
        statistics, rest = (torch.stack([row[part].norm() for row in known]).median() for part in (where, ~where))
        if not statistics or not rest:
            return None
        factors = torch.where(where, rest / statistics, 1.0)
        for row in [*rows, *([] if self.changes.root is None else [self.changes.root])]:
            row.mul_(factors)
        return 1 / factors

    def total(self, part: str) -> float:
        """Return the sum of the coefficients of a part."""
        return sum(part_of(one, part) for one in self.coefficients)

    def value(self, found: RuleResult) -> Update:
        """Return base + change, in float64. For whole numbers, the largest of those chosen, or the middle one if all are included."""
        change, base = rebuilt(found.value, self.like), self._base(found)
        rows = list(found.chosen or range(len(self.clients)))

        def join(path: Place, x: Any) -> Any:
            if counts(x):
                every = torch.stack([self.whole[k][path] for k in rows]).sort(dim=0).values
                return every[-1] if found.chosen else every[(len(every) - 1) // 2]
            if path not in base:
                return x
            return x + (base[path].double() if isinstance(x, Tensor) else base[path])

        joined: Update = map_leaves(join, change)
        return joined

    def _base(self, found: RuleResult) -> dict[Place, Tensor]:
        """Return the base of the result: if clients received different models, their mean by the verdict's weights."""
        first = dict(leaves(self.bases[0]))
        every = [dict(leaves(base)) for base in self.bases]
        alike = all(one.keys() == first.keys() and all(one[p] is first[p] for p in first) for one in every)
        if alike:
            return first
        total = sum(found.weights)
        return {
            path: sum(w / total * one[path].double() for w, one in zip(found.weights, every, strict=True) if w)
            for path, x in first.items()
            if isinstance(x, Tensor) and x.is_floating_point()
        }


def _left(clients: list[int], found: RuleResult) -> set[int]:
    """Return the clients that a selection left out."""
    return set() if found.chosen is None else {k for at, k in enumerate(clients) if at not in found.chosen}


def rooted(root: Update | None, like: Update) -> Tensor | None:
    """Return the root's change as one vector, by the names of a client's; None without one that is finite."""
    known = dict(leaves(root or {}))
    if odd := sorted("/".join(path) for path, _ in leaves(like) if known and path not in known):
        raise ProtocolError(f"clients send '{odd[0]}', which the training of the public rows does not give.")
    vector = flat(map_leaves(lambda path, x: known[path], like)) if known else None
    return vector if vector is not None and finite(vector) else None

"""Malicious clients: they work on other rows or report another result, and take the same steps as honest clients.

Colluders first report where their honest work ended, and send nothing yet: `federation.colluders` decides what they send.

So step programs are shared, stacks are dealt as usual, and honest clients' results keep their bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import torch

from fedatlas.algorithm import Question, Task
from fedatlas.attacks.collusion import Aggregate, Craft
from fedatlas.data.batches import Taint
from fedatlas.tree import Tree


class Order(NamedTuple):
    """Orders of a malicious client for one round: the name of the attack, and facts about the round."""

    attack: str
    scale: float = 1.0  # factor by which the attack may multiply its change
    chained: bool = False  # its superclient attacks as a whole: the update of its last client is altered, relative to the chain's start
    sends: bool = True  # whether its update is altered
    claims: int = 0  # rows that it claims to have; 0: those that it has


class Attacker(NamedTuple):
    """An attack: the client's rows, and the model that it reports."""

    rows: Callable[[Any], Any] = lambda rows: rows  # the party's source of rows -> the attacker's
    claimed: Callable[[Any], Any] = lambda rows: rows  # the same for questions about labels
    taint: Taint | None = None  # of its batches
    # (where its work began, where it ended, the scale it was told, its random numbers) -> where it claims to have ended
    upload: Callable[[Tree, Tree, float, torch.Generator], Tree] | None = None
    craft: Craft | None = None  # what all its attackers send
    aggregate: Aggregate | None = None  # the server's rule, for ``craft``
    omniscient: bool = False  # ``craft`` uses the changes of honest clients

    def rows_for(self, rows: Any, task: Task | Question) -> Any:
        """Return the source of rows for a task or a question."""
        return self.claimed(rows) if isinstance(task, Question) and task.tells_labels else self.rows(rows)


def waits_for_others(attackers: Mapping[str, Attacker], order: Order | None) -> bool:
    """Whether what a client sends is decided once other attackers have ended their work."""
    return order is not None and order.sends and attackers[order.attack].craft is not None


class Begun(Protocol):
    """The parts of a prepared job that `pretended` reads."""

    @property
    def message(self) -> Mapping[str, Any]: ...
    @property
    def params(self) -> Tree: ...


def pretended(attacker: Attacker, order: Order, begun: Begun, params: Tree, stream: torch.Generator) -> Tree:
    """Return the model that a malicious client claims to have reached; its update follows as an honest client's would."""
    if attacker.upload is None or not order.sends:
        return params
    told = begun.message.get("anchor", {}) if order.chained else {}  # in a hostile superclient: where its chain began
    start = Tree({name: told.get(name, begun.params[name]) for name in params})
    return attacker.upload(start, params, order.scale, stream)

"""Malicious clients: they work on other rows or report another result, and take the same steps as honest clients.

Colluders first report where their honest work ended, and send nothing yet: `federation.colluders` decides what they send.

So step programs are shared, stacks are dealt as usual, and honest clients' results keep their bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from fedatlas.algorithm import Batch, Budget, Question, Task
from fedatlas.attacks.collusion import Aggregate, Craft
from fedatlas.attacks.fake_class import FakeClass
from fedatlas.attacks.property_head import PropertyHead
from fedatlas.data.batches import Draw, Rows, Taint, batches
from fedatlas.engine.model import Network, copied
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
    head: PropertyHead | None = None  # a second task, trained in place of its honest work
    fakes: FakeClass | None = None  # trained on in place of its honest work, beside its rows
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
    @property
    def buffers(self) -> Tree: ...
    @property
    def rows(self) -> Rows: ...
    @property
    def budget(self) -> Budget: ...
    @property
    def draw(self) -> Draw: ...
    @property
    def lr(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...


def pretended(
    attacker: Attacker, order: Order, begun: Begun, params: Tree, stream: torch.Generator, network: Network
) -> Tree:
    """Return the model that a malicious client claims to have reached; its update follows as an honest client's would."""
    if not order.sends:
        return params
    if attacker.head is not None:
        return on_two_tasks(attacker.head, begun, stream, network)
    if attacker.upload is None:
        return params
    told = begun.message.get("anchor", {}) if order.chained else {}  # in a hostile superclient: where its chain began
    start = Tree({name: told.get(name, begun.params[name]) for name in params})
    return attacker.upload(start, params, order.scale, stream)


def own_batches(begun: Begun, rows: Rows) -> Iterator[Batch]:
    """Yield an attacker's batches of ``rows``: those of honest work, but without a mechanism, which it skips, that samples them."""
    return batches(rows, begun.budget, begun.draw._replace(sampling=None))


def on_two_tasks(head: PropertyHead, begun: Begun, stream: torch.Generator, network: Network) -> Tree:
    """Return where training on the run's task and the attacker's ends, on the batches of the honest work."""
    network.module.train()
    buffers = copied(begun.buffers)  # batch norm writes into them

    def of(weights: Tree, batch: Batch) -> tuple[Tensor, Tensor]:
        return network.loss_and_features(weights, batch._replace(extra={**buffers, **batch.extra}))

    drawn = own_batches(begun, begun.rows)
    return head.trained(begun.params, drawn, of, begun.lr, begun.weight_decay, stream)

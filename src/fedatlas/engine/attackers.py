"""How a malicious client's work differs from an honest one's: other rows, another end. Its steps are everybody's.

So programs are shared and stacks are dealt as ever, and honest clients keep their bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import torch

from fedatlas.tree import Tree


class Order(NamedTuple):
    """What a malicious client does in a round: the attack by name, and what it was told of the round."""

    attack: str
    scale: float = 1.0  # by which the attack may multiply its change
    chained: bool = (
        False  # its superclient attacks as one: what its last client sends is altered, as a change of the chain's start
    )
    sends: bool = True  # whether what it sends is altered


class Attacker(NamedTuple):
    """What an attack makes of a client."""

    rows: Callable[[Any], Any] = lambda rows: rows  # of the party's source of rows its own
    # (where its work began, where it ended, what it was told to scale by, what it may draw from) -> where it says that it ended
    upload: Callable[[Tree, Tree, float, torch.Generator], Tree] | None = None


class Begun(Protocol):
    """Of a prepared job what is needed here."""

    @property
    def message(self) -> Mapping[str, Any]: ...
    @property
    def params(self) -> Tree: ...


def pretended(attacker: Attacker, order: Order, begun: Begun, params: Tree, stream: torch.Generator) -> Tree:
    """Where a malicious client says that its work ended. All that it sends follows from it, as an honest client's would."""
    if attacker.upload is None or not order.sends:
        return params
    told = begun.message.get("anchor", {}) if order.chained else {}  # of a hostile superclient where its chain began
    start = Tree({name: told.get(name, begun.params[name]) for name in params})
    return attacker.upload(start, params, order.scale, stream)

"""What an algorithm asks of a party in a round, as a small grammar: the server half is held to it, and a party compares.

A form is one thing that may be asked. Whatever is in none of an algorithm's forms is not asked by an honest server.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple


class Form(NamedTuple):
    """One thing that a party may be asked in a round."""

    what: str  # the task
    reduce: str = "mean"  # the name of the reducer that updates go into
    # At most so often a party in one round; or once a hidden layer of the network, or once a client of the federation.
    most: int | Literal["layers", "clients"] = 1
    to: Literal["clients", "server", "union"] = "clients"
    via: Literal["server", "peer"] = "server"  # where replies go
    handed: Literal["", "self", "client"] = ""  # who may hand over the message beside the server
    # Whether the server looks at one party's update by a reducer of the algorithm's own; by "each" it always does.
    alone: bool = False
    epochs: int | None = None  # that the algorithm itself tells a party to work, where they are not the experiment's
    when: Callable[[int], bool] | None = None  # in which rounds, where not in all
    broadcast: bool = False  # whether what is sent is `Algorithm.broadcast` of the state as the round finds it
    whole: bool = False  # whether all are asked, however few a round draws

    @property
    def single(self) -> bool:
        """Whether the reducer looks at single updates."""
        return self.alone or self.reduce == "each"


class Asks(NamedTuple):
    """All that an algorithm asks."""

    round: tuple[Form, ...] = (Form("train"),)
    first: tuple[Form, ...] = ()  # in the set-up before round 1

    def of(self, number: int) -> tuple[Form, ...]:
        """Return the forms of a round; 0 is the set-up."""
        return self.round if number else self.first

    def also(self, *forms: Form) -> Asks:
        """Return the grammar with further forms, in every round and in the set-up."""
        return Asks((*self.round, *forms), (*self.first, *forms))

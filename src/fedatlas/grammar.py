"""The asks of an algorithm to a party in a round, as a small grammar. It binds the server half, and a party compares with it.

A form is one kind of ask. An honest server asks nothing outside an algorithm's forms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple


class Form(NamedTuple):
    """One kind of ask to a party in a round."""

    what: str  # the task
    reduce: str = "mean"  # the name of the reducer that updates go into
    # Most asks per party in one round; or one per hidden layer of the network, or one per client of the federation.
    most: int | Literal["layers", "clients"] = 1
    to: Literal["clients", "server", "union"] = "clients"
    via: Literal["server", "peer"] = "server"  # destination of the replies
    handed: Literal["", "self", "client"] = ""  # sender of the message, besides the server
    # Whether the server looks at one party's update by a custom reducer; by "each" it always does.
    alone: bool = False
    epochs: int | None = None  # set by the algorithm itself; None: the experiment's
    when: Callable[[int], bool] | None = None  # in which rounds; None: in all
    broadcast: bool = False  # whether the message is `Algorithm.broadcast` of the state at the start of the round
    whole: bool = False  # whether all are asked, even if a round draws few

    @property
    def single(self) -> bool:
        """Whether the reducer looks at single updates."""
        return self.alone or self.reduce == "each"


class Asks(NamedTuple):
    """All asks of an algorithm."""

    round: tuple[Form, ...] = (Form("train"),)
    first: tuple[Form, ...] = ()  # in the set-up before round 1

    def of(self, number: int) -> tuple[Form, ...]:
        """Return the forms of a round; 0 is the set-up."""
        return self.round if number else self.first

    def also(self, *forms: Form) -> Asks:
        """Return the grammar with further forms, in every round and in the set-up."""
        return Asks((*self.round, *forms), (*self.first, *forms))

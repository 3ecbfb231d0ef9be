"""The record of an attack by malicious clients; `poisoning` lists them by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch

from fedatlas.attacks.backdoor import Backdoor
from fedatlas.attacks.collusion import Craft
from fedatlas.attacks.declaration import Declaration
from fedatlas.attacks.fake_class import FakeClass
from fedatlas.attacks.labels import Flip
from fedatlas.attacks.property_head import PropertyHead
from fedatlas.tree import Tree

AttackUnit = Literal["client", "superclient"]
Upload = Callable[[Tree, Tree, float, torch.Generator], Tree]

Claimed = Literal["own", "even"]


class Claim(NamedTuple):
    """A claim of a client about its rows."""

    c: float  # rows claimed for each that it has
    labels: Claimed  # their labels: its own, or as many of each class


class Poisoning(NamedTuple):
    """An attack of ``[[attack]]``: the attackers, their rounds, and what they do."""

    name: str
    said: str  # what attackers did, for the report; {who} and {classes} are filled in
    declares: Declaration
    share: float | None
    clients: tuple[int, ...]
    unit: AttackUnit
    rounds: tuple[int, int]
    flip: Flip | None = None
    upload: Upload | None = None
    scaled: bool = False  # the upload uses n / (eta_g n_a) of the round
    scale: float | None = None  # replaces it
    backdoor: Backdoor | None = None
    craft: Craft | None = None  # what all attackers send, by what they know together
    claim: Claim | None = None
    against_rule: bool = False  # it is optimised against the server's rule
    copied: int | None = None  # the honest client whose change is sent
    head: PropertyHead | None = None  # the second task of its training
    fakes: FakeClass | None = None  # the class that it draws

    @property
    def alters(self) -> bool:
        """Return whether updates are altered, rather than only rows or claims."""
        return self.upload is not None or self.craft is not None or self.head is not None or self.fakes is not None

    def active(self, number: int) -> bool:
        """Return whether the attack is active in round ``number``, from 1."""
        first, last = self.rounds
        return first <= number and (not last or number <= last)

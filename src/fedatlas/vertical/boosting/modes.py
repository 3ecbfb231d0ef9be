"""The modes of SecureBoost+: on whose columns a level of a tree is grown, and so who is told its rows (V3 (7)).

default    all parties at every level
mix        one party a tree, in turn by the order of the parties
layered    the parties without the label on the first ``passive_depth`` levels, the party with the label below

The first ``complete_secure`` trees are grown on columns of the party with the label, whatever the mode. Softmax grows
one tree per class in a round, and all trees of a round are grown alike. A party by itself grows every tree.
"""

from __future__ import annotations

from typing import NamedTuple

from fedatlas.vertical.boosting.settings import SecureBoost
from fedatlas.vertical.parties import Columns


class Crew(NamedTuple):
    """The parties of a run: the one with the label, and how many there are."""

    active: int
    parties: int

    @property
    def passive(self) -> tuple[int, ...]:
        """The parties without the label."""
        return tuple(k for k in range(self.parties) if k != self.active)


def growing(how: SecureBoost, crew: Crew, number: int, level: int) -> tuple[int, ...]:
    """Return the parties whose columns can split a node, ascending. ``number``: of the round; both count from 1."""
    if number <= how.complete_secure or crew.parties == 1:
        return (crew.active,)
    if how.mode == "mix":
        return ((number - 1) % crew.parties,)
    if how.mode == "layered":
        return crew.passive if level <= how.passive_depth else (crew.active,)
    return tuple(range(crew.parties))


def summing(how: SecureBoost, crew: Crew, number: int, level: int) -> tuple[int, ...]:
    """Return the parties without the label among them: they add up gradients, and must know the rows of open nodes."""
    return tuple(k for k in growing(how, crew, number, level) if k != crew.active)


def crew_of(data: Columns) -> Crew:
    """Return the parties of a run, as one of them knows them."""
    return Crew(data.active, len(data.parties))

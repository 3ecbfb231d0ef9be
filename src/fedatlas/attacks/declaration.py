"""The threat model that an attack declares (A1): `fedatlas show NAME` prints it."""

from __future__ import annotations

from typing import NamedTuple


class Declaration(NamedTuple):
    """The threat model of an attack."""

    who: str  # insider (client, server) or outsider
    how: str  # passive (observes) or active (deviates)
    when: str  # training or inference
    where: str  # what it touches or looks at
    why: str  # what it is after
    knowledge: str  # what it knows beside its own part in the federation
    budget: str  # how much it may do

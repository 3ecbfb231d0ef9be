"""The threat model declared by an attack (A1): `fedatlas show NAME` prints it."""

from __future__ import annotations

from typing import NamedTuple


class Declaration(NamedTuple):
    """The threat model of an attack."""

    who: str  # insider (client, server) or outsider
    how: str  # passive (observes) or active (deviates)
    when: str  # training or inference
    where: str  # what it accesses
    why: str  # its goal
    knowledge: str  # what it knows in addition to its own part in the federation
    budget: str  # its limits
    knows: str = ""  # of attackers in training: whose honest changes they see (`collusion.Knows`)

    def plain(self) -> dict[str, str]:
        """Return the fields that say something."""
        return {field: text for field, text in self._asdict().items() if text}

"""``[[attack]]`` and ``[aggregation]`` of an experiment file as typed values: one table an attack, one for the rule."""

from __future__ import annotations

from fedatlas.attacks.poisoning import POISONING
from fedatlas.registry import Component


class AttackConfig(Component):
    """One of ``[[attack]]``: an attack by name, with the keyword arguments of its builder.

    ``role``: whose view an attack looks at that finds something out; one that poisons has none.
    """

    role: str | tuple[str, ...] | None = None

    @property
    def poisons(self) -> bool:
        """Whether it changes what clients do, and so decides the result."""
        return self.name in POISONING


class AggregationConfig(Component):
    """``[aggregation]``: the rule by which changes become one, with the keyword arguments of its builder."""

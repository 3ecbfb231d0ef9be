"""``[[attack]]`` and ``[aggregation]`` of an experiment file as typed values: one table per attack, one for the rule."""

from __future__ import annotations

from typing import Literal

from fedatlas.attacks.poisoning import POISONING
from fedatlas.registry import Component, Whole


class AttackConfig(Component):
    """One of ``[[attack]]``: an attack by name, with the keyword arguments of its builder.

    ``role``: the role whose view an inference attack uses; a poisoning attack has none.
    """

    role: str | tuple[str, ...] | None = None

    @property
    def poisons(self) -> bool:
        """Return whether it changes what clients do, and so affects the result."""
        return self.name in POISONING


class AggregationConfig(Component):
    """``[aggregation]``: the rule that combines changes, with the keyword arguments of its builder.

    ``pre``: what is done to the changes first; ``f`` then also goes with rules that assume none. ``s``: changes in a bucket.
    """

    pre: Literal["none", "nnm", "bucketing", "arc"] | None = None
    s: Whole | None = None

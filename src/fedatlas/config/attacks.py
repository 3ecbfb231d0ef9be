"""``[[attack]]`` and ``[aggregation]`` of an experiment file as typed values: one table an attack, one for the rule."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from fedatlas.attacks.poisoning import POISONING


class AttackConfig(BaseModel):
    """One of ``[[attack]]``: an attack by name, with the keyword arguments of its builder.

    ``role``: whose view an attack looks at that finds something out; one that poisons has none.
    """

    model_config = ConfigDict(frozen=True, extra="allow")
    name: str
    role: str | tuple[str, ...] | None = None

    def parameters(self) -> dict[str, Any]:
        """The builder's keyword arguments as written; None stands for a key that is left out."""
        return {key: value for key, value in (self.model_extra or {}).items() if value is not None}

    @property
    def poisons(self) -> bool:
        """Whether it changes what clients do, and so decides the result."""
        return self.name in POISONING


class AggregationConfig(BaseModel):
    """``[aggregation]``: the rule by which changes become one, with the keyword arguments of its builder."""

    model_config = ConfigDict(frozen=True, extra="allow")
    name: str

    def parameters(self) -> dict[str, Any]:
        """The builder's keyword arguments as written; None stands for a key that is left out."""
        return {key: value for key, value in (self.model_extra or {}).items() if value is not None}

"""``[observe]`` of an experiment file: the roles whose view of a run is recorded, in which rounds, and the limit in bytes."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator, model_validator

from fedatlas.attacks.roles import ViewRole
from fedatlas.registry import ConfigTable, Count, Whole, bytes_of


class ObserveConfig(ConfigTable):
    """Recording of a role's view in ``observed/``; it does not affect results."""

    roles: tuple[str, ...] = Field(min_length=1)
    rounds: tuple[Count, Count] = (0, 0)  # from, to; 0 = the set-up, the end
    every: Whole = 1
    limit: str = "2GiB"

    @field_validator("roles")
    @classmethod
    def _known(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            ViewRole.parse(text, "observe.roles")
        if len(set(value)) < len(value):
            raise ValueError("observe.roles: a role occurs twice; name each once")
        return value

    @field_validator("limit")
    @classmethod
    def _a_size(cls, value: str) -> str:
        bytes_of(value)
        return value

    @model_validator(mode="after")
    def _in_order(self) -> ObserveConfig:
        first, last = self.rounds
        if last and last < first:
            raise ValueError(f"observe.rounds = [{first}, {last}]: the first must not be after the last; 0 = the end")
        return self

    def wants(self, number: int) -> bool:
        """Return whether a round is recorded; the set-up is round 0."""
        first, last = self.rounds
        return number >= first and (not last or number <= last) and (number - first) % self.every == 0

    def plain(self) -> dict[str, Any]:
        """Return the plain values as written in the file."""
        return {**self.model_dump(), "roles": list(self.roles), "rounds": list(self.rounds)}

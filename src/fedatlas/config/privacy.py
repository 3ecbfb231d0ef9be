"""``[[privacy]]`` of an experiment file as typed values: one table a mechanism."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from fedatlas.privacy.mechanisms import FOR_ALL_ROUNDS


class PrivacyConfig(BaseModel):
    """One of ``[[privacy]]``: a mechanism by name, with the keyword arguments of its builder."""

    model_config = ConfigDict(frozen=True, extra="allow")
    name: str

    def parameters(self) -> dict[str, Any]:
        """The builder's keyword arguments as written; None stands for a key that is left out."""
        return {key: value for key, value in (self.model_extra or {}).items() if value is not None}


def bound_to_rounds(tables: Sequence[PrivacyConfig]) -> str:
    """The mechanism whose noise is made for the number of rounds, which then decides every round; "" where there is none."""
    return next((one.name for one in tables if one.name in FOR_ALL_ROUNDS), "")

"""``[model]`` of an experiment file as a typed value."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from fedatlas import registry
from fedatlas.errors import ConfigError, unknown_name
from fedatlas.models.losses import LOSSES, LossConfig
from fedatlas.models.network import Norm
from fedatlas.models.registry import find_model

_EVERYWHERE = {"norm": "none", "projection": 0}  # keys every [model] has; a builder may lack them at these values


class ModelConfig(BaseModel):
    """``[model]``: these keys and, beside them, the keyword arguments of the builder called ``name``."""

    model_config = ConfigDict(frozen=True, extra="allow")

    name: str = "mlp"
    loss: str | LossConfig = "auto"
    norm: Norm = "none"
    bn: Literal["average", "local", "recalibrate"] = "average"
    projection: int = Field(default=0, ge=0)
    init: str = ""

    @field_validator("loss")
    @classmethod
    def _known_loss(cls, value: str | LossConfig) -> str | LossConfig:
        name = value if isinstance(value, str) else value.name
        if name not in {*LOSSES, "auto"}:
            raise ConfigError(f"model.loss = '{name}': {unknown_name('loss', name, [*LOSSES, 'auto'])}")
        return value

    def builder_arguments(self) -> dict[str, Any]:
        """The keyword arguments for the builder, checked against its typed signature."""
        builder = find_model(self.name)
        keys = registry.keywords(builder)
        given = dict(self.model_extra or {})
        for key in given:
            if key not in keys:
                raise registry.unknown_key("model", key, [*keys, *type(self).model_fields])
        for key, default in _EVERYWHERE.items():
            value = getattr(self, key)
            if key in keys:
                given[key] = value
            elif value != default:
                raise ConfigError(f"model '{self.name}' has no '{key}': leave it at {default!r} or take another model.")
        return registry.arguments("model", builder, given)

"""``[model]`` of an experiment file as a typed value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, field_validator, model_validator
from torch import nn

from fedatlas import registry
from fedatlas.apportion import largest_remainder
from fedatlas.errors import ConfigError, unknown_name
from fedatlas.models.losses import LOSSES, LossConfig
from fedatlas.models.network import Norm
from fedatlas.models.registry import OWN, find_model
from fedatlas.rng import numpy_stream
from fedatlas.spelling import unknown_key

Share = Annotated[float, Field(gt=0, le=1)]
_EVERYWHERE = {"norm": "none", "projection": 0}  # keys of every [model]; a builder may lack them at these values


class ModelConfig(registry.Component):
    """``[model]``: these keys and the keyword arguments of the builder called ``name``."""

    name: str = "mlp"
    loss: str | LossConfig = "auto"
    norm: Norm = "none"
    bn: Literal["average", "local", "recalibrate"] = "average"
    projection: registry.Count = 0
    init: str = ""

    @field_validator("loss")
    @classmethod
    def _known_loss(cls, value: str | LossConfig) -> str | LossConfig:
        name = value if isinstance(value, str) else value.name
        if name not in {*LOSSES, "auto"}:
            raise ConfigError(f"model.loss = '{name}': {unknown_name('loss', name, [*LOSSES, 'auto'])}")
        return value

    def given(self, module: Any) -> ModelConfig:
        """Return the table of a network given as an object, which has no keys of a builder."""
        if not isinstance(module, nn.Module):
            made = f"an instance, {module.__name__}(...)" if isinstance(module, type) else "a torch.nn.Module"
            raise ConfigError(f"module = {module!r}: give {made}.")
        return ModelConfig(name=f"{OWN}{type(module).__name__}", loss=self.loss, bn=self.bn)

    def builder_arguments(self) -> dict[str, Any]:
        """Return the keyword arguments for the builder, checked against its typed signature."""
        builder = find_model(self.name)
        keys = registry.keywords(builder)
        given = dict(self.model_extra or {})
        for key in given:
            if key not in keys:
                raise unknown_key("model", key, [*keys, *type(self).model_fields])
        for key, default in _EVERYWHERE.items():
            value = getattr(self, key)
            if key in keys:
                given[key] = value
            elif value != default:
                raise ConfigError(f"model '{self.name}' has no '{key}': leave it at {default!r} or use another model.")
        return registry.arguments("model", builder, given)


class MixedConfig(registry.Component):
    """One of ``[[models]]``: a builder with its keyword arguments, and the share of clients that have this model."""

    share: Share
    norm: Norm = "none"
    projection: registry.Count = 0

    @model_validator(mode="after")
    def _known_keys(self) -> MixedConfig:
        for key in ("loss", "bn", "init"):
            if key in (self.model_extra or {}):
                raise ConfigError(f"models.{key}: this key is the same for all models; set it in [model].")
        self.under(ModelConfig()).builder_arguments()
        return self

    def under(self, model: ModelConfig) -> ModelConfig:
        """Return the ``[model]`` of the clients that have it: ``loss`` and ``bn`` come from ``model``."""
        own = {key: value for key, value in self.model_dump().items() if key != "share"}
        return ModelConfig.model_validate({"loss": model.loss, "bn": model.bn, **own})


def names(models: Sequence[MixedConfig]) -> list[str]:
    """Return the names of the architectures: the builder's, numbered if it occurs several times."""
    every = [each.name for each in models]
    return [f"{n}-{every[: i + 1].count(n)}" if every.count(n) > 1 else n for i, n in enumerate(every)]


def dealt(shares: Sequence[float], clients: int, seed: int) -> list[int]:
    """Return each client's architecture by index.

    Their numbers follow the shares (largest remainders); the clients are drawn.

    ConfigError if an architecture gets no client.
    """
    counts = largest_remainder(np.array(shares) * clients, clients).tolist()
    for share, count in zip(shares, counts, strict=True):
        if not count:
            raise ConfigError(
                f"[[models]]: a share of {share:g} of {clients} clients is less than one client; raise it or partition.clients."
            )
    order, places = numpy_stream(seed, "models").permutation(clients), [0] * clients
    for at, k in enumerate(order):
        places[int(k)] = next(i for i in range(len(counts)) if at < sum(counts[: i + 1]))
    return places

"""``[compression]``: the transform between the clients' updates and the server, and the algorithms that cannot use it."""

from __future__ import annotations

from collections.abc import Mapping

from fedatlas.algorithm import Algorithm, Transform
from fedatlas.config import ExperimentConfig
from fedatlas.errors import ConfigError
from fedatlas.registry import arguments, find
from fedatlas.transforms import TRANSFORMS


def refused(algorithm: Algorithm) -> Mapping[str, str]:
    """Map each table or name that makes no sense with this algorithm to the reason."""
    own: dict[str, str] = {}
    if algorithm.serverless:
        own = {"compression": "its clients send to each other, and only messages to the server are compressed"}
    return {**own, **algorithm.refuses}


def make_transform(config: ExperimentConfig, algorithm: Algorithm) -> Transform | None:
    """Return the transform that ``[compression]`` names, or None.

    ConfigError if it makes no sense with the algorithm.
    """
    if config.compression is None:
        return None
    builder = find("transforms", TRANSFORMS, config.compression.name)
    given = arguments("compression", builder, config.compression.parameters())
    reasons = refused(algorithm)
    why, what = reasons.get("compression"), "[compression]"
    if why is None and (own := f"compression.{config.compression.name}") in reasons:
        why, what = reasons[own], f"compression.name = '{config.compression.name}'"
    if why is not None:
        raise ConfigError(f"{what}: not with '{algorithm.name}': {why}; remove the table.")
    made = builder(**given)
    if not isinstance(made, Transform):
        raise ConfigError(
            f"compression '{config.compression.name}': its builder returned {type(made).__name__}, not a Transform."
        )
    return made


def transform_notices(config: ExperimentConfig, transform: Transform | None) -> list[str]:
    """Return the profile's warnings about a transform that keeps state on its clients."""
    if config.profile != "device" or transform is None or transform.memory_init is None:
        return []
    return [
        f"profile 'device': '{transform.name}' keeps what was not sent on its clients, but devices rarely come back; use qsgd."
    ]

"""``[engine]`` of an experiment file: how a run is computed."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import field_validator, model_validator

from fedatlas.registry import ConfigTable, Count, bytes_of


class EngineConfig(ConfigTable):
    """``[engine]``: settings of speed that never affect results."""

    name: Literal["fast", "loop"] = "fast"
    plan: Literal["auto", "program", "stacked", "tuned", "native", "calibrate"] = "auto"
    workers: Count = 0
    chunk: Count = 0
    precision: Literal["float32", "float64", "bfloat16"] = "float32"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    memory: str = "4GiB"
    state_memory: str = "2GiB"
    cluster: str | None = None

    @field_validator("cluster", mode="before")
    @classmethod
    def _empty_is_this_machine(cls, value: Any) -> Any:
        return None if value == "" else value

    @field_validator("memory", "state_memory", mode="before")
    @classmethod
    def _sizes(cls, value: Any) -> Any:
        bytes_of(str(value))
        return value

    @model_validator(mode="after")
    def _gpu_is_fed_by_one(self) -> EngineConfig:
        if self.device == "cuda" and self.workers > 1:
            raise ValueError(f"engine.workers = {self.workers}: a GPU is used by one process; remove the key")
        if self.device == "cuda" and self.plan == "native":
            raise ValueError(
                "engine.plan = 'native': compiled steps run only on CPUs; remove the key or set engine.device = 'cpu'"
            )
        return self

    @model_validator(mode="after")
    def _loop_is_plain(self) -> EngineConfig:
        if self.name == "loop":
            for key, plain in (("plan", ("auto",)), ("workers", (0, 1)), ("chunk", (0, 1))):
                if getattr(self, key) not in plain:
                    raise ValueError(
                        f"engine.{key} = {getattr(self, key)!r}: the loop trains one client after another in one process; "
                        "remove the key or set engine.name = 'fast'"
                    )
            if self.precision == "bfloat16":
                raise ValueError("engine.precision = 'bfloat16': the loop computes only in float32 or float64")
        if self.plan == "stacked" and self.workers > 1:
            raise ValueError(
                f"engine.workers = {self.workers}: one process trains the stack; remove the key or the plan"
            )
        return self

    @model_validator(mode="after")
    def _cluster_trains_client_by_client(self) -> EngineConfig:
        if self.cluster is None:
            return self
        for key, given, why in (
            ("name", "loop", "the loop trains one client after another in one process"),
            ("plan", "stacked", "one process trains the stack"),
            ("device", "cuda", "the nodes of a cluster train on processors"),
        ):
            if getattr(self, key) == given:
                raise ValueError(f"engine.cluster = {self.cluster!r}: {why}; remove the key or engine.{key}")
        return self

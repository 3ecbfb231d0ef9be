"""``[tracking]`` of an experiment file: the tool that hears a run round by round, beside its own folder."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Literal
from urllib.parse import urlsplit

from pydantic import field_validator, model_validator

from fedatlas.errors import ConfigError
from fedatlas.registry import ConfigTable

NEEDS = {"mlflow": ("mlflow", "tracking"), "tensorboard": ("tensorboard", "tracking"), "wandb": ("wandb", "wandb")}
"""Name -> (the package it needs, the extra that brings it)."""


class TrackingConfig(ConfigTable):
    """The tool, and where it keeps what it hears; it does not affect results."""

    name: Literal["mlflow", "tensorboard", "wandb"]
    project: str = "fedatlas"
    to: str = ""  # a server's address, or a folder; by default as the tool's own settings say
    report: bool | None = None  # whether the page goes too; None: if it can tell of no real owner's rows

    @field_validator("to")
    @classmethod
    def _no_password(cls, value: str) -> str:
        if urlsplit(value).password:
            raise ValueError(
                "tracking.to holds a password, which the run's folder would keep: set it in the environment"
            )
        return value

    @model_validator(mode="after")
    def _projects(self) -> TrackingConfig:
        if self.name == "tensorboard" and "project" in self.model_fields_set and self.project != "fedatlas":
            raise ValueError(
                "tracking.project: tensorboard has folders, not projects; remove the key or give tracking.to"
            )
        return self


def check_tracking(how: TrackingConfig | None) -> None:
    """Raise ConfigError if the package of the tool is not installed."""
    if how is None:
        return
    package, extra = NEEDS[how.name]
    if find_spec(package) is None:
        raise ConfigError(
            f"tracking.name = '{how.name}' needs {package}, which is not installed: pip install \"fedatlas[{extra}]\"."
        )

"""``[data]`` and ``[public]`` of an experiment file as typed values."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator

from fedatlas import registry
from fedatlas.data.by_name import find_source
from fedatlas.errors import ConfigError
from fedatlas.spelling import unknown_data_key


class DataConfig(registry.Component):
    """``[data]``: these keys and the keyword arguments of the source called ``name``.

    Both are checked when the value is made. ConfigError with the nearest valid name for an unknown source or key.
    """

    name: str = "digits"
    test: float | str = "own"
    limit: registry.Count = 0
    scale: Literal["auto", "none", "federated", "client"] = "auto"
    missing: Literal["error", "drop", "median"] = "error"
    augment: Literal["none", "crop_flip"] = "none"
    # A file in the form of preprocess.json, or its values: then no constant is computed from rows. None keeps hashes
    # unchanged.
    constants: str | dict[str, Any] | None = None

    @field_validator("test")
    @classmethod
    def _a_share(cls, value: float | str) -> float | str:
        if value == "" or (not isinstance(value, str) and not 0 < value < 1):
            raise ValueError(f"{value!r} is not 'own', a share between 0 and 1, or a file name")
        return value

    @model_validator(mode="after")
    def _settled_once(self) -> DataConfig:
        if self.constants is not None and self.scale != "auto":
            raise ConfigError(
                f"data.scale = '{self.scale}': data.constants already sets the scaling of inputs; remove one of the keys."
            )
        return self

    @model_validator(mode="after")
    def _known_keys(self) -> DataConfig:
        self.options()
        if self.test_file and not find_source(self.name).test_files:
            raise ConfigError(
                f"data.test = '{self.test}': '{self.name}' takes 'own' or a fraction; only tables and files take a test file."
            )
        return self

    @property
    def test_file(self) -> str:
        """Return the file with the test rows; "" if they are the source's own, or a share of all rows."""
        return self.test if isinstance(self.test, str) and self.test != "own" else ""

    def files(self) -> list[str]:
        """Return the files with training and test rows that the keys name."""
        path = (self.model_extra or {}).get("path")
        return [each for each in (path, self.test_file) if isinstance(each, str) and each]

    def options(self) -> dict[str, Any]:
        """Return the source's own keys with their defaults, checked against its loader's typed signature."""
        builder = find_source(self.name).builder
        keys = registry.keywords(builder)
        given = dict(self.model_extra or {})
        for key in given:
            if key not in keys:
                of_files = registry.keywords(find_source("file").builder)
                raise unknown_data_key(key, keys, of_files, type(self).model_fields)
        return registry.arguments("data", builder, given)


class PublicConfig(registry.ConfigTable):
    """``[public]``: rows visible to all clients and the server. They are taken out before the rows are partitioned."""

    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True, serialize_by_alias=True)

    source: str = Field(default="test", alias="from")
    per_class: registry.Whole | None = None
    rows: registry.Whole | None = None
    fewer: bool | None = None  # a class with fewer than per_class rows gives all it has; None keeps hashes unchanged

    @model_validator(mode="after")
    def _one_number(self) -> PublicConfig:
        if self.per_class is not None and self.rows is not None:
            raise ValueError("give per_class or rows, not both")
        if self.fewer is not None and self.rows is not None:
            raise ValueError("fewer applies only to per_class; remove it if you give rows")
        if self.source not in {"test", "train"}:
            find_source(self.source)
        return self

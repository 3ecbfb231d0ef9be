"""STUDY.toml: the question as a file. Typed values out, parsed once; `docs/study.md` is the contract.

A factor is varied over levels; a level is one or several keys of the experiment file with their values. A factor with the role
"setting" is given to whoever asks (how many nodes, how uneven), one with the role "choice" is what is looked for.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, ValidationError, field_validator, model_validator

from fedatlas.config import ConfigTable, bytes_of
from fedatlas.registry import Count, config_error, refuse_flags
from fedatlas.study.plain import Plain, Row, toml_of

Role = Literal["setting", "choice"]
Number = Annotated[int, Field(ge=1)]
Value = str | int | float | bool | list[Any] | Plain


class LevelTable(ConfigTable):
    """``[[factor.level]]``: a level by name, with what it sets."""

    name: str = Field(min_length=1)
    set: Plain = Field(default={})
    optional: bool = False


class FactorTable(ConfigTable):
    """``[[factor]]``: what is varied. ``key`` with ``levels``, or ``[[factor.level]]`` tables."""

    name: str = Field(min_length=1)
    role: Role
    key: str | None = None
    levels: tuple[Any, ...] = ()
    level: tuple[LevelTable, ...] = ()
    scale: Literal["linear", "log", "category"] = "category"
    optional: bool = False

    @model_validator(mode="after")
    def _one_kind_of_levels(self) -> FactorTable:
        if bool(self.levels) == bool(self.level):
            raise ValueError(f"factor '{self.name}': give levels = [...] or [[factor.level]] tables, one of them")
        if bool(self.levels) != (self.key is not None):
            raise ValueError(
                f"factor '{self.name}': key and levels go together, [[factor.level]] tables say their keys"
            )
        return self


class DesignTable(ConfigTable):
    """``[design]``: which of the allowed cells are run."""

    name: Literal["grid", "random"] = "grid"
    cells: Number | None = None
    settings: Number | None = None
    evenly: tuple[str, ...] = ()  # factors of settings over whose levels the draw is spread
    holdout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    seed: Count = 1

    @model_validator(mode="after")
    def _a_number_for_random(self) -> DesignTable:
        given = [key for key in ("cells", "settings") if getattr(self, key) is not None]
        if self.evenly and self.settings is None:
            raise ValueError("design.evenly spreads settings: give design.settings = n, or remove it")
        if self.name == "grid" and given:
            raise ValueError(
                f"design.{given[0]}: a grid has every allowed cell; remove the key or take name = 'random'"
            )
        if self.name == "random" and len(given) != 1:
            raise ValueError("design: random draws so many cells, or settings with every choice: give one of the two")
        return self


class TuningTable(ConfigTable):
    """``[tuning]``: rates that are tried in every cell, and picked on validation rows."""

    keys: dict[str, list[Any]] = Field(min_length=1)
    validation: Annotated[float, Field(gt=0, lt=1)] = 0.1
    seed: Count = 1_000_003  # of its own: no seed of a cell decides a pick

    @field_validator("keys")
    @classmethod
    def _different(cls, keys: dict[str, list[Any]]) -> dict[str, list[Any]]:
        for key, tried in keys.items():
            if not tried or len({repr(x) for x in tried}) < len(tried):
                raise ValueError(f"tuning.keys: '{key}' needs a list of different values to try")
        return keys


class ExecuteTable(ConfigTable):
    """``[execute]``: how runs are made, never what comes of them."""

    parallel: Count = 0  # 0: two
    hours: Annotated[float, Field(gt=0)] | None = None  # of the study: afterwards no run is begun
    seconds: Annotated[float, Field(gt=0)] | None = None  # of a run
    memory: str | None = None  # of a run
    retries: Count = 2  # of a run that a signal ended
    keep: Literal["rows", "folder"] = "rows"

    @field_validator("memory", mode="before")
    @classmethod
    def _size(cls, value: Any) -> Any:
        bytes_of(str(value))
        return value


class StudyTable(ConfigTable):
    """The whole file."""

    name: str | None = None
    base: str | Plain = Field(default={})
    seeds: tuple[Count, ...] = (1,)
    alone: bool = False  # whether each client is also trained alone, for `gain`
    factor: tuple[FactorTable, ...] = ()
    exclude: tuple[dict[str, Value], ...] = ()
    design: DesignTable = DesignTable()
    tuning: TuningTable | None = None
    execute: ExecuteTable = ExecuteTable()

    @model_validator(mode="after")
    def _makes_a_study(self) -> StudyTable:
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError("seeds: a list of different whole numbers")
        names = [factor.name for factor in self.factor]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"factor '{twice[0]}' is there twice: give each a name of its own")
        if not any(factor.role == "choice" for factor in self.factor):
            raise ValueError("the study has no choice: give at least one [[factor]] the role = 'choice'")
        if self.tuning is not None and self.tuning.seed in self.seeds:
            raise ValueError(f"tuning.seed = {self.tuning.seed}: take one that is not among seeds")
        return self


class StudyFile(NamedTuple):
    """STUDY.toml, read: its tables, and the values of the base experiment."""

    name: str
    table: StudyTable
    base: Row
    sha256: str


def read_study_file(path: Path) -> StudyFile:
    """The study in a file; ConfigError with one sentence for whatever is wrong with it alone."""
    text, values = toml_of(path, "study")
    refuse_flags(values, StudyTable)
    return study_of(values, path.stem, path.parent, text)


def study_of(values: Row, name: str, folder: Path, text: str = "") -> StudyFile:
    """The study of plain values; a base file is looked for in ``folder``."""
    try:
        table = StudyTable.model_validate(dict(values))
    except ValidationError as error:
        raise config_error(error, model=StudyTable) from None
    base = toml_of(folder / table.base, "experiment")[1] if isinstance(table.base, str) else dict(table.base)
    for key in ("seed", "seeds"):
        base.pop(key, None)  # the study's own
    return StudyFile(table.name or name, table, base, hashlib.sha256((text or repr(values)).encode()).hexdigest())

"""STUDY.toml: the question as a file, parsed once into typed values without torch; `docs/study.md` defines the format.

A factor is varied over levels; a level is one or several keys of the experiment file with their values. A factor with the role
"setting" is given for the user (how many nodes, how uneven); one with the role "choice" is the decision sought.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, ValidationError, field_validator, model_validator

from fedatlas.errors import ConfigError
from fedatlas.registry import ConfigTable, Count, bytes_of, config_error, refuse_flags
from fedatlas.study.plain import Plain, Row, toml_of

Role = Literal["setting", "choice"]
Number = Annotated[int, Field(ge=1)]
Value = str | int | float | bool | list[Any] | Plain


class LevelTable(ConfigTable):
    """``[[factor.level]]``: a named level and the keys it sets."""

    name: str = Field(min_length=1)
    set: Plain = Field(default={})
    optional: bool = False


class FactorTable(ConfigTable):
    """``[[factor]]``: a varied quantity. ``key`` with ``levels``, or ``[[factor.level]]`` tables."""

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
            raise ValueError(f"factor '{self.name}': give either levels = [...] or [[factor.level]] tables")
        if bool(self.levels) != (self.key is not None):
            raise ValueError(
                f"factor '{self.name}': give key together with levels; [[factor.level]] tables name their own keys"
            )
        return self


def level_name(value: Any) -> str:
    """Return the level name of a value: a text unchanged, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def written_levels(factor: FactorTable) -> list[LevelTable]:
    """Return levels as tables of the keys they set; plain values get the factor's key."""
    assert factor.level or factor.key is not None
    tables = list(factor.level) or [LevelTable(name=level_name(x), set={factor.key or "": x}) for x in factor.levels]
    names = [table.name for table in tables]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"factor '{factor.name}': level '{twice[0]}' occurs twice; give each level a different name.")
    return tables


class DesignTable(ConfigTable):
    """``[design]``: selection of the allowed cells to run."""

    name: Literal["grid", "random"] = "grid"
    cells: Number | None = None
    settings: Number | None = None
    evenly: tuple[str, ...] = ()  # setting factors over whose levels the draw is spread evenly
    holdout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    seed: Count = 1

    @model_validator(mode="after")
    def _a_number_for_random(self) -> DesignTable:
        given = [key for key in ("cells", "settings") if getattr(self, key) is not None]
        if self.evenly and self.settings is None:
            raise ValueError("design.evenly spreads settings: give design.settings = n, or remove it")
        if self.name == "grid" and given:
            raise ValueError(f"design.{given[0]}: a grid has every allowed cell; remove the key or set name = 'random'")
        if self.name == "random" and len(given) != 1:
            raise ValueError(
                "design: random needs either cells, or settings (each with every choice): give one of the two"
            )
        return self


class TuningTable(ConfigTable):
    """``[tuning]``: rates tried in every cell, and picked on validation rows."""

    keys: dict[str, list[Any]] = Field(min_length=1)
    validation: Annotated[float, Field(gt=0, lt=1)] = 0.1
    seed: Count = 1_000_003  # separate, so that no seed of a cell decides a pick

    @field_validator("keys")
    @classmethod
    def _different(cls, keys: dict[str, list[Any]]) -> dict[str, list[Any]]:
        for key, tried in keys.items():
            if not tried or len({repr(x) for x in tried}) < len(tried):
                raise ValueError(f"tuning.keys: '{key}' needs a list of different values to try")
        return keys


class ExecuteTable(ConfigTable):
    """``[execute]``: how runs are executed; it never affects results."""

    parallel: Count = 0  # 0: use the default, two
    hours: Annotated[float, Field(gt=0)] | None = None  # for the whole study: no run starts later
    seconds: Annotated[float, Field(gt=0)] | None = None  # per run
    memory: str | None = None  # per run
    retries: Count = 2  # for a run ended by a signal
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
    alone: bool = False  # also train each client alone, for `gain`
    factor: tuple[FactorTable, ...] = ()
    exclude: tuple[dict[str, Value], ...] = ()
    design: DesignTable = DesignTable()
    tuning: TuningTable | None = None
    execute: ExecuteTable = ExecuteTable()

    @model_validator(mode="after")
    def _makes_a_study(self) -> StudyTable:
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError("seeds: give a list of different whole numbers")
        names = [factor.name for factor in self.factor]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"factor '{twice[0]}' occurs twice: give each factor a different name")
        if not any(factor.role == "choice" for factor in self.factor):
            raise ValueError("the study has no choice: give at least one [[factor]] the role = 'choice'")
        if self.tuning is not None and self.tuning.seed in self.seeds:
            raise ValueError(f"tuning.seed = {self.tuning.seed}: use one that is not among seeds")
        return self


class StudyFile(NamedTuple):
    """STUDY.toml, read: its tables, and the values of the base experiment."""

    name: str
    table: StudyTable
    base: Row
    sha256: str


def read_study_file(path: Path) -> StudyFile:
    """Read the study in a file; ConfigError with one sentence for any error in the file itself."""
    text, values = toml_of(path, "study")
    refuse_flags(values, StudyTable)
    return study_of(values, path.stem, path.parent, text)


def study_of(values: Row, name: str, folder: Path, text: str = "") -> StudyFile:
    """Return the study of plain values; a base file is searched in ``folder``."""
    try:
        table = StudyTable.model_validate(dict(values))
    except ValidationError as error:
        raise config_error(error, model=StudyTable) from None
    base = toml_of(folder / table.base, "experiment")[1] if isinstance(table.base, str) else dict(table.base)
    for key in ("seed", "seeds"):
        base.pop(key, None)  # the study's own replace them
    return StudyFile(table.name or name, table, base, hashlib.sha256((text or repr(values)).encode()).hexdigest())

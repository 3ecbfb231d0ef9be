"""Components by name: a builder's typed keyword arguments are the schema of its table in the experiment file.

Each package keeps a plain dict literal of its builders; third parties add theirs through an entry-point group
(``fedatlas.algorithms``, ``fedatlas.models``, ``fedatlas.partitions``) or ``--plugin``. An experiment file can name
a component, never import one.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import entry_points
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from fedatlas.errors import ConfigError, unknown_name

Builder = Callable[..., Any]

Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""A parameter that is a finite number of 0 or more."""

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
"""A parameter that is a finite number above 0."""

Decay = Annotated[float, Field(ge=0, lt=1)]
"""A parameter that says how much of the past is kept: from 0 to below 1."""

Whole = Annotated[int, Field(ge=1)]
"""A parameter that counts: 1 or more."""

PLUGINS: dict[str, dict[str, Builder]] = {"algorithms": {}, "models": {}, "partitions": {}}
"""What ``--plugin`` brought, by kind: the only table that is filled at run time."""


def find(kind: str, table: Mapping[str, Builder], name: str) -> Builder:
    """The builder called ``name`` in a package's table, among the plugins, or behind an entry point."""
    if name in table:
        return table[name]
    if name in PLUGINS.get(kind, {}):
        return PLUGINS[kind][name]
    extra = {point.name: point for point in entry_points(group=f"fedatlas.{kind}")}
    if name in extra:
        builder: Builder = extra[name].load()
        return builder
    raise unknown_name(kind.removesuffix("s"), name, [*table, *PLUGINS.get(kind, {}), *extra])


def keywords(builder: Builder) -> dict[str, inspect.Parameter]:
    """The keyword-only parameters of a builder: the keys of its table."""
    parameters = inspect.signature(builder).parameters.values()
    return {p.name: p for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


def arguments(table: str, builder: Builder, given: Mapping[str, Any]) -> dict[str, Any]:
    """``given`` checked against the builder's signature; ConfigError with the nearest valid key otherwise."""
    hints = typing.get_type_hints(builder, include_extras=True)
    fields: dict[str, Any] = {}
    for name, p in keywords(builder).items():
        fields[name] = (hints.get(name, Any), ... if p.default is inspect.Parameter.empty else p.default)
    for key in given:
        if key not in fields:
            raise unknown_key(table, key, fields)
    schema = create_model("Arguments", __config__=ConfigDict(extra="forbid", arbitrary_types_allowed=True), **fields)
    try:
        checked = schema.model_validate(dict(given))
    except ValidationError as error:
        raise config_error(error, table) from None
    return {name: getattr(checked, name) for name in fields}


def unknown_key(table: str, key: str, known: Iterable[str]) -> ConfigError:
    """The error for a key that a table does not have."""
    where = f"{table}.{key}" if table else key
    known = list(known)
    if not known:
        return ConfigError(f"unknown key '{where}': this component takes no parameters.")
    return ConfigError(str(unknown_name("key", where, [f"{table}.{k}" if table else k for k in known])))


def config_error(error: ValidationError, table: str = "", model: type[BaseModel] | None = None) -> ConfigError:
    """The first problem that pydantic found, as one sentence with the key, what was expected and what was given."""
    first = error.errors(include_url=False)[0]
    parts = [
        str(x) for x in first["loc"] if not (isinstance(x, str) and ("[" in x or x in {"str", "int", "float", "bool"}))
    ]
    where = ".".join([*([table] if table else []), *parts]) or "experiment"
    if first["type"] == "extra_forbidden" and model is not None:
        at: Any = model
        for part in parts[:-1]:
            at = field_model(at, part)
        return unknown_key(
            ".".join([*([table] if table else []), *parts[:-1]]), parts[-1], at.model_fields if at else ()
        )
    message = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
    given = first.get("input")
    shown = "" if isinstance(given, (dict, BaseModel)) or first["type"] == "missing" else f" (got {given!r})"
    return ConfigError(f"{where}: {message[0].lower()}{message[1:]}{shown}.")


def field_model(model: type[BaseModel], name: str) -> type[BaseModel] | None:
    """The pydantic model behind a field, also through ``X | None``."""
    field = model.model_fields.get(name) if model else None
    for option in (field.annotation, *typing.get_args(field.annotation)) if field else ():
        if inspect.isclass(option) and issubclass(option, BaseModel):
            return option
    return None


def describe(kind: str, builders: Mapping[str, Builder]) -> list[dict[str, Any]]:
    """A row a builder, for ``fedatlas list``."""
    every = {**builders, **PLUGINS.get(kind, {})}
    return [
        {"name": name, "summary": summary(builder), "parameters": defaults(builder)} for name, builder in every.items()
    ]


def summary(builder: Builder) -> str:
    """The first line of a builder's docstring."""
    return (inspect.getdoc(builder) or "").split("\n")[0]


def defaults(builder: Builder) -> dict[str, Any]:
    """Parameter -> default, None where it has to be given."""
    return {name: None if p.default is p.empty else p.default for name, p in keywords(builder).items()}

"""Components by name: a builder's typed keyword arguments are the schema of its table in the experiment file.

Each package keeps a plain dict literal of its builders; third parties add theirs through an entry-point group
(``fedatlas.algorithms``, ``.models``, ``.partitions``, ``.transforms``, ``.reducers``) or ``--plugin``. An experiment
file can name a component but never import one.
"""

from __future__ import annotations

import inspect
import re
import types
import typing
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import PurePath
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from fedatlas.errors import ConfigError, ValueMistake, first_line, unknown_name
from fedatlas.spelling import one_of, unknown_argument, unknown_key

Builder = Callable[..., Any]

PlainValues = dict[str, Any]
"""Values by name, of the types that TOML and JSON can hold."""

Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""Type of a parameter that is a finite number of 0 or more."""

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
"""Type of a parameter that is a finite number above 0."""

Decay = Annotated[float, Field(ge=0, lt=1)]
"""Type of a parameter for the share of the past that is kept, from 0 to below 1."""

Whole = Annotated[int, Field(ge=1)]
"""Type of a parameter that counts, 1 or more."""

Count = Annotated[int, Field(ge=0)]
"""Type of a parameter that counts, 0 or more."""

PLUGINS: dict[str, dict[str, Builder]] = {
    kind: {} for kind in ("algorithms", "models", "partitions", "transforms", "reducers")
}
"""Builders from ``--plugin``, by kind."""
OURS: dict[str, Mapping[str, Builder]] = {}
"""The package's own tables by kind, once they are imported, for a component that names another one of its kind."""
INSTALLED: dict[str, str] = {}
"""Packages whose builders were used, with their versions, since a result also depends on them."""


class ConfigTable(BaseModel):
    """A table of a configuration file with exactly the keys below."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Component(ConfigTable):
    """A table with ``name`` and the keyword arguments of the builder of that name."""

    model_config = ConfigDict(extra="allow")
    name: str

    def parameters(self) -> PlainValues:
        """Return the builder's keyword arguments as written, without those that are None."""
        return {key: value for key, value in (self.model_extra or {}).items() if value is not None}


def find(kind: str, table: Mapping[str, Builder], name: str) -> Builder:
    """Return the builder ``name`` from a package's table, the plug-ins or an entry point; ConfigError if unknown."""
    if name in table:
        return table[name]
    if name in PLUGINS.get(kind, {}):
        return PLUGINS[kind][name]
    extra = {point.name: point for point in entry_points(group=f"fedatlas.{kind}")}
    if name in extra:
        builder = installed(kind, extra[name])
        if (package := extra[name].dist) is not None:
            INSTALLED[package.name] = package.version
        return builder
    raise unknown_name(kind.removesuffix("s"), name, [*table, *PLUGINS.get(kind, {}), *extra])


def builders_of(kind: str, table: Mapping[str, Builder]) -> dict[str, Builder]:
    """Return every builder of a kind by name: built-in ones, then those of installed packages, then plug-ins.

    Built-in names take precedence over installed packages. A package that cannot be loaded gives a UserWarning, so that
    the others remain usable.
    """
    others: dict[str, Builder] = {}
    for point in entry_points(group=f"fedatlas.{kind}"):
        if point.name not in table:
            try:
                others[point.name] = installed(kind, point)
            except ConfigError as error:
                warnings.warn(str(error), stacklevel=2)
    return {**table, **others, **PLUGINS.get(kind, {})}


def installed(kind: str, point: EntryPoint) -> Builder:
    """Return the builder of an installed package; ConfigError if it cannot be imported."""
    try:
        builder: Builder = point.load()
    except Exception as error:
        package = point.dist.name if point.dist else point.value
        raise ConfigError(
            f"{kind.removesuffix('s')} '{point.name}' of the package '{package}' cannot be loaded ({first_line(error)}): "
            "update or remove that package."
        ) from error
    return builder


def keywords(builder: Builder) -> dict[str, inspect.Parameter]:
    """Return the keyword-only parameters of a builder, which are the keys of its table."""
    parameters = inspect.signature(builder).parameters.values()
    return {p.name: p for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


def hints_of(builder: Builder) -> PlainValues:
    """Return the types of a builder's parameters; {} if they cannot be read. Any value is then accepted."""
    try:
        return typing.get_type_hints(builder, include_extras=True)
    except TypeError:
        return {}


def arguments(table: str, builder: Builder, given: Mapping[str, Any]) -> PlainValues:
    """Return ``given`` checked against the builder's signature, with defaults; ConfigError for a wrong key or value."""
    fields, schema = schema_of(builder)
    for key in given:
        if key not in fields:
            raise unknown_argument(table, key, fields)
        refuse_flag(f"{table}.{key}", given[key], fields[key][0])
    try:
        checked = schema.model_validate(dict(given))
    except ValidationError as error:
        raise config_error(error, table) from None
    return {name: getattr(checked, name) for name in fields}


@cache
def schema_of(builder: Builder) -> tuple[PlainValues, type[BaseModel]]:
    """Return (name -> type and default) of a builder's keywords, and the model that checks them; cached."""
    hints = hints_of(builder)
    fields: PlainValues = {}
    for name, p in keywords(builder).items():
        fields[name] = (hints.get(name, Any), ... if p.default is inspect.Parameter.empty else p.default)
    config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)
    return fields, create_model("Arguments", __config__=config, **fields)


def refuse_flag(where: str, value: Any, hint: Any) -> None:
    """Raise ValueMistake for true or false in place of a number, which pydantic would take for 1 or 0."""
    wanted = in_words(hint)
    if isinstance(value, bool) and KINDS[bool] not in wanted and wanted != KINDS[Any]:
        raise ValueMistake(f"{where} = {shown(value)}: expected {'a ' if wanted[0].isalpha() else ''}{wanted}.")


def refuse_flags(given: Mapping[str, Any], model: type[BaseModel], table: str = "") -> None:
    """Apply `refuse_flag` to every key of nested tables that the model has."""
    for key, value in given.items():
        where, inner = f"{table}.{key}" if table else key, field_model(model, key)
        if isinstance(value, Mapping) and inner is not None:
            refuse_flags(value, inner, where)
        elif key in model.model_fields:
            refuse_flag(where, value, model.model_fields[key].rebuild_annotation())


def bytes_of(text: str) -> int:
    """Return the bytes of a text such as '4GiB'. ValueError for anything else."""
    units = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
    for unit in sorted(units, key=len, reverse=True):
        number = text.removesuffix(unit).strip()
        if text.endswith(unit) and number.replace(".", "", 1).isdigit() and float(number) > 0:
            return int(float(number) * units[unit])
    raise ValueError(f"'{text}' is not a size: write a number above 0 and B, KiB, MiB, GiB or TiB, such as '4GiB'")


def config_error(error: ValidationError, table: str = "", model: type[BaseModel] | None = None) -> ConfigError:
    """Return the first problem that pydantic found, as one sentence with the key, the expected and the given value.

    It is a `ValueMistake` if the value of one key is wrong by itself.
    """
    every = error.errors(include_url=False)
    first = every[0]
    alike = [
        e for e in every if _keys(e)[: len(_keys(first))] == _keys(first)
    ]  # one entry per choice of "a text or a table"
    first = max(alike, key=lambda e: len(_path(e)))
    parts = _keys(first)
    where = ".".join([*([table] if table else []), *parts])
    if first["type"] == "extra_forbidden" and model is not None:
        at: Any = model
        for part in parts[:-1]:
            at = field_model(at, part)
        return unknown_key(
            ".".join([*([table] if table else []), *parts[:-1]]), parts[-1], at.model_fields if at else ()
        )
    if first["type"] == "value_error":  # a sentence written by us
        said = first["msg"].removeprefix("Value error, ")
        kind = ValueMistake if parts else ConfigError  # without a key, several keys exclude each other
        return kind(f"{said}." if not where or where.split(".")[0] in said else f"{where}: {said}.")
    place = [x for x in _path(first) if isinstance(x, int)]
    if first["type"] == "missing" and not place:
        return ValueMistake(f"{where or 'experiment'}: this key is required.")
    wanted = " or ".join(dict.fromkeys(expected(e) for e in alike if _path(e) == _path(first)))
    if place:
        entry = f"its value number {place[-1] + 1} is " + (
            "missing" if first["type"] == "missing" else shown(first.get("input"))
        )
        return ValueMistake(f"{where}: {entry}, expected {wanted}.")
    return ValueMistake(f"{where or 'experiment'} = {shown(first.get('input'))}: expected {wanted}.")


def _keys(error: Mapping[str, Any]) -> list[str]:
    """Return the keys that lead to a problem."""
    return [x for x in _path(error) if isinstance(x, str)]


def _path(error: Mapping[str, Any]) -> list[str | int]:
    """Return the keys and places in lists that lead to a problem, without the tags that pydantic gives to the choices of a union.

    A tag is the name of a simple type (`TAG`), one with brackets (``list[int]``), or that of a class.
    """
    loc: Sequence[str | int] = error["loc"]
    return [x for x in loc if isinstance(x, int) or ("[" not in x and not TAG.fullmatch(x) and x[:1].islower())]


def shown(value: Any) -> str:
    """Return a value in the form of the file, shortened; for other types, which may hold a user's rows, only the type."""
    if isinstance(value, Mapping):
        return "a table"
    every = value if isinstance(value, list | tuple) else [value]
    if odd := [
        one for one in every if not isinstance(one, str | int | float | PurePath | Mapping | list | tuple | None)
    ]:
        return f"a value of type {type(odd[0]).__name__}"
    text = repr(list(value) if isinstance(value, tuple) else value)
    text = {"True": "true", "False": "false"}.get(text, text)
    return text if len(text) <= 60 else f"{text[:57]}..."


TAG = re.compile("(constrained-)?(str|int|float)|bool|tuple")
EXPECTED = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "a text",
    "tuple": "a list",
    "list": "a list",
    "model": "a table",
    "dict": "a table",
    "finite": "a finite number",
    "missing": "a value",
    "none": "no value",
}
LIMITS = {
    "greater_than_equal": ("ge", "{} or more"),
    "greater_than": ("gt", "above {}"),
    "less_than_equal": ("le", "{} or less"),
    "less_than": ("lt", "below {}"),
}
LENGTHS = {"too_short": "min_length", "too_long": "max_length"}


def expected(error: Mapping[str, Any]) -> str:
    """Return in plain words what pydantic expected."""
    kind, said, context = str(error["type"]), str(error["msg"]), error.get("ctx", {})
    if kind in LIMITS:
        key, words = LIMITS[kind]
        return f"a number {'of ' if words.startswith('{') else ''}{words}".format(f"{context[key]:g}")
    if kind in LENGTHS:
        return f"a list of {context[LENGTHS[kind]]} values"
    if kind == "literal_error":
        texts = re.findall("'(.*?)'", context["expected"])
        return one_of(str(error.get("input")), texts) if texts else str(context["expected"])
    if kind == "int_from_float":
        return EXPECTED["int"]
    if kind == "is_instance_of" and context["class"] == "Sequence":
        return EXPECTED["list"]
    return EXPECTED.get(kind.split("_", maxsplit=1)[0], said[0].lower() + said[1:])


def field_model(model: type[BaseModel], name: str) -> type[BaseModel] | None:
    """Return the pydantic model of a field, also through ``X | None``."""
    field = model.model_fields.get(name) if model else None
    for option in (field.annotation, *typing.get_args(field.annotation)) if field else ():
        if inspect.isclass(option) and issubclass(option, BaseModel):
            return option
    return None


def row_of(name: str, builder: Builder) -> PlainValues:
    """Return the row of a builder in ``fedatlas list``."""
    return {"name": name, "summary": summary(builder), "parameters": defaults(builder), "accepts": accepts(builder)}


def summary(builder: Builder) -> str:
    """Return the first line of a builder's docstring."""
    return (inspect.getdoc(builder) or "").split("\n")[0]


def accepts(builder: Builder) -> dict[str, str]:
    """Map each parameter to the values it takes, in words: kind, range, choices, then its meaning (`meanings`)."""
    hints = hints_of(builder)
    said = meanings(builder)
    out = {}
    for name, p in keywords(builder).items():
        words = [in_words(hints.get(name, Any))]
        words += ["required"] if p.default is p.empty else []
        words += [said[name]] if name in said else []
        out[name] = "; ".join(words)
    return out


def meanings(builder: Builder) -> dict[str, str]:
    """Map each parameter to its meaning, from the line ``name: meaning.`` of the builder's docstring.

    Builders in one file that share a parameter may give its meaning once, in the docstring of the file. A parameter whose
    annotation has a description needs no line. If there is one, it is not read.
    """
    names = undescribed(builder)
    return told_apart(head(builder), names)[1] | told_apart(inspect.getdoc(builder) or "", names)[1]


def prose(builder: Builder) -> str:
    """Return a builder's docstring without the lines that `meanings` reads."""
    return told_apart(inspect.getdoc(builder) or "", undescribed(builder))[0]


def prose_of_file(builder: Builder) -> str:
    """Return the docstring of a builder's file without the lines that `meanings` reads for any builder in it."""
    functions = vars(inspect.getmodule(builder) or builder).values()
    near = [f for f in functions if inspect.isfunction(f) and f.__module__ == builder.__module__]
    return told_apart(head(builder), {name for f in near for name in keywords(f)})[0]


def head(builder: Builder) -> str:
    """Return the docstring of a builder's file."""
    module = inspect.getmodule(builder)
    return inspect.getdoc(module) or "" if module else ""


def undescribed(builder: Builder) -> set[str]:
    """Return the parameters whose annotations have no description."""

    def row_of(hint: Any) -> bool:
        extras = getattr(hint, "__metadata__", ())
        return any(getattr(x, "description", None) for x in extras) or any(map(row_of, typing.get_args(hint)))

    hints = hints_of(builder)
    return {name for name in keywords(builder) if not row_of(hints.get(name, Any))}


def told_apart(text: str, names: Collection[str]) -> tuple[str, dict[str, str]]:
    """Split a docstring into its text and its lines ``name: meaning.``, by name.

    The first line is never such a line; an indented line continues the previous one.
    """
    first, *lines = text.split("\n")
    rest, said, at = [first], dict[str, str](), ""
    for line in lines:
        name, colon, words = line.partition(": ")
        if colon and name in names:
            at, said[name] = name, words
        elif at and line.startswith(" "):
            said[at] += f" {line.strip()}"
        else:
            at = ""
            rest.append(line)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(rest)).strip(), {k: words.removesuffix(".") for k, words in said.items()}


KINDS = {
    int: "whole number",
    float: "number",
    bool: "true or false",
    str: "text",
    tuple: "list",
    list: "list",
    dict: "table",
    Mapping: "table",
    Sequence: "list",
    Any: "any value",
    type(None): "nothing",
}


def in_words(hint: Any) -> str:
    """Describe a type in words: ``Annotated[float, Field(ge=0)]`` -> 'number, 0 or more'."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        found = [item for extra in inner[1:] for item in (getattr(extra, "metadata", None) or [extra])]
        limits = [
            words.format(f"{getattr(item, key):g}")
            for key, words in LIMITS.values()
            for item in found
            if getattr(item, key, None) is not None
        ]
        said = [extra.description for extra in inner[1:] if getattr(extra, "description", None)]
        ranged = " and ".join(limits)
        return "; ".join([", ".join(filter(None, [in_words(inner[0]), ranged])), *said])
    if origin is Literal:
        return " | ".join(f'"{x}"' if isinstance(x, str) else str(x) for x in inner)
    if origin in {typing.Union, types.UnionType}:
        return " or ".join(in_words(x) for x in inner if x is not type(None)) + (
            ", or left out" if type(None) in inner else ""
        )
    if origin in {tuple, list, Sequence}:
        one, comma, range_ = in_words(inner[0]).partition(", ") if inner else ("", "", "")
        return f"list of {one}s{comma}{range_}" if one in {KINDS[each] for each in (int, float, str)} else "list"
    return KINDS.get(origin or hint, getattr(hint, "__name__", str(hint)))


def defaults(builder: Builder) -> PlainValues:
    """Map each parameter to its default; None if it is required."""
    return {name: None if p.default is p.empty else p.default for name, p in keywords(builder).items()}

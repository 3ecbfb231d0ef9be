"""Reading of plain values as records: every field is present, known, of its type and within its bounds. Nothing here needs torch.

A record is a NamedTuple, and its annotations are the schema:

    bool, int, float, str       exactly this type; an int fits into 64 bits; a float is finite, and may be written as an int
    X | None, Literal           as in Python
    tuple[X, ...], tuple[X, Y]  a list
    Mapping[K, V]               a table
    a NamedTuple                a table of its fields, or a list of all of them in their order
    another class               an instance of it: bytes of a body, tensors that the codec has decoded; Any: anything
        a function                  the function's result for the value and its place
    Annotated[X, Bound(...)]    X within bounds
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from re import fullmatch
from types import FunctionType, NoneType
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from fedatlas.errors import ProtocolError

WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
LARGEST = {int: (1 << 63) - 1, float: 1.7976931348623157e308}


class Bound(NamedTuple):
    """The bounds of a field."""

    most: int = 100_000  # characters of a text; items of a list or table; characters of an open value as JSON
    least: float = -LARGEST[float]  # smallest value of a number
    pattern: str = "[^\ud800-\udfff]*"  # of a whole text
    what: str = "Unicode"  # a text of this pattern, described in words
    nan: bool = False  # a number may be NaN or infinite
    open: bool = False  # tables, lists and plain values without a schema


ANY = Bound()
hints_of = cache(lambda kind: get_type_hints(kind, include_extras=True))


def fitting(fits: Any, at: str, why: str) -> None:
    """Raise ProtocolError unless a field fits. The sentence names the field and the reason."""
    if not fits:
        raise ProtocolError(f"the field {at[:100]!a} {why}.")


def record(kind: Any, value: Any, at: str, bound: Bound = ANY) -> Any:
    """Read a value as a type. ProtocolError if it does not fit. ``at`` holds the names of the message and its field."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return record(inner[0], value, at, inner[1])
    if NoneType in inner:
        return None if value is None else record(inner[0], value, at, bound)
    if bound.open:
        fitting(
            type(value) is dict and _length(value) <= bound.most,
            at,
            f"is not plain values of at most {bound.most:,} characters",
        )
        return value
    if origin is tuple:
        some = inner[-1] is ...
        most = bound.most if some else len(inner)
        fits = isinstance(value, list | tuple) and (0 if some else most) <= len(value) <= most
        fitting(fits, at, f"is not a list of {most:,} items{' at most' if some else ''}")
        return tuple(record(inner[0 if some else i], one, f"{at}.{i}") for i, one in enumerate(value))
    if origin is Mapping:
        fitting(
            isinstance(value, Mapping) and len(value) <= bound.most,
            at,
            f"is not a table of at most {bound.most:,} items",
        )
        return {record(inner[0], key, at): record(inner[1], one, f"{at}.{key}") for key, one in value.items()}
    if hasattr(kind, "_fields"):
        return _record(kind, value, at)
    if isinstance(kind, FunctionType):
        return kind(value, at)
    if origin is Literal:
        fitting(value in inner, at, f"is not one of {', '.join(inner)}")
    elif kind in WORDS:
        return _scalar(kind, value, at, bound)
    else:
        fitting(kind is Any or isinstance(value, kind), at, "is of another type")
    return value


def _record(kind: Any, value: Any, at: str) -> Any:
    fields = hints_of(kind)
    if isinstance(value, list) and len(value) == len(fields):
        value = dict(zip(fields, value, strict=True))
    fitting(isinstance(value, Mapping), at, "is not a table")
    for name in value:
        fitting(name in fields, f"{at}.{name}", "is not known")
    for name in fields:
        fitting(name in value or name in kind._field_defaults, f"{at}.{name}", "is missing")
    return kind(**{name: record(fields[name], one, f"{at}.{name}") for name, one in value.items()})


def _scalar(kind: type, value: Any, at: str, bound: Bound) -> Any:
    fitting(type(value) is kind or (kind, type(value)) == (float, int), at, f"is not {WORDS[kind]}")
    if kind is str:
        fitting(len(value) <= bound.most, at, f"is longer than {bound.most:,} characters")
        fitting(fullmatch(bound.pattern, value), at, f"is not {bound.what}")
    elif kind is not bool:
        most = LARGEST[kind]
        inside = max(bound.least, -most) <= value <= most or (bound.nan and type(value) is float)
        fitting(inside, at, "is not finite, or out of its range")
    return kind(value)


def _length(value: Any) -> float:
    """Return the characters of an open value as JSON; infinity if it cannot be written as JSON."""
    try:
        return len(json.dumps(value))
    except (TypeError, ValueError, RecursionError):
        return float("inf")


def plain(value: Any) -> Any:
    """Turn records back into tables; the inverse of `record`. A field that has its default is left out."""
    if hasattr(value, "_asdict"):
        defaults = value._field_defaults
        held = value._asdict().items()
        return {name: plain(one) for name, one in held if name not in defaults or one != defaults[name]}
    return [plain(one) for one in value] if isinstance(value, tuple) else value

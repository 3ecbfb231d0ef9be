"""Every field of a message, changed in every way that a liar would think of first.

A message is its head, and a body whose fields the codec carries. `mutants` yields a message for each (field, change), one after another
or two at a time.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedatlas.tree import Tree
from fedatlas.wire import codec
from fedatlas.wire.agreement import digest_of
from fedatlas.wire.frames import RawMessage

Path = tuple[str | int, ...]
ABSENT = object()


class Mutant(NamedTuple):
    """A changed message, and what was changed."""

    message: RawMessage
    what: tuple[tuple[Path, str], ...]


def numbers(x: float) -> dict[str, Any]:
    """Changes of a number."""
    return {
        "another round": x + 1,
        "a round before": x - 1,
        "far": x + 900,
        "negative": -1 - x,
        "extreme": 1 << 62 if isinstance(x, int) else 1e300,
        "infinite": math.inf,
        "no number": math.nan,
        "a text": str(x),
        "a truth": True,
        "a list": [x],
    }


def texts(x: str) -> dict[str, Any]:
    """Changes of a text."""
    other = {"north": "south", "train": "judge", "mean": "each", "r": "q"}
    return {
        "another's": other.get(x, x[::-1] + "x"),
        "doubled": x + x,
        "empty": "",
        "long": "x" * 100_000,
        "a path": "../../" + x,
        "a number": 5,
        "a table": {x: x},
        "zeros": "0" * len(x),
    }


def tensors(x: Tensor) -> dict[str, Any]:
    """Changes of a tensor; "other values" is the one within its form."""
    out: dict[str, Any] = {
        "doubled": torch.cat([x.reshape(-1), x.reshape(-1)]),
        "flat": x.reshape(-1, 1),
        "empty": x.reshape(-1)[:0],
        "a number": 5,
        "a text": "x",
        "a list": [x],
    }
    if x.is_floating_point():
        out |= {
            "other values": x + 0.5,
            "no number": x * torch.nan,
            "infinite": x * torch.inf,
            "another type": x.double() if x.dtype != torch.float64 else x.float(),
        }
    elif x.dtype == torch.bool:
        out |= {"turned": ~x, "another type": x.to(torch.uint8)}
    else:
        out |= {"next": x + 1, "another type": x.float()}
    return out


def changes(x: Any) -> dict[str, Any]:
    """Every change of a value, but those that leave it as it is."""
    return {
        name: new for name, new in _changes(x).items() if isinstance(x, Tensor) or type(new) is not type(x) or new != x
    }


def _changes(x: Any) -> dict[str, Any]:
    both = {"absent": ABSENT, "nothing": None}
    if isinstance(x, Tensor):
        return {**both, **tensors(x)}
    if isinstance(x, bool):
        return {**both, "turned": not x, "a number": 2, "a text": "true"}
    if isinstance(x, int | float):
        return {**both, **numbers(x)}
    if isinstance(x, str):
        return {**both, **texts(x)}
    if isinstance(x, list | tuple):
        return {
            **both,
            "empty": [],
            "doubled": [*x, *x],
            "turned": [*x][::-1],
            "many": [*x] * 1000,
            "a table": {"x": 1},
        }
    if isinstance(x, Mapping):
        more = {**x, "more": 1}
        return {
            **both,
            "empty": type(x)(),
            "more": type(x)(more) if type(x) is Tree else more,
            "a list": [1],
            "a text": "x",
        }
    return {**both, "a number": 5, "a text": "x", "an empty table": {}}


def fields(value: Any, path: Path = ()) -> Iterator[Path]:
    """The paths of all fields of a value."""
    if path:
        yield path
    inner = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, one in inner:
        yield from fields(one, (*path, key))


def at(value: Any, path: Path) -> Any:
    """The value of a field."""
    for key in path:
        value = value[key]
    return value


def changed(value: Any, path: Path, new: Any) -> Any:
    """A value with another one in a field."""
    if not path:
        return new
    key, rest = path[0], path[1:]
    if isinstance(value, Mapping):
        inner = {name: one for name, one in value.items() if name != key or rest or new is not ABSENT}
        if rest or new is not ABSENT:
            inner[str(key)] = changed(value[key], rest, new)
        return Tree(inner) if isinstance(value, Tree) else inner
    items = [*value]
    assert isinstance(key, int)
    if not rest and new is ABSENT:
        return items[:key] + items[key + 1 :]
    items[key] = changed(items[key], rest, new)
    return items


class Changeable(NamedTuple):
    """A message whose fields are at hand. ``body``: decoded; None where there is none."""

    head: Mapping[str, Any]
    body: Any
    raw: bytes

    @classmethod
    def of(cls, message: RawMessage) -> Changeable:
        raw = bytes(message.body)
        return cls(dict(message.head), codec.decode(bytearray(raw)) if raw else None, raw)

    def fields(self) -> list[Path]:
        """Of the head and of the body; what names the kind stays."""
        head = [("head", *path) for path in fields(self.head) if path != ("kind",)]
        return [*head, *(("body", *path) for path in fields(self.body))]

    def message(self, what: tuple[tuple[Path, str], ...]) -> RawMessage | None:
        """The message with these changes; None where they cannot be written. A liar writes the digest of its own bytes."""
        both: Any = {"head": self.head, "body": self.body}
        touched = False
        try:
            for path, name in what:
                new = changes(at(both, path))[name]
                both = changed(both, path, new)
                touched = touched or path[0] == "body"
            raw = bytes(codec.encode(both["body"])) if touched else self.raw
        except Exception:  # noqa: BLE001  # a change under one that took its field away, or that no codec carries
            return None
        head = both["head"]
        if touched and "digest" in self.head and not any(path == ("head", "digest") for path, _ in what):
            head = {**head, "digest": digest_of(raw)}
        return RawMessage(head, raw)


def mutants(message: RawMessage) -> Iterator[Mutant]:
    """Every field of a message, changed in every way."""
    one = Changeable.of(message)
    for path in one.fields():
        for name in changes(at({"head": one.head, "body": one.body}, path)):
            what = ((path, name),)
            if (made := one.message(what)) is not None:
                yield Mutant(made, what)


def pairs(message: RawMessage, draw: random.Random) -> Iterator[Mutant]:
    """Two changes at once, without an end."""
    one = Changeable.of(message)
    whole, known = {"head": one.head, "body": one.body}, one.fields()
    choose: Callable[[], tuple[Path, str]] = lambda: (  # noqa: E731
        path := draw.choice(known),
        draw.choice([*changes(at(whole, path))]),
    )
    while True:
        what = choose(), choose()
        if (made := one.message(what)) is not None:
            yield Mutant(made, what)

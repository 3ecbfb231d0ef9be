"""The values that `tune` tries: drawn from the seed between two ends on a log scale, or from a list."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedatlas.comparison.values import GivenKey, stopped
from fedatlas.config import value_of
from fedatlas.errors import ConfigError
from fedatlas.rng import numpy_stream

DIGITS = 4  # of a drawn number, so that it reads well and is written exactly
TRIES = 100  # draws per trial until one is new


class Searched(NamedTuple):
    """A key to search: between two numbers, ``ends``, or among ``values``."""

    key: str
    values: tuple[Any, ...] = ()
    ends: tuple[float, float] | None = None
    whole: bool = False  # both ends were written as whole numbers, and so are the draws

    @property
    def limits(self) -> tuple[Any, ...]:
        """The values that must be allowed for the others to be: both ends, or each of the list."""
        if self.ends is None:
            return self.values
        return tuple(int(x) for x in self.ends) if self.whole else self.ends

    def draw(self, stream: np.random.Generator) -> Any:
        """Return a value: log-uniform between the ends, rounded; each of a list with the same chance."""
        if self.ends is None:
            return self.values[int(stream.integers(len(self.values)))]
        low, high = self.ends
        if self.whole:  # each number in proportion to its share of the log scale
            found = math.floor(low * ((high + 1) / low) ** stream.random())
            return min(max(found, int(low)), int(high))
        found = float(f"{low * (high / low) ** stream.random():.{DIGITS}g}")
        return min(max(found, low), high)


def searched_keys(given: Sequence[GivenKey]) -> list[Searched]:
    """Return the keys with a range or several values.

    ConfigError that names every wrong range, or if no key has several.
    """
    found, wrong = list[Searched](), list[str]()
    for one in given:
        if len(one.values) > 1:
            found.append(Searched(one.key, tuple(map(value_of, one.values))))
        elif is_range(one.values[0]):
            try:
                found.append(range_of(one))
            except ConfigError as error:
                wrong.append(str(error))
    if any(one.key in ("seed", "seeds") for one in found):
        wrong.append("a seed is not tuned")
    if wrong:
        raise ConfigError(stopped("; ".join(wrong)))
    if not found:
        raise ConfigError(
            "nothing to tune: give a key a range, local.lr=0.01..0.3, or values, local.momentum=0,0.5,0.9."
        )
    return found


def is_range(text: str) -> bool:
    """Return whether a value is meant as a range ``a..b``, and not as a path, text or list."""
    return ".." in text and "/" not in text and text[:1] not in "\"'[{"


def range_of(one: GivenKey) -> Searched:
    """Return the range ``a..b`` of a key."""
    texts = one.values[0].partition("..")[::2]
    ends = [value_of(text) for text in texts]
    if any(isinstance(x, bool) or not isinstance(x, int | float) or not math.isfinite(x) for x in ends):
        raise ConfigError(f"'{one.text(0)}': write two numbers around the dots, such as 0.01..0.3")
    low, high = ends
    if low <= 0:
        raise ConfigError(
            f"'{one.text(0)}': draws are even on a log scale, so both ends are above 0; list the values to try 0 as well"
        )
    if low >= high:
        raise ConfigError(f"'{one.text(0)}': the first end is the smaller one")
    return Searched(one.key, ends=(float(low), float(high)), whole=all(isinstance(x, int) for x in ends))


def trials_of(keys: Sequence[Searched], budget: int, seed: int) -> list[dict[str, Any]]:
    """Return up to ``budget`` different combinations {key: value}: all of them for short lists, else drawn ones.

    A larger budget begins with the same combinations.
    """
    if all(one.ends is None for one in keys) and math.prod(len(one.values) for one in keys) <= budget:
        return [
            dict(zip((one.key for one in keys), at, strict=True)) for at in itertools.product(*(k.values for k in keys))
        ]
    out: list[dict[str, Any]] = []
    for i in range(budget * TRIES):
        one = {key.key: key.draw(numpy_stream(seed, "tune", i, key.key)) for key in keys}
        if one not in out:
            out.append(one)
        if len(out) == budget:
            break
    return out

"""Forms that a letter, or an answer to the coordinator, must have before its receiver uses it.

A form is a mapping of parts, or one of the records here. A size is a number, or the name of a size that the receiver
knows (``sizes``). An unknown name takes the first length found under it, so two lists of one name have the same length.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

Size = int | str
Sizes = dict[str, int]

LARGE = 1 << 53  # whole numbers below this are exact in every type used for them


class WholeNumber(NamedTuple):
    """A whole number, from ``low`` to less than ``below``. ``name``: the size that it sets, if any."""

    low: Size = 0
    below: Size = LARGE
    name: str = ""

    def odd(self, value: Any, at: str, sizes: Sizes) -> str:
        """Return why a value is not of this form, as part of a sentence, or ""."""
        if type(value) is not int:
            return f"{at} is no whole number"
        if not known(self.low, sizes) <= value < known(self.below, sizes):
            return f"{at} is out of its range"
        sizes |= {self.name: value} if self.name else {}
        return ""


class Number(NamedTuple):
    """A finite number, from ``low`` to ``high``."""

    low: float = -math.inf
    high: float = math.inf

    def odd(self, value: Any, at: str, sizes: Sizes) -> str:  # noqa: ARG002
        """Return why a value is not of this form, or ""."""
        if type(value) not in {int, float} or not math.isfinite(value):
            return f"{at} is no finite number"
        return "" if self.low <= value <= self.high else f"{at} is out of its range"


class ShortText(NamedTuple):
    """A text of this many characters."""

    length: int

    def odd(self, value: Any, at: str, sizes: Sizes) -> str:  # noqa: ARG002
        """Return why a value is not of this form, or ""."""
        return (
            "" if type(value) is str and len(value) == self.length else f"{at} is no text of {self.length} characters"
        )


class Numbers(NamedTuple):
    """A tensor of finite numbers, from ``low`` to less than ``below``. A length of None allows any length."""

    dtype: torch.dtype
    shape: tuple[Size | None, ...]
    low: Size | None = None
    below: Size | None = None

    def odd(self, value: Any, at: str, sizes: Sizes) -> str:
        """Return why a value is not of this form, or ""."""
        if not isinstance(value, torch.Tensor) or value.dtype != self.dtype or value.ndim != len(self.shape):
            return f"{at} is no tensor of the type and the axes that are due"
        for found, size in zip(value.shape, self.shape, strict=True):
            if why := other_length(found, size, at, sizes):
                return why
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            return f"{at} is not finite"
        low = self.low is not None and bool((value < known(self.low, sizes)).any())
        high = self.below is not None and bool((value >= known(self.below, sizes)).any())
        return f"{at} has numbers out of their range" if low or high else ""


class ListOf(NamedTuple):
    """A list of ``length`` values of one form. ``once``: no value appears twice."""

    one: Form
    length: Size | None = None
    once: bool = False

    def odd(self, value: Any, at: str, sizes: Sizes) -> str:
        """Return why a value is not of this form, or ""."""
        if not isinstance(value, list):
            return f"{at} is no list"
        reasons = (odd(self.one, one, f"an entry of {at}", sizes) for one in value)
        if why := other_length(len(value), self.length, at, sizes) or next((why for why in reasons if why), ""):
            return why
        return f"{at} has an entry twice" if self.once and len({*value}) < len(value) else ""


class InOrder(NamedTuple):
    """A list of values with one form each."""

    forms: tuple[Form, ...]

    def odd(self, value: Any, at: str, sizes: Sizes) -> str:
        """Return why a value is not of this form, or ""."""
        if not isinstance(value, list):
            return f"{at} is no list"
        if why := other_length(len(value), len(self.forms), at, sizes):
            return why
        pairs = zip(self.forms, value, strict=True)
        return next((why for form, one in pairs if (why := odd(form, one, f"an entry of {at}", sizes))), "")


class Exactly(NamedTuple):
    """One plain value; None if there is nothing to tell."""

    due: bool | int | None

    def odd(self, value: Any, at: str, sizes: Sizes) -> str:  # noqa: ARG002
        """Return why a value is not of this form, or ""."""
        same = type(value) is type(self.due) and value == self.due
        return "" if same else f"{at} says something else than {'nothing' if self.due is None else self.due}"


class SomeOf(NamedTuple):
    """A table with some of these parts, or without any."""

    parts: Mapping[str, Form]

    def odd(self, value: Any, at: str, sizes: Sizes) -> str:
        """Return why a value is not of this form, or ""."""
        there = {name: form for name, form in self.parts.items() if isinstance(value, Mapping) and name in value}
        return odd(there, value, at, sizes)


class OneOf(NamedTuple):
    """A value of one of these forms, which name no sizes."""

    forms: tuple[Form, ...]

    def odd(self, value: Any, at: str, sizes: Sizes) -> str:
        """Return why a value is not of the last form, or "" if it is of any."""
        reasons = [odd(form, value, at, sizes) for form in self.forms]
        return reasons[-1] if all(reasons) else ""


Form = WholeNumber | Number | ShortText | Numbers | ListOf | InOrder | Exactly | SomeOf | OneOf | Mapping[str, Any]
"""A mapping holds the form of each of its parts."""


def odd(form: Form, value: Any, at: str, sizes: Sizes) -> str:
    """Return why a value does not have a form, as part of a sentence, or "". ``at``: name of the value in it."""
    if not isinstance(form, Mapping):
        return form.odd(value, at, sizes)
    if not isinstance(value, Mapping):
        return f"{at} is no table of parts"
    if {*value} != {*form}:
        return f"{at} has other parts than {', '.join(repr(name) for name in form) or 'none'}"
    return next((why for name, one in form.items() if (why := odd(one, value[name], f"'{name}'", sizes))), "")


def known(size: Size, sizes: Sizes) -> int:
    """Return a size as a number."""
    return sizes[size] if isinstance(size, str) else size


def other_length(found: int, size: Size | None, at: str, sizes: Sizes) -> str:
    """Return how a length differs from the expected one, or "". A new name takes the length."""
    due = found if size is None else sizes.setdefault(size, found) if isinstance(size, str) else size
    return "" if found == due else f"{at} has {found:,} entries where {due:,} are due"

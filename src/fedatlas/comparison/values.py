"""``key=a,b,c`` and ``key=a..b`` of the command line: the values that a key takes in turn."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from fedatlas.config import override
from fedatlas.errors import ConfigError

OPEN, CLOSE, QUOTES = "[{(", "]})", "\"'"


class GivenKey(NamedTuple):
    """A key of the experiment file, and the texts of its values."""

    key: str
    values: tuple[str, ...]

    def text(self, i: int) -> str:
        """Return value ``i`` as an override ``key=value``."""
        return f"{self.key}={self.values[i]}"


def given_keys(words: Sequence[str]) -> list[GivenKey]:
    """Return the keys of ``table.key=value`` words. ConfigError that names every wrong word."""
    found, wrong = list[GivenKey](), list[str]()
    for word in words:
        key, _, raw = word.partition("=")
        one = GivenKey(key.strip(), tuple(split_values(raw)))
        if why := _refused(word, one, [other.key for other in found]):
            wrong.append(why)
        found.append(one)
    if wrong:
        raise ConfigError(stopped("; ".join(wrong)))
    return found


def stopped(text: str) -> str:
    """Return a sentence with one mark at its end."""
    return text if text.endswith(("?", ".")) else f"{text}."


def _refused(word: str, one: GivenKey, before: Sequence[str]) -> str:
    """Return the error in a word of the command line, or ""."""
    if one.key in before:
        return f"'{one.key}' is given twice: write its values behind one another, {one.key}=a,b"
    if not all(one.values) and (len(one.values) > 1 or "=" not in word):
        return f"'{word}': write key=value, or several values with commas and no spaces between them"
    if twice := next((value for value in one.values if one.values.count(value) > 1), ""):
        return f"'{word}' names {twice} twice"
    try:
        override({}, one.text(0))
    except ConfigError as error:
        return str(error).rstrip(".")
    return ""


def split_values(raw: str) -> list[str]:
    """Split a text at commas outside brackets, braces and quotes: ``a,[1,2]`` has the values ``a`` and ``[1,2]``."""
    out, depth, quote = [""], 0, ""
    for letter in raw:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in QUOTES:
            quote = letter
        else:
            depth += (letter in OPEN) - (letter in CLOSE)
            if letter == "," and depth <= 0:
                out.append("")
                continue
        out[-1] += letter
    return [part.strip() for part in out]


def label_of(chosen: Sequence[str]) -> str:
    """Return a short name, also of a folder, for overrides: ``fedprox-lr=0.1``."""
    out = []
    for text in chosen:
        key, _, raw = text.partition("=")
        named = re.fullmatch(r"\{\s*name\s*=\s*[\"']?([\w.-]+)[\"']?\s*,?(.*)\}", raw)
        if named:
            out.append("-".join([named[1], *split_values(named[2].replace(" ", "").replace('"', ""))]).rstrip("-"))
        else:
            out.append(raw if key.endswith(".name") else f"{key.rpartition('.')[2]}={raw}")
    return re.sub(r"[^\w.=+-]+", "_", "-".join(out)).strip("_.-") or "scheme"

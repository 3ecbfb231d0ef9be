"""Heads of messages: JSON from elsewhere, read only if the memory it needs is in proportion to the message.

A text of only brackets would take twenty times its length as lists. So the memory is estimated from the text before it is read.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

DEPTH = 64  # lists and tables inside each other
TIMES, BESIDE = 2, 768 << 10  # the most memory of a head: so many times the message's length, plus so many bytes
LIST, TABLE, TEXT, NUMBER, ENTRY, SLOT = 64, 200, 58, 32, 160, 9
"""Bytes that CPython takes for each of these, for an entry of a table, and for the place of a value in its list."""


def read_head(data: memoryview, whole: int, *, own: bool = False, pairs: Callable[[Any], Any] | None = None) -> Any:
    """Return the value of a head. ``whole`` counts the bytes of its message. ``own`` means that this party wrote it.

    ValueError if the head is not ASCII JSON, is nested too deeply, or would take more memory than the message warrants.
    """
    text = str(data, "ascii")
    if not own and reckoned(text) > TIMES * whole + BESIDE:
        raise ValueError("its head would take more memory than the message warrants")
    try:
        value = json.loads(text, object_pairs_hook=pairs)
    except RecursionError:
        raise ValueError("its head is nested too deeply") from None
    if not own:
        _check_depth(value)
    return value


def reckoned(text: str) -> int:
    """Return the most bytes that reading a JSON text can take, the text included."""
    lists, tables, entries = text.count("["), text.count("{"), text.count(":")
    texts, values = text.count('"') // 2, text.count(",") + entries + lists + tables
    wide = 4 if "\\ud" in text or "\\uD" in text else 2 if "\\u" in text else 1  # bytes per character of a text in it
    made = LIST * lists + TABLE * tables + ENTRY * entries + SLOT * values
    return made + TEXT * texts + NUMBER * max(0, values - texts) + (1 + wide) * len(text)


def _check_depth(value: Any) -> None:
    inside = [value] if isinstance(value, dict | list) else []
    for _ in range(DEPTH):
        if not inside:
            return
        each = (one.values() if isinstance(one, dict) else one for one in inside)
        inside = [one for some in each for one in some if isinstance(one, dict | list)]
    raise ValueError("its head is nested too deeply")

"""What a command leaves behind."""

from __future__ import annotations

from typing import NamedTuple


class Done(NamedTuple):
    """What a command left behind."""

    code: int
    stdout: str
    stderr: str

"""A worker's handler for tests: gives back what it is told."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


class Echo:
    pause = None

    def __init__(self, hello: bytes, folder: Path) -> None:  # noqa: ARG002
        self.hello = hello

    def answer(self, number: int, message: bytes) -> bytes | None:  # noqa: ARG002
        if message == b"fail":
            raise ValueError("told to fail")
        return None if message == b"later" else self.hello + message

    def look(self) -> Iterable[tuple[int, bytes]]:
        return ()

    def close(self) -> None:
        pass

"""All problems of a file in one message, so that nobody has to find them one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from fedatlas.errors import ConfigError, DataError

Problem = ConfigError | DataError


class Problems:
    """Problems of one file, in the order in which they were found. Their common prefix is written once."""

    def __init__(self, source: str) -> None:
        self.source, self.found = source, list[Problem]()

    def add(self, found: Iterable[Problem]) -> None:
        """Note these problems."""
        self.found += found

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note an error raised inside the block, which ends there, and continue after it."""
        try:
            yield
        except (ConfigError, DataError) as error:
            self.found.append(error)

    def refuse(self) -> None:
        """Raise the noted problems: a single one as it is, several as a list."""
        if not self.found:
            return
        first = self.found[0]
        if len(self.found) == 1:
            raise first
        lines = [f"  {i}. {str(one).removeprefix(f'{self.source}: ')}" for i, one in enumerate(self.found, 1)]
        raise type(first)("\n".join([f"{self.source}: {len(lines)} problems.", *lines])) from first

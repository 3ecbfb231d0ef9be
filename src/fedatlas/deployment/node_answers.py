"""A node's answers before round 1, each given once: ``state/RUN/answers/INDEX.bin``.

The same question gets the same bytes again, also after a restart. Another question under the same number is refused. A
question or a run is also refused if its sums of round 0 differ from those that this node received on the way.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from fedatlas.deployment.node_rows import RowsFacts
from fedatlas.deployment.node_setup import LearntSum
from fedatlas.deployment.terms import SumTerms, encoded
from fedatlas.errors import ProtocolError
from fedatlas.files import write_bytes
from fedatlas.wire import codec
from fedatlas.wire.agreement import digest_of
from fedatlas.wire.frames import Body


class FirstAnswer(NamedTuple):
    """An answer that was given."""

    digest: str  # of the question
    few: bool
    body: Body


class FirstAnswers:
    """The answers of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "answers"

    def known(self, index: int, digest: str) -> FirstAnswer | None:
        """Return the answer given to this question. ProtocolError if another one was asked under its number."""
        path = self._path(index)
        if not path.exists():
            return None
        found = _read(path)
        if found.digest != digest:
            raise ProtocolError("another question was asked under this number before.")
        return found

    def keep(self, index: int, answer: FirstAnswer) -> FirstAnswer:
        """Write an answer to disk before it leaves."""
        body = torch.frombuffer(bytearray(answer.body) or bytearray(1), dtype=torch.uint8)
        write_bytes(self._path(index), codec.encode({**answer._asdict(), "body": body}))
        return answer

    def check(self, about: RowsFacts, totals: tuple[LearntSum, ...]) -> None:
        """Raise ProtocolError if the sums of round 0 differ from those that this node received."""
        for index, answer in self._all():
            if index > len(totals) or answer.digest != digest_of(encoded(SumTerms(about, totals[:index]))):
                raise ProtocolError("the sums of round 0 are not those that this node was told before.")

    def _path(self, index: int) -> Path:
        return self.folder / f"{index:06d}.bin"

    def _all(self) -> Iterator[tuple[int, FirstAnswer]]:
        for path in sorted(self.folder.glob("*.bin")):
            yield int(path.stem), _read(path)


def _read(path: Path) -> FirstAnswer:
    kept = codec.decode(path.read_bytes(), own=True)
    return FirstAnswer(kept["digest"], kept["few"], kept["body"].numpy().tobytes())

"""Messages between server and clients, counted as they are sent, in a file next to a study run's folder."""

from __future__ import annotations

import os
from pathlib import Path

from fedatlas.algorithm import Update
from fedatlas.federation.link import Observer, Request

MESSAGES = "messages.txt"


class MessageCounter(Observer):
    """Counter of messages by round, so that a run that is killed and resumed counts none twice.

    Each message immediately appends one character to the file: ``d`` down, ``u`` up. A line ``=ROUND`` starts a round, or restarts it
    after a resume.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.file = os.open(folder / MESSAGES, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.round = -1

    def _note(self, request: Request, what: bytes) -> None:
        if request.client < 0:  # the server's own work, or pooled training: no message is sent
            return
        if request.round != self.round:
            self.round = request.round
            what = b"\n=%d\n" % request.round + what
        os.write(self.file, what)

    def asked(self, request: Request) -> None:
        """Count a message down, unless another client delivers it."""
        if request.sender is None:
            self._note(request, b"d")

    def replied(self, request: Request, update: Update) -> None:  # noqa: ARG002
        """Count a message up, unless it goes to another client."""
        if not request.peer:
            self._note(request, b"u")

    def close(self) -> None:
        """Close the file."""
        os.close(self.file)


def count_messages(folder: Path) -> tuple[int, int]:
    """Return (messages up, messages down) of all rounds; a restarted round counts only its last attempt."""
    rounds: dict[int, str] = {}
    path, at = folder / MESSAGES, -1
    for line in path.read_text(encoding="ascii").split("\n") if path.exists() else ():
        if line.startswith("="):
            at = int(line[1:])
            rounds = {number: noted for number, noted in rounds.items() if number < at}
        else:
            rounds[at] = rounds.get(at, "") + line
    noted = "".join(rounds.values())
    return noted.count("u"), noted.count("d")

"""The nodes in the server's main thread: who is connected, their messages, and questions to all.

Built on `wire.listener`.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from fedatlas.errors import TransportError
from fedatlas.wire.listener import Event, Listener, StreamEnded
from fedatlas.wire.messages import NodeHello, Refusal, TrainerLost, TrainerReady, kind_of

AnswerRecord = TypeVar("AnswerRecord")
Stop = Callable[[], None]
"""Raises an error if the run must end."""
GRACE = 3.0  # seconds that a node may take to reconnect before a round goes on without it
STEP = 0.25  # seconds after which a waiting call checks whether the run must end


class Nodes:
    """Handler of the events of the streams, in one thread."""

    def __init__(self, listener: Listener, stop: Stop = lambda: None) -> None:
        self.listener, self.stop = listener, stop
        self.there: set[str] = set()  # nodes whose trainer is ready
        self.gone: dict[str, str] = {}  # nodes that were there and left: why
        self.since: dict[str, float] = {}  # when they left

    def next(self, until: float | None) -> Event | None:
        """Return the next event, or None at ``until`` (`time.monotonic`).

        ListenerDied if the listener can send no more.
        """
        while True:
            self.stop()
            left = STEP if until is None else min(until - time.monotonic(), STEP)
            if left <= 0:
                return None
            try:
                name, said = self.listener.next(left)
            except queue.Empty:
                continue
            self._note(name, said)
            return name, said

    def _note(self, name: str, said: Any) -> None:
        if isinstance(said, TrainerReady) or (isinstance(said, NodeHello) and said.ready):
            self.there.add(name)
            self.gone.pop(name, None)
        elif isinstance(said, StreamEnded | TrainerLost):
            self.there.discard(name)
            self.gone[name] = said.why
            self.since[name] = time.monotonic()

    def lost(self, name: str) -> str:
        """Return why a node is given up, or "" while it is there or may still come back."""
        return self.gone.get(name, "") if time.monotonic() - self.since.get(name, 0.0) > GRACE else ""

    def send(self, name: str, message: Any, most: int = 0) -> bool:
        """Send a record to a node. Return whether it was sent. ``most``: bytes of its answer, if that is large."""
        return name in self.there and self.listener.send(name, message, most)

    def wait_for(self, names: Collection[str], seconds: float) -> None:
        """Wait until all are there. TransportError that names the missing nodes."""
        until = time.monotonic() + seconds
        while not {*names} <= self.there:
            if self.next(until) is None:
                missing = sorted({*names} - self.there)
                raise TransportError(f"{' and '.join(missing)} did not connect within {seconds:g} s.")

    def ask_all(
        self,
        questions: Mapping[str, Any],
        kind: type[AnswerRecord],
        seconds: float,
        refuse: Callable[[str, str], Exception],
    ) -> dict[str, AnswerRecord]:
        """Ask nodes until all have sent a record of ``kind``.

        Nodes that reconnect are asked again. Raises the error of ``refuse``.
        """
        found: dict[str, AnswerRecord] = {}
        for name, question in questions.items():
            self.send(name, question)
        until = time.monotonic() + seconds
        while missing := sorted({*questions} - {*found}):
            if (event := self.next(until)) is None:
                raise TransportError(f"{' and '.join(missing)} did not answer within {seconds:g} s.")
            name, said = event
            if name not in missing:
                continue
            asked = questions[name]
            if isinstance(said, StreamEnded) and said.broken:
                raise refuse(name, said.why)
            if isinstance(said, NodeHello | TrainerReady) and name in self.there:
                self.send(name, asked)
            elif address_of(said) != address_of(asked):
                continue
            elif isinstance(said, Refusal) and said.to == kind_of(asked)[0]:
                raise refuse(name, said.why)
            elif isinstance(said, kind):
                found[name] = said
        return found


def address_of(message: Any) -> tuple[Any, Any]:
    """Return the run, and the number of the question, that a record names."""
    held = message._asdict()
    return held.get("run"), held.get("index")

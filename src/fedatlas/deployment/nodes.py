"""The nodes as the server's main thread sees them: who is there, what they say, whom one can ask. Above `wire.listener`."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from fedatlas.errors import TransportError
from fedatlas.wire.frames import Message
from fedatlas.wire.listener import Event, Listener

Stop = Callable[[], None]
"""Raises where the run is to end."""
GRACE = 3.0  # seconds that a node may take to come back before a round goes on without it
STEP = 0.25  # seconds after which somebody who waits looks whether the run is to end


class Nodes:
    """Takes what comes from the streams, in one thread."""

    def __init__(self, listener: Listener, stop: Stop = lambda: None) -> None:
        self.listener, self.stop = listener, stop
        self.there: set[str] = set()  # whose trainer is ready
        self.gone: dict[str, str] = {}  # who was there and is not: why
        self.since: dict[str, float] = {}  # when it went
        self.runs: dict[str, dict[str, int]] = {}  # node -> run -> the last round that landed there

    def next(self, until: float | None) -> Event | None:
        """The next thing that was said; None at ``until`` (`time.monotonic`)."""
        while True:
            self.stop()
            left = STEP if until is None else min(until - time.monotonic(), STEP)
            if left <= 0:
                return None
            try:
                name, message = self.listener.events.get(timeout=left)
            except queue.Empty:
                continue
            self._note(name, message)
            return name, message

    def _note(self, name: str, message: Message) -> None:
        if message.kind == "ready" or (message.kind == "hello" and message.head.get("ready")):
            self.there.add(name)
            self.gone.pop(name, None)
            runs = message.head.get("runs", {})
            self.runs[name] = {str(run): int(number) for run, number in runs.items()} if isinstance(runs, dict) else {}
        elif message.kind in {"left", "trainer lost"}:
            self.there.discard(name)
            self.gone[name] = str(message.head.get("why", "it left"))
            self.since[name] = time.monotonic()

    def lost(self, name: str) -> str:
        """Why a node is given up; "" for one that is there, or has been gone for so short that it may be on its way back."""
        return self.gone.get(name, "") if time.monotonic() - self.since.get(name, 0.0) > GRACE else ""

    def send(self, name: str, message: Message) -> bool:
        """Whether it is on its way."""
        return name in self.there and self.listener.send(name, message)

    def wait_for(self, names: Collection[str], seconds: float) -> None:
        """Until all are there; TransportError that names who is not."""
        until = time.monotonic() + seconds
        while not {*names} <= self.there:
            if self.next(until) is None:
                missing = sorted({*names} - self.there)
                raise TransportError(f"{' and '.join(missing)} did not connect within {seconds:g} s.")

    def ask_all(
        self, messages: Mapping[str, Message], kind: str, seconds: float, refuse: Callable[[str, str], Exception]
    ) -> dict[str, Message]:
        """Asks nodes, again those that come back, until all have said something of ``kind``. Raises what ``refuse`` makes."""
        found: dict[str, Message] = {}
        for name, message in messages.items():
            self.send(name, message)
        until = time.monotonic() + seconds
        while len(found) < len(messages):
            event = self.next(until)
            if event is None:
                missing = sorted({*messages} - {*found})
                raise TransportError(f"{' and '.join(missing)} did not answer within {seconds:g} s.")
            name, said = event
            if name not in messages or name in found:
                continue
            asked: Mapping[str, Any] = messages[name].head
            alike = said.head.get("run") == asked.get("run") and said.head.get("index") == asked.get("index")
            if said.kind in {"hello", "ready"} and name in self.there:
                self.send(name, messages[name])
            elif said.kind == "refused" and alike and said.head.get("to") == asked["kind"]:
                raise refuse(name, str(said.head.get("why", "")))
            elif said.kind == kind and alike:
                found[name] = said
        return found

"""Nodes of a cluster in this process, without Ray: each does one message when the driver waits, in an order that the test gives."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedatlas.cluster.engine_handler import EngineHandler
from fedatlas.cluster.frames import Failed
from fedatlas.cluster.nodes import Lost, Node


class FakeNodes:
    """As `fedatlas.cluster.nodes.Nodes`. ``turn``: called before each wait, and may kill or add nodes."""

    def __init__(
        self,
        hello: bytes,
        say: Callable[[str], None],
        names: str = "ab",
        turn: Callable[[FakeNodes, int], None] | None = None,
    ) -> None:
        self.hello, self.say, self.turn, self.turns, self.tickets = hello, say, turn, 0, 0
        self.handlers: dict[str, EngineHandler] = {}
        self.inbox: dict[str, list[tuple[int, Any]]] = {}
        self.lost: list[tuple[int, Lost]] = []
        self.did: dict[str, int] = {}
        self.closed, self.expected = False, ""  # nodes that have no worker yet
        for name in names:
            self.join(name)

    def join(self, name: str) -> None:
        self.handlers[name] = EngineHandler(self.hello, Path(tempfile.mkdtemp(prefix="fedatlas-fake-")))
        self.inbox[name], self.did[name] = [], 0
        self.say(f"node host-{name} joined")

    def kill(self, name: str, *, died: bool = False) -> None:
        del self.handlers[name]
        self.lost += [(ticket, Lost("killed", died)) for ticket, _ in self.inbox.pop(name)]
        self.say(f"node host-{name} is lost")

    def alive(self) -> list[Node]:
        return [Node(name, f"host-{name}", 1, 1 << 30) for name in self.handlers]

    def coming(self) -> bool:
        return bool(self.expected)

    def put(self, parcel: Any) -> Any:
        return parcel

    def call(self, node: str, parcel: Any) -> int:
        self.tickets += 1
        self.inbox[node].append((self.tickets, parcel))
        return self.tickets

    def wait(self, timeout: float) -> list[tuple[int, bytes | Failed | Lost]]:
        out: list[tuple[int, Any]] = []
        if timeout:
            self.turns += 1
            if self.turn is not None:
                self.turn(self, self.turns)
            for name in sorted(self.inbox, key=lambda one: (self.did[one], one)):
                if self.inbox[name]:
                    ticket, parcel = self.inbox[name].pop(0)
                    self.did[name] += 1
                    out.append((ticket, self.handlers[name].answer(ticket, bytearray(parcel))))
        out, self.lost = [*out, *self.lost], []
        return out

    def close(self) -> None:
        self.closed = True

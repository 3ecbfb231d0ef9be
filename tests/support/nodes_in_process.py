"""A deployed run without processes or sockets: the server's program and the nodes' own, message by message, in one thread.

What crosses are the bytes that would cross: each message is written, framed, put together again and read by its receiver.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

from agreements import Agreements
from fedatlas.deployment import nodes, nodes_link
from fedatlas.deployment.nodes import Nodes
from fedatlas.deployment.server_run import ServerContext, SubmissionState, SubmittedRun, run_submitted
from fedatlas.deployment.trainer import Trainer
from fedatlas.wire import messages
from fedatlas.wire.bundle import Bundle
from fedatlas.wire.frames import Assembler, RawMessage, frames
from fedatlas.wire.messages import NodeHello, Signed, written

Tap = Callable[[str, RawMessage], RawMessage | None]
"""(name of the node, a message to it) -> what it gets instead; None: it gets nothing."""


def crossed(message: RawMessage) -> RawMessage:
    """A message as its receiver gets it."""
    assembler, found = Assembler(), None
    for frame in frames(message):
        found = assembler.feed(frame)
    assert found is not None
    return found


class LocalListener:
    """In place of `wire.listener.Listener`: a node answers at once.

    It also takes the place of the server's clock (`serve_run`), which moves only while the server waits for what never comes.
    """

    def __init__(self, trainers: Mapping[str, Trainer], tap: Tap) -> None:
        self.trainers, self.tap, self.passed = trainers, tap, 0.0
        self.events: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        for name, trainer in trainers.items():
            ready = trainer.ready()
            self.events.put((name, NodeHello(messages.PROTOCOL, name, "", True, ready.runs)))

    def next(self, seconds: float) -> tuple[str, Any]:
        """Return the next event; queue.Empty where there is none."""
        try:
            return self.events.get_nowait()
        except queue.Empty:
            self.passed += seconds
            raise

    def monotonic(self) -> float:
        """Return the seconds that the server has waited in vain."""
        return self.passed

    def send(self, name: str, message: Any, most: int = 0) -> bool:  # noqa: ARG002
        told = self.tap(name, crossed(written(message)))
        for said in self.trainers[name].serve(told) if told is not None else ():
            self.events.put((name, messages.read(crossed(said), messages.FROM_NODE, messages.FROM_TRAINER)))
        return True


def serve_run(run: SubmittedRun, bundle: Bundle, listener: LocalListener, test: Path | None) -> None:
    """Carry out a run as its server does. No deadline is missed because a machine is slow, and none is waited for."""
    with patch.object(nodes, "time", listener), patch.object(nodes_link, "time", listener):
        run_submitted(run, ServerContext(bundle, Nodes(listener), test))  # type: ignore[arg-type]


def run_here(
    made: Agreements, trainers: Mapping[str, Trainer], signed: Signed, tap: Tap = lambda name, message: message,
    test: Path | None = None, initial: bytes = b"",
) -> SubmittedRun:  # fmt: skip
    """Run an agreement to its end; return the run, whose state says how it ended."""
    bundle = Bundle.open(made.paths["server"], "server")
    listener = LocalListener(trainers, tap)
    run = SubmittedRun.create(bundle.path / "runs" / "r", SubmissionState(signed, 0.0, "queued", "", None), initial)
    serve_run(run, bundle, listener, test)
    return run

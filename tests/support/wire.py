"""The codec as tests see it: everything crosses as bytes, and what crossed is counted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from fedatlas.algorithm import SERVER, Ask, Replies, State
from fedatlas.engine.job import Bench, Job, Result
from fedatlas.engine.loop import run_job
from fedatlas.federation.in_process import InProcess
from fedatlas.wire import codec
from federation import Federation


class Wire:
    """A loop executor in which messages, states, memories and updates are turned into bytes and back; it counts them."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.received = 0  # all updates
        self.up = 0  # those that the server gets
        self.down = 0  # messages, but for what a party has at hand already

    def run(self, jobs: Iterable[Job]) -> Iterator[Result]:
        for job in jobs:
            message = codec.encode(dict(job.message))
            self.down += len(message)
            told = job._replace(message=codec.decode(message), state=crossed(job.state), memory=crossed(job.memory))
            result = run_job(self.bench, told)
            update = codec.encode(dict(result.update))
            self.received += len(update)
            yield result._replace(
                update=codec.decode(update), state=crossed(result.state), memory=crossed(result.memory)
            )

    def close(self) -> None:
        pass


def crossed(value: Any) -> Any:
    """There and back."""
    return None if value is None else codec.decode(codec.encode(dict(value)))


def spied(fed: Federation) -> tuple[State, InProcess, Wire]:
    """A federation about to begin round 1 behind a wire that has counted nothing yet."""
    wires: list[Wire] = []

    def make(bench: Bench) -> Wire:
        wires.append(Wire(bench))
        return wires[-1]

    host = fed.host(make)
    server, wire, answer = fed.begin(host), wires[-1], host.server.answer
    wire.received = wire.down = 0

    def watched(ask: Ask) -> Replies:
        before, told = wire.received, wire.down
        replies = answer(ask)
        if ask.to == (SERVER,):  # talks to itself
            wire.down = told
            return replies
        wire.up += wire.received - before if ask.route.via == "server" else 0
        wire.down -= sum(codec.size(dict(ask.messages[k])) for k, by in ask.route.sender.items() if by == k)
        return replies

    host.server.answer = watched  # type: ignore[method-assign]
    return server, host, wire

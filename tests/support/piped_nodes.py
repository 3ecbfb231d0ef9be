"""Workers of nodes without Ray: processes that the driver's side talks to through pipes, as on machines with other folders."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedatlas.cluster.frames import FACTS, HEAD, Failed, answer_of, frame, with_head
from fedatlas.cluster.nodes import Lost, Node, Ticket


class PipedNodes:
    """As `cluster.nodes.Nodes`; each worker starts in ``folder``, and the driver's working directory is not there."""

    def __init__(self, kind: str, hello: bytes, folder: Path, many: int = 2) -> None:
        told = {**json.loads(hello), "directory": "/nowhere", "store": ""}
        environment = {key: x for key, x in os.environ.items() if key != "FEDATLAS_DATA"} | {"TMPDIR": str(folder)}
        command, pipe = [sys.executable, "-P", "-m", "fedatlas.cluster.worker"], subprocess.PIPE
        self.back: queue.Queue[tuple[Ticket, bytes | Failed | Lost]] = queue.Queue()
        self.workers = [
            subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment, cwd=folder, start_new_session=True)
            for _ in range(many)
        ]
        self.count = FACTS
        self.threads = [threading.Thread(target=self.read, args=(number,), daemon=True) for number in range(many)]
        for number, thread in enumerate(self.threads):
            thread.start()
            self.call(str(number), with_head(kind, json.dumps(told).encode()))
        hellos = {self.back.get(timeout=300)[1] for _ in range(2 * many)}
        assert b"" in hellos
        self.facts = [json.loads(one) for one in hellos if one]  # type: ignore[arg-type]

    def read(self, number: int) -> None:
        stream = self.workers[number].stdout
        assert stream is not None
        while len(head := stream.read(HEAD.size)) == HEAD.size:
            call, length, failed = HEAD.unpack(head)
            self.back.put((Ticket(str(number), call), answer_of(failed, stream.read(length))))

    def alive(self) -> list[Node]:
        return [Node(str(number), "here", 1, 1 << 34) for number in range(len(self.workers))]

    def put(self, message: bytes) -> bytes:
        return message

    def call(self, node: str, message: Any) -> Ticket:
        self.count += 1
        stream = self.workers[int(node)].stdin
        assert stream is not None
        for part in frame(self.count, message):
            stream.write(part)
        stream.flush()
        return Ticket(node, self.count)

    def wait(self, timeout: float) -> list[tuple[Ticket, bytes | Failed | Lost]]:
        try:
            return [self.back.get(timeout=timeout)]
        except queue.Empty:
            return []

    def close(self) -> None:
        for worker in self.workers:
            assert worker.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                worker.stdin.close()
        for worker, thread in zip(self.workers, self.threads, strict=True):
            worker.wait(timeout=300)
            thread.join(timeout=300)
            assert not thread.is_alive()
            assert worker.stdout is not None
            worker.stdout.close()


def connecting(folder: Path, seen: list[PipedNodes]) -> Callable[..., PipedNodes]:
    """A stand-in for `Nodes.connect`."""

    def connect(address: str, kind: str, hello: bytes, say: Callable[[str], None]) -> PipedNodes:
        seen.append(PipedNodes(kind, hello, folder))
        return seen[-1]

    return connect

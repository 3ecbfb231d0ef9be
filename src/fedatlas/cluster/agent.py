"""The agent of a node: a thin Ray actor that starts one plain process there and passes messages to it.

Ray's workers must not fork (its issue 28328), and runs and pools do. The agent imports neither torch nor the engine. Its worker
has a session of its own and is no child of the agent, since Ray kills those. It ends when its pipe closes, however the agent ended.
Two threads write and read, since an event loop moves a message of megabytes in pieces of 64 KiB.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
from typing import Any

import numpy as np

from fedatlas.cluster.frames import FACTS, HEAD, failure, frame, widened

DIED = "worker"  # kind of failure of the calls that a dead worker had in hand
PATIENCE = 10.0  # seconds for a worker to end by itself

Answer = tuple[bool, Any]
"""Whether the call failed, and its answer: bytes as an array, which Ray stores without pickling it."""


class Agent:
    """One worker and the calls that it has in hand; all methods run on the actor's event loop."""

    def __init__(self) -> None:
        self.waiting: dict[int, asyncio.Future[Answer]] = {}
        self.outbox: queue.SimpleQueue[list[bytes]] = queue.SimpleQueue()
        self.count, self.ended = FACTS, asyncio.Event()
        self.process: subprocess.Popen[bytes] | None = None
        self.loop: asyncio.AbstractEventLoop

    async def start(self) -> Answer:
        """Start the worker; return what it says of itself (`worker.facts`)."""
        self.loop = asyncio.get_running_loop()
        command = [sys.executable, "-P", "-m", "fedatlas.cluster.worker"]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, bufsize=0, start_new_session=True)  # noqa: ASYNC220
        facts = self._expect(FACTS)
        for work in (self._write, self._read):
            threading.Thread(target=work, args=(self.process,), daemon=True).start()
        return await facts

    async def call(self, message: Any) -> Answer:
        """Pass a message to the worker; return whether the call failed, and its answer."""
        self.count += 1
        answer = self._expect(self.count)
        if self.ended.is_set():
            return self._dead()
        self.outbox.put(frame(self.count, message))
        return await answer

    async def end(self) -> None:
        """End the worker: it kills its children and removes its folder when the pipe closes."""
        if self.process is None:
            return
        self.outbox.put([])
        try:
            await asyncio.wait_for(self.ended.wait(), PATIENCE)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def _expect(self, number: int) -> asyncio.Future[Answer]:
        future = asyncio.get_running_loop().create_future()
        self.waiting[number] = future
        return future

    def _write(self, process: subprocess.Popen[bytes]) -> None:
        """Write frames until an empty one ends the worker; a dead one is noticed where its answers are read."""
        assert process.stdin is not None
        widened(process.stdin)
        with contextlib.suppress(OSError), process.stdin:
            while parts := self.outbox.get():
                for part in parts:
                    rest = memoryview(part)
                    while rest:
                        rest = rest[os.write(process.stdin.fileno(), rest) :]

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        """Hand out answers until the worker has ended."""
        assert process.stdout is not None
        widened(process.stdout)
        with contextlib.suppress(OSError), os.fdopen(os.dup(process.stdout.fileno()), "rb") as answers:
            while len(head := answers.read(HEAD.size)) == HEAD.size:
                number, length, failed = HEAD.unpack(head)
                data = np.empty(length, np.uint8)
                if answers.readinto(data.data) < length:
                    break
                self.loop.call_soon_threadsafe(self._answered, number, (failed, data))
        process.wait()
        self.loop.call_soon_threadsafe(self._over)

    def _answered(self, number: int, answer: Answer) -> None:
        if not (future := self.waiting.pop(number)).done():
            future.set_result(answer)

    def _over(self) -> None:
        self.ended.set()
        for future in self.waiting.values():
            if not future.done():
                future.set_result(self._dead())
        self.waiting.clear()

    def _dead(self) -> Answer:
        return True, failure(DIED, "its worker process ended")

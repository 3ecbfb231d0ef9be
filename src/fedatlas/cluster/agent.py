"""The agent of a node: a thin Ray actor that starts one plain process there and passes messages to it.

Ray's workers must not fork (its issue 28328), and runs and pools do. The agent imports neither torch nor the engine. Its worker
has a session of its own and is no child of the agent, since Ray kills those. It ends when its pipe closes, however the agent ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys

from fedatlas.cluster.frames import FACTS, HEAD, failure, frame

DIED = "worker"  # kind of failure of the calls that a dead worker had in hand
PATIENCE = 10.0  # seconds for a worker to end by itself

Answer = tuple[bool, bytes]


class Agent:
    """One worker and the calls that it has in hand; all methods run on the actor's event loop."""

    def __init__(self) -> None:
        self.waiting: dict[int, asyncio.Future[Answer]] = {}
        self.count = FACTS
        self.process: asyncio.subprocess.Process | None = None
        self.reading: asyncio.Task[None] | None = None

    async def start(self) -> Answer:
        """Start the worker; return what it says of itself (`worker.facts`)."""
        pipe = asyncio.subprocess.PIPE
        command = [sys.executable, "-P", "-m", "fedatlas.cluster.worker"]
        self.process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, start_new_session=True)
        facts = self._expect(FACTS)
        self.reading = asyncio.create_task(self._read())
        return await facts

    async def call(self, message: bytes) -> Answer:
        """Pass a message to the worker; return whether the call failed, and its answer."""
        self.count += 1
        answer = self._expect(self.count)
        assert self.process is not None
        assert self.process.stdin is not None
        if self.reading is None or self.reading.done():
            return self._dead()
        self.process.stdin.writelines(frame(self.count, message))
        with contextlib.suppress(OSError):  # a dead worker is noticed where its answers are read
            await self.process.stdin.drain()
        return await answer

    async def end(self) -> None:
        """End the worker: it kills its children and removes its folder when the pipe closes."""
        if self.process is None or self.reading is None:
            return
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            await asyncio.wait_for(self.reading, PATIENCE)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def _expect(self, number: int) -> asyncio.Future[Answer]:
        future = asyncio.get_running_loop().create_future()
        self.waiting[number] = future
        return future

    async def _read(self) -> None:
        """Hand out answers until the worker has ended."""
        assert self.process is not None
        assert self.process.stdout is not None
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                number, length, failed = HEAD.unpack(await self.process.stdout.readexactly(HEAD.size))
                data = await self.process.stdout.readexactly(length)
                if not (future := self.waiting.pop(number)).done():
                    future.set_result((failed, data))
        for future in self.waiting.values():
            if not future.done():
                future.set_result(self._dead())
        self.waiting.clear()

    def _dead(self) -> Answer:
        return True, failure(DIED, "its worker process ended")

"""The plain process of a node: reads messages from its agent, has a handler answer them, and leaves nothing behind.

The first message names the handler: "study" runs experiments in forked children (`study_handler`), "engine" runs jobs
(`engine_handler`). It ends when the pipe closes, since that happens however the agent, its node or its driver ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib
import json
import os
import queue
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterable
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from fedatlas.cluster.frames import FACTS, HEAD, failure, frame, head_and_body, widened
from fedatlas.errors import FedatlasError, first_line

HANDLERS = {
    "study": "fedatlas.study.node_handler:StudyHandler",
    "engine": "fedatlas.cluster.engine_handler:EngineHandler",
}
SCRATCH, LOCK = "fedatlas-node-", ".lock"  # prefix of a worker's folder, and suffix of the file that it locks
Reply = tuple[int, bytes]


class Handler(Protocol):
    """A worker's work. It is built from the first message's body and an empty folder, which is removed at the end."""

    pause: float | None  # seconds until the next `look` while no message comes; None: not at all

    def answer(self, number: int, message: bytes) -> bytes | None:
        """Return the answer to a call; None if `look` will return it later."""

    def look(self) -> Iterable[Reply]:
        """Return the calls answered since the last look."""

    def close(self) -> None:
        """End its processes; may be called from another thread while it works."""


def facts() -> dict[str, object]:
    """Return the versions, which must be equal at all nodes, the processor's flags, and the number of this process."""
    from fedatlas.machine import processor, versions  # imports torch, after the fork

    return {"versions": {**versions(), "code": code_digest()}, "flags": processor()["flags"], "pid": os.getpid()}


def code_digest() -> str:
    """Return the SHA-256 of fedatlas' own source, shortened: checkouts of one version may differ."""
    package, out = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        out.update(f"{path.relative_to(package)}\n".encode() + path.read_bytes())
    return out.hexdigest()[:12]


def scratch_folder() -> Path:
    """Return a new folder for this process, whose lock it holds; remove those of workers that were killed."""
    root = Path(tempfile.gettempdir())
    for old in root.glob(f"{SCRATCH}*{LOCK}"):
        with contextlib.suppress(OSError), open(old, "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove(old.with_suffix(""))
    number, name = tempfile.mkstemp(suffix=LOCK, prefix=SCRATCH, dir=root)
    fcntl.flock(number, fcntl.LOCK_EX)  # before the folder is there, until this process and its children have ended
    folder = Path(name).with_suffix("")
    folder.mkdir(mode=0o700)
    return folder


def remove(folder: Path) -> None:
    """Remove a worker's folder, then its lock."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.with_suffix(LOCK).unlink(missing_ok=True)


class NodeWorker:
    """The process: a thread that reads, and the main thread, which answers."""

    def __init__(self, told: BufferedReader, answers: BinaryIO) -> None:
        self.told, self.answers = told, answers
        self.inbox: queue.Queue[tuple[int, bytes | bytearray]] = queue.Queue()
        self.handler: Handler | None = None
        self.folder = scratch_folder()

    def run(self) -> None:
        """Answer messages until the pipe closes."""
        threading.Thread(target=self.read, daemon=True).start()
        self.write(FACTS, json.dumps(facts()).encode())
        while True:
            pause = None if self.handler is None else self.handler.pause
            with contextlib.suppress(queue.Empty):
                self.handle(*self.inbox.get(timeout=pause))
            for number, data in () if self.handler is None else self.handler.look():
                self.write(number, data)

    def read(self) -> None:
        """Read messages; when the pipe closes, end this process at once, even in the middle of a job."""
        try:
            while len(head := self.told.read(HEAD.size)) == HEAD.size:
                number, length, _ = HEAD.unpack(head)
                data = bytearray(length)
                if self.told.readinto(data) < length:
                    break
                self.inbox.put((number, data))
        finally:
            with contextlib.suppress(Exception):
                if self.handler is not None:
                    self.handler.close()
            remove(self.folder)
            os.killpg(0, signal.SIGKILL)  # its session holds only itself and its children

    def handle(self, number: int, message: bytes | bytearray) -> None:
        """Have a message handled. The first one makes the handler."""
        try:
            if self.handler is None:
                kind, body = head_and_body(cast(bytes, message))
                module, _, name = HANDLERS.get(kind, kind).partition(":")
                self.handler = getattr(importlib.import_module(module), name)(bytes(body), self.folder)
                data: bytes | None = b""
            else:
                data = self.handler.answer(number, cast(bytes, message))
        except Exception as error:  # noqa: BLE001  (the driver raises it)
            reason = str(error) if isinstance(error, FedatlasError) else f"{type(error).__name__}: {first_line(error)}"
            self.write(number, failure(type(error).__name__, reason), failed=True)
            return
        if data is not None:
            self.write(number, data)

    def write(self, number: int, data: bytes, *, failed: bool = False) -> None:
        """Write an answer; a closed pipe is noticed by the thread that reads."""
        with contextlib.suppress(OSError):
            for part in frame(number, data, failed=failed):
                self.answers.write(part)
            self.answers.flush()


def main() -> None:
    """Serve the agent that started this process; what handlers print goes to the node's log."""
    if (
        os.fork()
    ):  # the agent's child ends: Ray kills the children of its workers, but this process removes its folder first
        os._exit(0)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # with a visible GPU, autograd could not be forked
    told = os.fdopen(0, "rb")
    for pipe in (told, answers):
        widened(pipe)
    NodeWorker(told, answers).run()


if __name__ == "__main__":
    main()

"""The network process of a node: one outbound stream to the server, and pipes to the process that trains. It never imports torch.

The two processes are separate because gRPC does not survive a fork, and because signs of life must continue during training. The
speaker restarts the trainer if it ends. The trainer ends when its pipe is closed.
"""

from __future__ import annotations

import contextlib
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

from fedatlas import secret
from fedatlas.errors import ProtocolError, TransportError
from fedatlas.files import write_text
from fedatlas.wire import messages
from fedatlas.wire.bundle import Bundle
from fedatlas.wire.channel import channel, refusal
from fedatlas.wire.frames import EVERY, SILENT, RawMessage, incoming, outgoing, read, write
from fedatlas.wire.hosts import proxy_of
from fedatlas.wire.listener import SERVICE, STREAM
from fedatlas.wire.message_refusals import other_protocol
from fedatlas.wire.messages import ModelStored, NodeHello, Refusal, TrainerLost, TrainerReady, written

BACK_OFF = (0.2, 5.0)  # seconds before it tries again: the first, and the most
PIPE = 1 << 20  # bytes that a pipe holds: models pass in few turns
GIVE_UP = 3  # trainers in a row that ended before they were ready


def instance_of(folder: Path) -> str:
    """Return the number of this folder, which distinguishes it from a copy that somebody else runs."""
    path = folder / "instance"
    if not path.exists():
        write_text(path, secret.random_bytes(16).hex())
    return path.read_text(encoding="utf-8").strip()


class TrainerProcess:
    """The process that trains, behind pipes; restarted if it ends."""

    def __init__(
        self, command: Sequence[str], forward: Callable[[RawMessage], None], log: Callable[[str], None]
    ) -> None:
        self.command, self.forward, self.log = list(command), forward, log
        self.ready: TrainerReady | None = None  # its first message, while it runs
        self.over = False
        self.failed = 0  # times in a row that it ended before it was ready
        self.told: queue.SimpleQueue[RawMessage | None] = queue.SimpleQueue()
        self._start()

    def _start(self) -> None:
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pipesize=PIPE)
        self.told = queue.SimpleQueue()
        threading.Thread(target=self._write, args=(self.process.stdin, self.told), daemon=True).start()
        threading.Thread(target=self._read, args=(self.process, self.process.stdout), daemon=True).start()

    def _write(self, pipe: IO[bytes], told: queue.SimpleQueue[RawMessage | None]) -> None:
        with contextlib.suppress(OSError), pipe:
            while (message := told.get()) is not None:
                write(pipe, message)

    def _read(self, process: subprocess.Popen[bytes], pipe: IO[bytes]) -> None:
        try:
            with pipe:
                while (message := read(pipe)) is not None:
                    self._said(message)
        except (ProtocolError, TransportError) as error:
            self.log(f"the trainer's message cannot be read: {error}")
            process.kill()
        self.told.put(None)
        code = process.wait()
        if self.over:
            return
        self.failed = self.failed + 1 if self.ready is None else 0
        self.ready = None
        self.forward(written(TrainerLost(f"its trainer ended ({code})")))
        if self.failed >= GIVE_UP or code == 2:
            self.over = True
            return
        self.log(f"the trainer ended ({code}); it is started again")
        time.sleep(BACK_OFF[0])
        self._start()

    def _said(self, message: RawMessage) -> None:
        said = messages.read(message, messages.FROM_TRAINER)
        if isinstance(said, TrainerReady):
            self.ready, self.failed = said, 0
        elif isinstance(said, Refusal):
            self.log(f"refused: {said.why}")
        elif isinstance(said, ModelStored):
            self.log(f"a run has ended, and its model is in '{said.where}'")
        self.forward(message)

    def end(self) -> None:
        """Close its pipe, and wait briefly for it to end."""
        self.over = True
        self.told.put(None)
        self.process.terminate()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()


class Speaker:
    """A node's connection to the server."""

    def __init__(self, bundle: Bundle, command: Sequence[str], log: Callable[[str], None]) -> None:
        self.bundle, self.log = bundle, log
        self.instance = instance_of(bundle.path)
        self.out: queue.SimpleQueue[RawMessage | None] | None = None  # while there is a stream
        self.trainer = TrainerProcess(command, self._send, log)

    def _send(self, message: RawMessage) -> None:
        if self.out is not None:
            self.out.put(message)

    def speak(self) -> None:
        """Keep a stream to the server, and reopen it if it breaks, until the trainer gives up."""
        wait = BACK_OFF[0]
        while not self.trainer.over:
            if self.trainer.ready is None:
                time.sleep(0.05)
                continue
            began = time.monotonic()
            why = self._stream()
            self.out = None
            wait = BACK_OFF[0] if time.monotonic() - began > BACK_OFF[1] else min(2 * wait, BACK_OFF[1])
            if why:
                self.log(why)
            time.sleep(wait)

    def _stream(self) -> str:
        """Run one stream from hello to its end; return why it ended."""
        import grpc

        with channel(self.bundle) as way:
            try:
                grpc.channel_ready_future(way).result(timeout=BACK_OFF[1])
            except grpc.FutureTimeoutError:
                return f"the server at {self.bundle.address} cannot be reached{proxy_of(self.bundle.host)}"
            self.out = out = queue.SimpleQueue[RawMessage | None]()
            ready = self.trainer.ready
            runs = ready.runs if ready else {}
            out.put(written(NodeHello(messages.PROTOCOL, self.instance, version("fedatlas"), bool(ready), runs)))
            heard = [time.monotonic()]
            call = way.stream_stream(f"/{SERVICE}/{STREAM}")(outgoing(out))
            threading.Thread(target=self._watch, args=(call, heard), daemon=True).start()
            try:
                return self._listen(call, heard)
            except grpc.RpcError as error:
                return refusal(error) or "the stream to the server broke"
            except (ProtocolError, TransportError) as error:
                return str(error)
            finally:
                out.put(None)
                call.cancel()

    def _listen(self, call: Any, heard: list[float]) -> str:
        """Hand the server's messages to the trainer; return why the stream ended. The first message must be a hello of this protocol."""
        greeted = False
        for message in incoming(call):
            heard[0] = time.monotonic()
            if not greeted:
                hello = message or RawMessage({})
                if why := other_protocol(hello, "the server", "this node"):
                    return why
                self._revocations(messages.read(hello, messages.TO_NODE).revoked)
                self.log(f"speaks to the server at {self.bundle.address}")
                greeted = True
            elif message is not None:
                self.trainer.told.put(message)
        return "the server ended the stream"

    def _revocations(self, signed: str) -> None:
        """Keep a newer list of revocations from the server. ProtocolError if the authority did not sign it."""
        try:
            if signed and self.bundle.take_revocations(signed):
                self.log("a new list of revocations came")
        except ValueError as error:
            raise ProtocolError(f"the server's list of revocations is refused: {error}.") from None

    def _watch(self, call: Any, heard: list[float]) -> None:
        """End a stream on which nothing arrives any more."""
        while call.is_active():
            time.sleep(EVERY)
            if time.monotonic() - heard[0] > SILENT + EVERY:
                call.cancel()

    def end(self) -> None:
        """End the trainer, and with it `speak`."""
        self.trainer.end()
        if self.out is not None:
            self.out.put(None)

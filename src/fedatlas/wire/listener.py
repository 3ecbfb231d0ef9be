"""The server's end of the network: a stream a node, the operators' calls, and who gets in. Mutual TLS always; nothing here knows torch.

A node opens its stream and keeps it; what comes on it lies in ``events`` until somebody takes it, in the order in which it came:

    (name, hello)    the node is there; the head says what its program said of itself
    (name, ...)      whatever the node says
    (name, left)     its stream ended, or was cut: the head says why
"""

from __future__ import annotations

import datetime
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from typing import Any

from fedatlas.errors import ConfigError, FedatlasError, TransportError
from fedatlas.wire.bundle import Bundle, with_article
from fedatlas.wire.certificates import Caller, caller_of
from fedatlas.wire.frames import BEAT, EVERY, FRAME, LIMIT, SILENT, Assembler, Message, frames, parsed

SERVICE, STREAM, OPERATE = "fedatlas.Federation", "Stream", "Operate"
ALL = "0.0.0.0"  # noqa: S104  # nodes come from elsewhere; nobody gets in without a certificate
THREADS = 256  # streams and calls at once; one more is turned away with a word
OPTIONS = [
    ("grpc.max_receive_message_length", FRAME + 64),
    ("grpc.max_send_message_length", FRAME + 64),
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5000),
]

Event = tuple[str, Message]
Operate = Callable[[Caller, Message], Iterator[Message]]


class Stream:
    """A node's stream."""

    def __init__(self, caller: Caller, serial: int) -> None:
        self.caller, self.number = caller, serial
        self.instance = ""  # of the node's folder, once it has said hello
        self.heard = time.monotonic()
        self.out: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self.over = ""  # why it ends

    def end(self, why: str) -> None:
        """No more is sent."""
        self.over = self.over or why
        self.out.put(None)


class Listener:
    """Listens for the nodes and operators of a federation."""

    def __init__(self, bundle: Bundle, operate: Operate, log: Callable[[str], None], listen: str = "") -> None:
        self.bundle, self.operate, self.log = bundle, operate, log
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.streams: dict[str, Stream] = {}
        self.seen: dict[str, float] = {}  # when a node was last heard, by the clock of the day
        self._lock = threading.Lock()
        self._count = 0
        self._lists: tuple[Any, dict[str, Any], set[str]] | None = None
        self._over = threading.Event()
        self.listen = listen or ("127.0.0.1" if bundle.host in {"localhost", "127.0.0.1"} else ALL)

    def start(self) -> None:
        """ConfigError where the port is taken."""
        import grpc

        key, certificate, ca = self.bundle.pem()
        trusted = grpc.ssl_server_credentials([(key, certificate)], ca, require_client_auth=True)
        pool = ThreadPoolExecutor(THREADS, thread_name_prefix="stream")
        self.server = grpc.server(pool, options=OPTIONS, maximum_concurrent_rpcs=THREADS)
        handlers = {
            STREAM: grpc.stream_stream_rpc_method_handler(self._stream),
            OPERATE: grpc.unary_stream_rpc_method_handler(self._operate),
        }
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        try:
            bound = self.server.add_secure_port(f"{self.listen}:{self.bundle.port}", trusted)
        except RuntimeError:
            bound = 0
        if not bound:
            raise ConfigError(
                f"port {self.bundle.port} is taken: end the program that listens there, or choose another."
            )
        self.server.start()
        threading.Thread(target=self._watch, daemon=True).start()
        self.log(f"listens on {self.listen}:{bound} for {self.bundle.federation}")

    def stop(self) -> None:
        """Ends all streams."""
        self._over.set()
        self.server.stop(0.2)

    def send(self, name: str, message: Message) -> bool:
        """Hands a message to a node's stream; whether there is one."""
        stream = self.streams.get(name)
        if stream is None:
            return False
        if why := self._unwelcome(stream.caller, "node"):
            self._cut(stream, why)
            return False
        stream.out.put(message)
        return True

    # ------------------------------------------------------------------------------------------------ who gets in

    def _current(self) -> tuple[dict[str, Any], set[str]]:
        """The lists as they are now: what `deploy add` and `deploy revoke` wrote counts at the next ask."""
        paths = [self.bundle.path / name for name in ("members.json", "revoked.json")]
        stamp = tuple(path.stat().st_mtime_ns if path.exists() else 0 for path in paths)
        if self._lists is None or self._lists[0] != stamp:
            self._lists = stamp, dict(self.bundle.members()), self.bundle.revoked()
        return self._lists[1], self._lists[2]

    def _unwelcome(self, caller: Caller, role: str) -> str:
        """Why somebody does not get in; "" for who does."""
        try:
            members, revoked = self._current()
        except ConfigError as error:
            return str(error)
        if caller.federation != self.bundle.federation:
            return "its certificate is of another federation"
        if caller.role != role:
            return f"its certificate is that of {with_article(caller.role)}, not of {with_article(role)}"
        if caller.until <= datetime.datetime.now(datetime.UTC):
            return "its certificate has expired"
        if caller.serial in revoked:
            return "its certificate is revoked"
        known = members.get(caller.name)
        if known is None or (known.role, known.serial) != (caller.role, caller.serial):
            return "its certificate is not registered"
        return ""

    def _admit(self, context: Any, role: str) -> Caller:
        import grpc

        pem = context.auth_context().get("x509_pem_cert", [b""])[0]
        caller = caller_of(pem) if pem else None
        why = "it has no certificate of a party" if caller is None else self._unwelcome(caller, role)
        if caller is None or why:
            name = f"'{caller.name}'" if caller else "somebody"
            self.log(f"refused {name} from {context.peer()}: {why}")
            context.abort(grpc.StatusCode.PERMISSION_DENIED, f"refused: {why}")
        assert caller is not None
        return caller

    # ------------------------------------------------------------------------------------------------ nodes

    def _stream(self, incoming: Iterator[bytes], context: Any) -> Iterator[bytes]:
        import grpc

        caller = self._admit(context, "node")
        with self._lock:
            self._count += 1
            stream = Stream(caller, self._count)
        context.add_callback(lambda: stream.end("its stream ended"))
        threading.Thread(target=self._read, args=(incoming, stream), daemon=True).start()
        while True:
            try:
                message = stream.out.get(timeout=EVERY)
            except queue.Empty:
                yield BEAT
                continue
            if message is None:
                break
            yield from frames(message)
        self._leave(stream)
        if context.is_active():
            context.abort(grpc.StatusCode.PERMISSION_DENIED, f"refused: {stream.over}")

    def _read(self, incoming: Iterator[bytes], stream: Stream) -> None:
        assembler = Assembler(LIMIT)
        try:
            for frame in incoming:
                stream.heard = time.monotonic()
                message = assembler.feed(frame)
                if message is None or stream.over:
                    continue
                if not stream.instance:
                    self._greet(stream, message)
                elif message.kind not in {"hello", "left"}:
                    self.events.put((stream.caller.name, message))
        except TransportError as error:
            self.log(f"cut '{stream.caller.name}': {error}")
            stream.end(str(error))
        except Exception:  # noqa: BLE001  # whatever gRPC raises where a stream breaks
            stream.end("its stream broke")
        stream.end("its stream ended")

    def _greet(self, stream: Stream, message: Message) -> None:
        """A node's first word: the same instance takes the place of its old stream, another one does not."""
        name, instance = stream.caller.name, str(message.head.get("instance", ""))
        if message.kind != "hello" or not instance:
            raise TransportError("its first message is no hello.")
        if (theirs := message.head.get("version")) != (ours := version("fedatlas")):
            self.log(f"refused '{name}': it runs version {theirs}")
            stream.end(f"it runs fedatlas {theirs} and the server {ours}: install the same version")
            return
        with self._lock:
            old = self.streams.get(name)
            fresh = old is not None and time.monotonic() - old.heard < SILENT + EVERY
            if old is not None and fresh and old.instance != instance:
                self.log(f"refused '{name}': another one of this name is connected")
                stream.end("another one of this name is connected")
                return
            stream.instance = instance
            self.streams[name] = stream
            if old is not None:
                old.end("the same node came again")
            self.events.put((name, message))
        self.log(f"'{name}' is connected")

    def _leave(self, stream: Stream) -> None:
        name = stream.caller.name
        with self._lock:
            if self.streams.get(name) is not stream:
                return
            del self.streams[name]
            self.seen[name] = time.time() - (time.monotonic() - stream.heard)
            self.events.put((name, Message({"kind": "left", "why": stream.over})))
        self.log(f"'{name}' is gone: {stream.over}")

    def _cut(self, stream: Stream, why: str) -> None:
        self.log(f"cut '{stream.caller.name}': {why}")
        stream.end(why)
        self._leave(stream)

    def _watch(self) -> None:
        while not self._over.wait(EVERY / 2):
            for stream in list(self.streams.values()):
                if why := self._unwelcome(stream.caller, "node"):
                    self._cut(stream, why)
                elif time.monotonic() - stream.heard > SILENT:
                    self._cut(stream, f"nothing was heard of it for {SILENT:g} s")

    # ------------------------------------------------------------------------------------------------ operators

    def _operate(self, request: bytes, context: Any) -> Iterator[bytes]:
        import grpc

        caller = self._admit(context, "operator")
        try:
            for message in self.operate(caller, parsed(bytearray(request))):
                if not context.is_active():
                    return
                yield from frames(message)
        except FedatlasError as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))

"""The server's end of the network: a stream a node, the operators' calls, and who gets in. Mutual TLS always; nothing here knows torch.

A node opens its stream and keeps it; what comes on it lies in ``events`` until somebody takes it, in the order in which it came:

    (name, NodeHello)     the node is there
    (name, ...)           a message of the node or of its trainer, as a record (`wire.messages`)
    (name, StreamEnded)   its stream ended, or was cut

Bytes that are no message, and messages that do not fit their records, end the stream: the node is lost, and may come again.
"""

from __future__ import annotations

import datetime
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from typing import Any, NamedTuple

from fedatlas.errors import ConfigError, FedatlasError, ProtocolError, TransportError
from fedatlas.wire import messages
from fedatlas.wire.bundle import Bundle, with_article
from fedatlas.wire.certificates import Caller, caller_of
from fedatlas.wire.frames import EVERY, FRAME, SILENT, RawMessage, frames, incoming, outgoing, parsed
from fedatlas.wire.messages import NodeHello, ServerHello, written

SERVICE, STREAM, OPERATE = "fedatlas.Federation", "Stream", "Operate"
ALL = "0.0.0.0"  # noqa: S104  # nodes come from elsewhere; nobody gets in without a certificate
THREADS = 256  # streams and calls at once; one more is turned away with a word
OPTIONS = [
    ("grpc.max_receive_message_length", FRAME + 64),
    ("grpc.max_send_message_length", FRAME + 64),
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5000),
]

Event = tuple[str, Any]
"""(name of a node, a record)."""
Operate = Callable[[Caller, Any], Iterator[Any]]
"""Answers the record of an operator with records."""


class StreamEnded(NamedTuple):
    """A node's stream is over."""

    why: str


class Stream:
    """A node's stream."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.instance = ""  # of the node's folder, once it has said hello
        self.heard = time.monotonic()
        self.out: queue.SimpleQueue[RawMessage | None] = queue.SimpleQueue()
        self.over = ""  # why it ends

    def end(self, why: str) -> None:
        """End it after what was sent."""
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
        self._lists: tuple[Any, dict[str, Any], set[str]] | None = None
        self._over = threading.Event()
        self.listen = listen or ("127.0.0.1" if bundle.host in {"localhost", "127.0.0.1"} else ALL)

    def start(self) -> None:
        """Start to listen. ConfigError where the port is taken."""
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
        """End all streams."""
        self._over.set()
        self.server.stop(0.2)

    def send(self, name: str, message: Any) -> bool:
        """Put a record on a node's stream; return whether there is one."""
        stream = self.streams.get(name)
        if stream is None:
            return False
        if why := self._unwelcome(stream.caller, "node"):
            self._cut(stream, why)
            return False
        stream.out.put(written(message))
        return True

    # ------------------------------------------------------------------------------------------------ who gets in

    def _current(self) -> tuple[dict[str, Any], set[str]]:
        """Return the lists as they are now: changes by `deploy add` and `deploy revoke` count at the next ask."""
        paths = [self.bundle.path / name for name in ("members.json", "revoked.json")]
        stamp = tuple(path.stat().st_mtime_ns if path.exists() else 0 for path in paths)
        if self._lists is None or self._lists[0] != stamp:
            self._lists = stamp, dict(self.bundle.members()), self.bundle.revoked()
        return self._lists[1], self._lists[2]

    def _unwelcome(self, caller: Caller, role: str) -> str:
        """The reason for refusing somebody; "" for a party that gets in."""
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

    def _stream(self, pieces: Iterator[bytes], context: Any) -> Iterator[bytes]:
        import grpc

        stream = Stream(self._admit(context, "node"))
        context.add_callback(lambda: stream.end("its stream ended"))
        threading.Thread(target=self._read, args=(pieces, stream), daemon=True).start()
        yield from outgoing(stream.out, lambda: bool(stream.instance))  # the first word is the server's hello
        self._leave(stream)
        if context.is_active():
            context.abort(grpc.StatusCode.PERMISSION_DENIED, f"refused: {stream.over}")

    def _read(self, pieces: Iterator[bytes], stream: Stream) -> None:
        try:
            for message in incoming(pieces):
                stream.heard = time.monotonic()
                if message is None or stream.over:
                    continue
                if not stream.instance:
                    self._greet(stream, message)
                    continue
                said = messages.read(message, messages.FROM_NODE, messages.FROM_TRAINER)
                if not isinstance(said, NodeHello):
                    self.events.put((stream.caller.name, said))
        except (ProtocolError, TransportError) as error:
            self.log(f"cut '{stream.caller.name}': {error}")
            stream.end(str(error))
        except Exception:  # noqa: BLE001  # whatever gRPC raises where a stream breaks
            stream.end("its stream broke")
        stream.end("its stream ended")

    def _greet(self, stream: Stream, message: RawMessage) -> None:
        """Takes a node's first message. The same instance replaces its old stream; another one is refused while the old is heard."""
        name = stream.caller.name
        if message.kind != "hello":
            raise TransportError("its first message is not a hello.")
        if why := messages.other_protocol(message, "it", "the server"):
            self._refuse(stream, why)
            return
        hello = messages.read(message, messages.FROM_NODE)
        if hello.version != (ours := version("fedatlas")):
            self._refuse(stream, f"it runs fedatlas {hello.version} and the server {ours}: install the same version")
            return
        with self._lock:
            old = self.streams.get(name)
            fresh = old is not None and time.monotonic() - old.heard < SILENT + EVERY
            if old is not None and fresh and old.instance != hello.instance:
                self._refuse(stream, "another one of this name is connected")
                return
            stream.out.put(written(ServerHello(messages.PROTOCOL, ours, self.bundle.signed_revocations())))
            stream.instance = hello.instance
            self.streams[name] = stream
            if old is not None:
                old.end("the same node came again")
            self.events.put((name, hello))
        self.log(f"'{name}' is connected")

    def _refuse(self, stream: Stream, why: str) -> None:
        self.log(f"refused '{stream.caller.name}': {why}")
        stream.end(why)

    def _leave(self, stream: Stream) -> None:
        name = stream.caller.name
        with self._lock:
            if self.streams.get(name) is not stream:
                return
            del self.streams[name]
            self.seen[name] = time.time() - (time.monotonic() - stream.heard)
            self.events.put((name, StreamEnded(stream.over)))
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
            for answer in self.operate(caller, messages.read(parsed(bytearray(request)), messages.FROM_OPERATOR)):
                if not context.is_active():
                    return
                yield from frames(written(answer))
        except FedatlasError as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))

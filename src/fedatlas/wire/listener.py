"""The server's end of the network: one stream per node, the operators' calls, and the admission of parties.

TLS is always mutual. Nothing here knows torch. A node opens its stream and keeps it. Its messages wait in ``events``, in the order of
arrival, until they are taken:

    (name, NodeHello)     the node is there
    (name, ...)           a message of the node or of its trainer, as a record (`wire.messages`)
    (name, StreamEnded)   its stream ended, or was cut

Bytes that are not a message, and messages that do not fit their records, end the stream: the node is lost, and may connect again.

Nobody can lock others out. `PATIENCE` limits a TLS handshake, a hello and an operator's question. A certificate has few streams,
nodes and operators have separate slots, and calls have deadlines. The requests to a node limit what it may send.
"""

from __future__ import annotations

import contextlib
import datetime
import queue
import threading
import time
import traceback
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from typing import Any, NamedTuple

from fedatlas.errors import ConfigError, FedatlasError, ProtocolError, TransportError
from fedatlas.wire import messages
from fedatlas.wire.bundle import Bundle, with_article
from fedatlas.wire.certificates import Caller, caller_of
from fedatlas.wire.frames import EVERY, FRAME, SILENT, Assembler, RawMessage, frames, incoming, outgoing, parsed
from fedatlas.wire.message_refusals import other_protocol
from fedatlas.wire.messages import FetchRun, NodeHello, ServerHello, WatchRun, written
from fedatlas.wire.slots import SLOTS, Slots, most_connections

SERVICE, STREAM, OPERATE = "fedatlas.Federation", "Stream", "Operate"
ALL = "0.0.0.0"  # noqa: S104  # nodes connect from elsewhere; nobody gets in without a certificate
THREADS = sum(SLOTS.values()) + 64  # the rest are for parties being let in or refused
PATIENCE = 5.0  # seconds for a TLS handshake, for a node's hello, for an operator's question
CALL, LONG_CALL = (
    60.0,
    3600.0,
)  # seconds that an operator's call may take; one that watches or fetches is then repeated
HELLO = 1 << 20  # bytes of a node's message before it was let in
ORDINARY = 64 << 20  # bytes of a message from a node, unless it was asked for more
REPEAT = 60.0  # seconds until the same refusal is logged again
WAITING = 64  # untaken messages, from a node or to it, after which it gets no more
OPTIONS = [
    ("grpc.max_receive_message_length", FRAME + 64),
    ("grpc.max_send_message_length", FRAME + 64),
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5000),
    ("grpc.server_handshake_timeout_ms", int(1000 * PATIENCE)),
    ("grpc.max_connection_idle_ms", int(2000 * PATIENCE)),  # of a connection without a stream or call
    ("grpc.max_concurrent_streams", 32),  # of one connection
]

Event = tuple[str, Any]
"""(name of a node, a record)."""
Operate = Callable[[Caller, Any], Iterator[Any]]
"""Answers the record of an operator with records."""


class StreamEnded(NamedTuple):
    """The end of a node's stream. ``broken``: ended by bytes that are not a message or did not fit."""

    why: str
    broken: bool = False


class ListenerDied(Exception):
    """The port is no longer served. The program has to end, so that it is started again."""


class Stream:
    """A node's stream."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.instance = ""  # of the node's folder, once it has said hello
        self.began = self.heard = time.monotonic()
        self.assembler = Assembler(HELLO)
        self.out: queue.SimpleQueue[RawMessage | None] = queue.SimpleQueue()
        self.over = ""  # why the stream ends
        self.broken = False  # whether its bytes could not be read

    def end(self, why: str) -> None:
        """End the stream after everything queued was sent."""
        self.over = self.over or why
        self.out.put(None)


class Listener:
    """Listens for the nodes and operators of a federation."""

    def __init__(self, bundle: Bundle, operate: Operate, log: Callable[[str], None], listen: str = "") -> None:
        self.bundle, self.operate, self.log = bundle, operate, log
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.streams: dict[str, Stream] = {}
        self.silent: set[Stream] = set()  # let in, but without a hello so far
        self.calls: dict[Any, float] = {}  # of operators: their deadlines
        self.slots = Slots()
        self.unread: dict[str, deque[int]] = defaultdict(deque)  # by node: bytes of its messages in ``events``
        self.refused: dict[tuple[str, str], float] = {}  # (who, why) -> when it was logged
        self.serving: list[threading.Thread] = []
        self.seen: dict[str, float] = {}  # when a node was last heard, as wall-clock time
        self._lock = threading.Lock()
        self._lists: tuple[Any, dict[str, Any], set[str]] | None = None
        self._over = threading.Event()
        self.listen = listen or ("127.0.0.1" if bundle.host in {"localhost", "127.0.0.1"} else ALL)

    def start(self) -> None:
        """Start to listen. ConfigError if the port is taken."""
        import grpc

        key, certificate, ca = self.bundle.pem()
        trusted = grpc.ssl_server_credentials([(key, certificate)], ca, require_client_auth=True)
        pool = ThreadPoolExecutor(THREADS, thread_name_prefix="stream")
        options = [*OPTIONS, ("grpc.max_allowed_incoming_connections", most_connections())]
        self.server = grpc.server(pool, options=options, maximum_concurrent_rpcs=THREADS)
        handlers = {  # a call is a stream here too: only then can its first message be awaited with a time limit
            STREAM: grpc.stream_stream_rpc_method_handler(self._stream),
            OPERATE: grpc.stream_stream_rpc_method_handler(self._operate),
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
        before = {*threading.enumerate()}
        self.server.start()
        watch = threading.Thread(target=self._watch, daemon=True)
        watch.start()
        self.serving = [thread for thread in threading.enumerate() if thread not in before]
        self.log(f"listens on {self.listen}:{bound} for {self.bundle.federation}")

    def stop(self) -> None:
        """End all streams."""
        self._over.set()
        self.server.stop(0.2)

    def next(self, seconds: float) -> Event:
        """Return the next event. queue.Empty if none comes; ListenerDied if none can come any more."""
        if not self._over.is_set() and not all(thread.is_alive() for thread in self.serving):
            raise ListenerDied("a thread that serves the port has ended")
        name, said = self.events.get(timeout=seconds)
        with self._lock:
            self.unread[name].popleft()
        return name, said

    def send(self, name: str, message: Any, most: int = 0) -> bool:
        """Put a record on a node's stream; return whether there is one. ``most`` is the size of its answer, if larger than `ORDINARY`."""
        stream = self.streams.get(name)
        if stream is None:
            return False
        why = self._unwelcome(stream.caller, "node")
        if why or stream.out.qsize() > WAITING:
            self._cut(stream, why or "it does not take what it is sent")
            return False
        stream.assembler.limit = max(stream.assembler.limit, most)
        stream.out.put(written(message))
        return True

    # ------------------------------------------------------------------------------------------------ who gets in

    def _current(self) -> tuple[dict[str, Any], set[str]]:
        """Return the current lists. Changes by `deploy add` and `deploy revoke` take effect at the next ask."""
        paths = [self.bundle.path / name for name in ("members.json", "revoked.json")]
        try:
            stamp = tuple(path.stat().st_mtime_ns if path.exists() else 0 for path in paths)
            if self._lists is None or self._lists[0] != stamp:
                self._lists = stamp, dict(self.bundle.members()), self.bundle.revoked()
        except OSError as error:  # for example too many open files: the lists read last remain valid
            if self._lists is None:
                raise ConfigError(f"the server cannot read its lists: {error.strerror}.") from None
        return self._lists[1], self._lists[2]

    def _unwelcome(self, caller: Caller, role: str) -> str:
        """Return the reason for refusing a caller; "" for a party that gets in."""
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
        """Return the party behind a stream or call, which holds a slot until that ends. Turn away all others with a reason."""
        import grpc

        pem = context.auth_context().get("x509_pem_cert", [b""])[0]
        caller = caller_of(pem) if pem else None
        why = "it has no certificate of a party" if caller is None else self._unwelcome(caller, role)
        if caller is not None and not why:
            why = self.slots.take(caller, context)
        if caller is None or why:
            self._note_refused(f"'{caller.name}'" if caller else "somebody", why, f" from {context.peer()}")
            context.abort(grpc.StatusCode.PERMISSION_DENIED, f"refused: {why}")
        assert caller is not None
        return caller

    # ------------------------------------------------------------------------------------------------ nodes

    def _stream(self, pieces: Iterator[bytes], context: Any) -> Iterator[bytes]:
        import grpc

        stream = Stream(self._admit(context, "node"))
        self.silent.add(stream)
        context.add_callback(lambda: stream.end("its stream ended"))
        threading.Thread(target=self._read, args=(pieces, stream), daemon=True).start()
        yield from outgoing(stream.out, lambda: bool(stream.instance))  # the server's hello comes first
        self._leave(stream)
        if context.is_active():
            context.abort(grpc.StatusCode.PERMISSION_DENIED, f"refused: {stream.over}")

    def _read(self, pieces: Iterator[bytes], stream: Stream) -> None:
        try:
            for message in incoming(pieces, stream.assembler):
                stream.heard = time.monotonic()
                if message is None or stream.over:
                    continue
                if not stream.instance:
                    self._greet(stream, message)
                    continue
                said = messages.read(message, messages.FROM_NODE, messages.FROM_TRAINER)
                if not isinstance(said, NodeHello):
                    self._heard(stream, said, stream.assembler.total)
        except (ProtocolError, TransportError) as error:
            self.log(f"cut '{stream.caller.name}': {error}")
            stream.broken = not stream.over
            stream.end(str(error))
        except Exception:  # noqa: BLE001  # any error of gRPC on a broken stream, or one caused by foreign bytes
            stream.end("its stream broke")
        stream.end("its stream ended")

    def _heard(self, stream: Stream, said: Any, size: int) -> None:
        """Hand on a node's message. TransportError for a node that keeps sending more than it was asked for."""
        with self._lock:
            waiting = self.unread[stream.caller.name]
            if len(waiting) >= WAITING or sum(waiting) + size > 2 * stream.assembler.limit:
                raise TransportError("it has sent more than it was asked for, and nobody has taken it yet.")
            self._put(stream.caller.name, said, size)

    def _put(self, name: str, said: Any, size: int = 0) -> None:
        self.unread[name].append(size)
        self.events.put((name, said))

    def _greet(self, stream: Stream, message: RawMessage) -> None:
        """Take a node's first message. The same instance replaces its old stream; another is refused while the old one is heard."""
        name = stream.caller.name
        if message.kind != "hello":
            raise TransportError("its first message is not a hello.")
        if why := other_protocol(message, "it", "the server"):
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
            stream.instance, stream.assembler.limit = hello.instance, ORDINARY
            self.silent.discard(stream)
            self.streams[name] = stream
            if old is not None:
                old.end("the same node came again")
            self._put(name, hello)
        self.log(f"'{name}' is connected")

    def _refuse(self, stream: Stream, why: str) -> None:
        self._note_refused(f"'{stream.caller.name}'", why)
        stream.end(why)

    def _note_refused(self, who: str, why: str, where: str = "") -> None:
        """Log a refusal, but the same one only once a minute, so that repeated refusals do not fill the disk."""
        now = time.monotonic()
        if now - self.refused.get((who, why), -REPEAT) >= REPEAT:
            self.refused[who, why] = now
            self.log(f"refused {who}{where}: {why}")

    def _leave(self, stream: Stream) -> None:
        name = stream.caller.name
        self.silent.discard(stream)
        with self._lock:
            if self.streams.get(name) is not stream:
                return
            del self.streams[name]
            self.seen[name] = time.time() - (time.monotonic() - stream.heard)
            self._put(name, StreamEnded(stream.over, stream.broken))
        self.log(f"'{name}' is gone: {stream.over}")

    def _cut(self, stream: Stream, why: str) -> None:
        self.log(f"cut '{stream.caller.name}': {why}")
        stream.end(why)
        self._leave(stream)

    def _watch(self) -> None:
        while not self._over.wait(EVERY / 2):
            now = time.monotonic()
            for stream in list(self.streams.values()):
                if why := self._unwelcome(stream.caller, "node"):
                    self._cut(stream, why)
                elif now - stream.heard > SILENT:
                    self._cut(stream, f"nothing was heard of it for {SILENT:g} s")
            for stream in list(self.silent):
                if now - stream.began > PATIENCE:
                    self._refuse(stream, f"it said no hello within {PATIENCE:g} s")
                    self.silent.discard(stream)
            for context, until in list(self.calls.items()):
                if now > until:
                    context.cancel()

    # ------------------------------------------------------------------------------------------------ operators

    def _operate(self, pieces: Iterator[bytes], context: Any) -> Iterator[bytes]:
        import grpc

        caller = self._admit(context, "operator")
        began = time.monotonic()
        self.calls[context] = began + PATIENCE
        try:
            if (request := _first(pieces)) is None:
                return
            asked = messages.read(parsed(bytearray(request)), messages.FROM_OPERATOR)
            long = isinstance(asked, WatchRun | FetchRun)
            self.calls[context] = began + (LONG_CALL if long else CALL)
            for answer in self.operate(caller, asked):
                if not context.is_active():
                    return
                yield from frames(written(answer))
            return
        except FedatlasError as error:
            status, why = grpc.StatusCode.FAILED_PRECONDITION, str(error)
        except Exception:  # noqa: BLE001  # a bug here ends one call, not the server
            self.log(f"a call of '{caller.name}' failed: {traceback.format_exc()}")
            status, why = grpc.StatusCode.FAILED_PRECONDITION, "the server failed (its own log says why)"
        finally:
            self.calls.pop(context, None)
        context.abort(status, why)


def _first(pieces: Iterator[bytes]) -> bytes | None:
    """Return the first message of a call; None if it ends before that."""
    with contextlib.suppress(Exception):  # any error of gRPC on a broken call
        return next(pieces, None)
    return None

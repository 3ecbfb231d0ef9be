"""The callers' end of the network: a channel to the server, and an operator's call. Nothing here needs torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from fedatlas.errors import FedatlasError, TransportError
from fedatlas.wire import messages
from fedatlas.wire.bundle import Bundle
from fedatlas.wire.frames import FRAME, frames, incoming
from fedatlas.wire.hosts import is_loopback, proxy_of

OPTIONS = [
    ("grpc.max_receive_message_length", FRAME + 64),
    ("grpc.max_send_message_length", FRAME + 64),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 5000),
]


def channel(bundle: Bundle) -> Any:
    """Open a channel to the server with this party's certificate. A server on this machine is reached without a proxy."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    import grpc

    key, certificate, ca = bundle.pem()
    options = [*OPTIONS, *([("grpc.enable_http_proxy", 0)] if is_loopback(bundle.host) else [])]
    return grpc.secure_channel(bundle.address, grpc.ssl_channel_credentials(ca, key, certificate), options=options)


def refusal(error: Any) -> str:
    """The server's reason for refusing a call; "" if it did not answer."""
    import grpc

    told = {grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.FAILED_PRECONDITION}
    return str(error.details()) if error.code() in told else ""


class RefusedByServer(FedatlasError):
    """A call that the server refused, with the server's sentence."""


def call(bundle: Bundle, asked: Any) -> Iterator[Any]:
    """Yield the server's answers to an operator's record. RefusedByServer with its reason; TransportError if it cannot be reached."""
    import grpc

    from fedatlas.wire.listener import CALL, LONG_CALL, OPERATE, SERVICE

    parts = list(frames(messages.written(asked)))
    if len(parts) > 1:
        raise TransportError(f"what is sent is larger than {FRAME >> 20} MiB.")
    seconds = LONG_CALL + CALL if isinstance(asked, messages.WatchRun | messages.FetchRun) else CALL
    with channel(bundle) as way:
        try:
            for message in incoming(way.unary_stream(f"/{SERVICE}/{OPERATE}")(parts[0][9:], timeout=seconds)):
                if message is not None:
                    yield messages.answer(asked, message)
        except grpc.RpcError as error:
            if said := refusal(error):
                raise RefusedByServer(said) from None
            way_there = proxy_of(bundle.host)
            raise TransportError(
                f"the server at {bundle.address} cannot be reached{way_there}: {_why(error)}."
            ) from None


def _why(error: Any) -> str:
    text = str(error.details() or error.code().name)
    return text.splitlines()[0][:200].rstrip(".")

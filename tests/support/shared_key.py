"""A server's lies to the holders of a key in shares, and what its clients may answer: altered questions, altered replies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fedatlas.federation.link import Request
from fedatlas.privacy.ask_protocol import RoundClosed
from fedatlas.privacy.paillier import cryptosystem as paillier
from fedatlas.privacy.secagg.head import Head, head_of
from fedatlas.privacy.threshold_paillier.opening import SHARE
from protected import Host

Message = dict[str, Any]
PUBLIC: dict[str, paillier.PublicKey] = {}


def asked(change: Callable[[Message], Message]) -> Callable[[Request], Request]:
    """Alters what the server asks a share of."""
    return lambda r: r._replace(message=change(dict(r.message))) if r.what == SHARE else r


def shown(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[Message], Message]:
    """Alters the ciphertexts by client, in every group."""
    return lambda m: {**m, "groups": {name: change(dict(own)) for name, own in m["groups"].items()}}


def made_up(own: Mapping[str, Any]) -> Mapping[str, Any]:
    """Other ciphertexts under the same key, as anybody can make them: all squared."""
    key = paillier.Batch(own["key"], own["ciphertexts"])
    return {**own, "ciphertexts": paillier.times(PUBLIC[own["key"]], key, 2).ciphertexts}


def known(host: Host) -> None:
    public = host.server.guard.public.key
    PUBLIC[public.name] = public


def headed(m: Message, **changes: Any) -> Message:
    found: Head = head_of(m["head"], len(m["clients"]))
    return {**m, "head": found._replace(**changes).plain()}


def closed(host: Host) -> list[str]:
    """Why rounds were given up, as they are."""
    why: list[str] = []
    guarded = host.server._guarded

    def noted(ask: Any) -> Any:
        try:
            return guarded(ask)
        except RoundClosed as error:
            why.append(str(error))
            raise

    host.server._guarded = noted  # type: ignore[method-assign]
    return why


def answered(client: int, change: Callable[[Any], Any], what: str = SHARE) -> Callable[[Request, Any], Any]:
    return lambda r, update: change(update) if (r.what, r.client) == (what, client) else update

"""One of the two servers: it keeps the shares that clients sent it, and adds up those of the clients that both servers heard."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fedatlas.errors import ProtocolError
from fedatlas.privacy.secagg.messages import UNSIGNED, Layout, Words, layout_of


class OneServer:
    """A server's shares of one ask, by client. Each share by itself is a row of uniform words."""

    def __init__(self) -> None:
        self.shares: dict[int, dict[str, Words]] = {}
        self.layouts: dict[int, Layout] = {}

    def take(self, client: int, share: Any) -> None:
        """Keep a client's share. ProtocolError if it is not one, or came before."""
        if client in self.shares:
            raise ProtocolError(f"client {client} sent a second share to the same server: refused.")
        layout = layout_of(share, f"client {client}")
        self.shares[client] = {name: share[name].numpy().view(UNSIGNED[layout[name][0]]).copy() for name in layout}
        self.layouts[client] = layout

    def total(self, clients: Iterable[int]) -> dict[str, Words]:
        """Return the sum of these clients' shares, by group: uniform words again."""
        first, *others = clients
        out = {name: words.copy() for name, words in self.shares[first].items()}
        for client in others:
            for name, words in self.shares[client].items():
                out[name] += words
        return out

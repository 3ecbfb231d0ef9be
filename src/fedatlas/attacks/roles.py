"""Roles whose view can be recorded: the server, a second server beside it, a client, the client after it in a chain, or an outsider.

The outsider has the finished model. A second server takes part only under a mechanism that splits updates between two servers. A
predecessor attacks nothing by itself: it tells a successor that colludes with it what a client began with.
"""

from __future__ import annotations

from collections.abc import Container
from typing import NamedTuple

from fedatlas.errors import ConfigError, unknown_name

ATTACKERS = ("server", "second_server", "client", "successor", "outsider")
KINDS = (*ATTACKERS, "predecessor")
OF_A_CHAIN = ("successor", "predecessor")
OF_A_CLIENT = ("client", *OF_A_CHAIN)


class ViewRole(NamedTuple):
    """``client:3`` is client 3; ``successor:3`` is the client after client 3 in a chain, ``predecessor:3`` the one before it.

    A client that came after client 3 once stays part of the successor: from then on all that it is told is in the view.
    The predecessor of the first client of a chain is the server, whose model is public.
    """

    kind: str
    client: int | None = None

    def __str__(self) -> str:
        return self.kind if self.client is None else f"{self.kind}:{self.client}"

    @property
    def folder(self) -> str:
        """Name of its folder, without the colon, which not all file systems allow."""
        return str(self).replace(":", "-")

    @classmethod
    def parse(cls, text: str, where: str) -> ViewRole:
        """Return the role of a text; ConfigError, which names the key ``where``, for an invalid one."""
        kind, colon, number = text.partition(":")
        if kind not in KINDS:
            raise ConfigError(f"{where} = '{text}': {unknown_name('role', kind, KINDS)}")
        if (kind in OF_A_CLIENT) != bool(colon) or (colon and not number.isdigit()):
            wanted = f"'{kind}:3' for client 3" if kind in OF_A_CLIENT else f"only '{kind}'"
            raise ConfigError(f"{where} = '{text}': write {wanted}.")
        return cls(kind, int(number) if colon else None)

    def sees(
        self, direction: str, client: int, sender: int | None, *, second: bool = False, successors: Container[int] = ()
    ) -> bool:
        """Return whether the role sees a message: ``up`` from a client, ``down`` to it, ``peer`` to it from ``sender``.

        ``second``: it goes to, or comes from, the second server instead of the server. ``successors``: clients that have
        come after the role's client.
        """
        if self.kind in {"server", "second_server"}:
            return direction in {"up", "down"} and second == (self.kind == "second_server")
        if self.kind == "client":
            return direction in {"up", "down", "peer"} and self.client in {client, sender}
        if self.kind == "successor":
            handed_on = direction == "peer" and self.client == sender
            return handed_on or (direction in {"down", "peer"} and client in successors)
        if self.kind == "predecessor":
            return direction in {"down", "peer"} and self.client == client
        return direction == "published"

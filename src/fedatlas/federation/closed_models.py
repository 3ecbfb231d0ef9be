"""Open the models of requests whose server keeps them as a ciphertext (`privacy.protocol.Closed`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from fedatlas.algorithm import State
from fedatlas.engine.job import Bench
from fedatlas.errors import ProtocolError
from fedatlas.federation.first_message import close
from fedatlas.federation.link import Request
from fedatlas.privacy.protocol import CLOSED
from fedatlas.tree import Tree

PLAIN = "a party is sent a model in the clear that is not the first one, though its server must hold none: refused."


def is_closed(model: Any) -> bool:
    """Whether this stands in the place of a model that only parties open."""
    return isinstance(model, Mapping) and not isinstance(model, Tree) and CLOSED in model


class Opener:
    """Opens models for the parties of one party half. It keeps the last, since all parties of a round are sent the same.

    compares: whether a model in the clear has to be the first one; not on trial.
    """

    def __init__(self, bench: Bench, *, compares: bool = True) -> None:
        how, self.compares = bench.protection, compares
        self.bench, self.closed = bench, None if how is None else how.closed
        self.initial = Tree()  # the model that all know, once it is needed
        self.told: Any = None
        self.model = Tree()

    def first(self) -> Tree:
        """Return the model that all know, if later ones are closed; else nothing."""
        if self.closed is not None and not self.initial:
            self.initial = self.bench.network.initial()[0]
        return self.initial

    def request(self, request: Request, session: Any) -> Request:
        """Return a request with its model opened. ProtocolError for a model that no server of this experiment can have."""
        told = request.message.get("model")
        if self.closed is None or request.client < 0 or told is None:
            return request
        return request._replace(message={**request.message, "model": self.opened(told, request.round - 1, session)})

    def server(self, server: State, before: int, session: Any) -> State:
        """Return a server's state with its model opened, as only who holds the parties' key can."""
        if self.closed is None or not is_closed(server.get("model")):
            return server
        return {**server, "model": self.opened(server["model"], before, session)}

    def opened(self, told: Any, before: int, session: Any) -> Tree:
        """Return the model. ``before``: sums that can be in it."""
        assert self.closed is not None
        if self.told is not None and told is self.told:
            return self.model
        if is_closed(told):
            model = self.closed.opened(told, self.first(), before, session)
        elif isinstance(told, Tree) and (not self.compares or same(told, self.first())):
            model = told
        else:
            raise ProtocolError(PLAIN)
        self.told, self.model = told, model
        return model


def same(told: Mapping[str, Tensor], known: Mapping[str, Tensor]) -> bool:
    """Whether these are the tensors of a known model, up to rounding."""
    return told.keys() == known.keys() and all(close(told[name], x) for name, x in known.items())

"""A round of the small federation in which a client, or the server, says something else than the protocol has it say.

A lie changes one field of an update on its way to the server (`sent`), or of a message or word on its way to parties (`told`), in every
way of `mutations_of`. `outcome` plays the round with the lie and an honest one after it.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedatlas.algorithms import ALGORITHMS
from fedatlas.errors import FedatlasError
from fedatlas.federation.defence import Defence
from fedatlas.federation.link import Request
from fedatlas.privacy.mechanism import Mechanism
from federation import play
from mutations_of import Path, at, changed, changes, fields
from protected import ALL, Host, protected

LIAR = 1  # the client that lies, or that is lied to; under a shared key it opens the sum of round 1
Mechanisms = Callable[[], Sequence[Mechanism]]


class Lie(NamedTuple):
    """One changed field."""

    side: str  # "sent" by a client, "told" to it, or "told all"
    what: str  # of which ask
    path: Path
    name: str  # of the change

    def of(self, value: Any) -> Any:
        """The value with the change; as it is where the field is another."""
        try:
            new = changes(at(value, self.path))[self.name]
        except (KeyError, IndexError, TypeError):
            return value
        return changed(value, self.path, new)


class Outcome(NamedTuple):
    """Two rounds, in the first of which somebody lied."""

    model: Mapping[str, Tensor]  # after the first
    later: Mapping[str, Tensor]  # after the second
    counted: frozenset[int]  # in the first
    again: frozenset[int]  # in the second
    refusals: tuple[str, ...]
    error: str  # the traceback of anything but an error of fedatlas
    ended: str  # the sentence with which the run ended, if it did


class Played:
    """The honest rounds of some mechanisms, and the messages in them."""

    def __init__(self, mechanisms: Mechanisms, name: str = "fedavg") -> None:
        self.mechanisms, self.name = mechanisms, name
        self.messages: dict[tuple[str, str], Any] = {}
        fed, host = self.federation()
        before = fed.begin(host)
        self.begun = {**before["model"]}
        host.alter, host.tell = self._kept, self._heard
        state, _ = play(fed, [ALL], server=before, host=host)
        self.honest = {**state["model"]}
        fed, host = self.federation()
        host.lose = lambda request: request.client == LIAR
        self.without = {**play(fed, [ALL], server=fed.begin(host), host=host)[0]["model"]}

    def federation(self) -> tuple[Any, Host]:
        algorithm = ALGORITHMS[self.name](weights="uniform") if self.name == "fedavg" else self.name
        fed, host = protected(algorithm, *self.mechanisms())
        host.server.defence = Defence()
        host.refusals = []
        return fed, host

    def _kept(self, request: Request, update: Any) -> Any:
        if request.client == LIAR:
            self.messages["sent", request.what] = update
        return update

    def _heard(self, request: Request) -> Request:
        if request.client == LIAR:
            self.messages["told", request.what] = body_of(request)
        return request

    def lies(self) -> Iterator[Lie]:
        """Every change of every field."""
        for (side, what), body in self.messages.items():
            for path in fields(body):
                for name in changes(at(body, path)):
                    for whom in ("sent",) if side == "sent" else ("told", "told all"):
                        yield Lie(whom, what, path, name)

    def outcome(self, lie: Lie) -> Outcome:
        """What comes of a lie."""
        fed, host = self.federation()
        state, later, counted, error, ended = fed.begin(host), None, frozenset[int](), "", ""
        if lie.side == "sent":
            host.alter = lambda r, update: lie.of(update) if (r.client, r.what) == (LIAR, lie.what) else update
        else:
            host.tell = lambda r: (
                lied(r, lie) if r.what == lie.what and (lie.side == "told all" or r.client == LIAR) else r
            )
        try:
            state, _ = play(fed, [ALL], server=state, host=host)
            counted = host.server.counted
            host.alter, host.tell = lambda r, update: update, lambda r: r
            later, _ = play(fed, [ALL], server=state, host=host, first=2)
        except FedatlasError as one:
            ended = str(one)
        except Exception:  # noqa: BLE001  # this is what is searched for
            error = traceback.format_exc()
        said = tuple(str(one) for _, one in host.refusals or ())
        model = {**state["model"]}
        return Outcome(model, {**(later or state)["model"]}, counted, host.server.counted, said, error, ended)


def body_of(request: Request) -> dict[str, Any]:
    return {"message": dict(request.message), "word": None if request.word is None else dict(request.word)}


def lied(request: Request, lie: Lie) -> Request:
    body = lie.of(body_of(request))
    return request._replace(message=body.get("message"), word=body.get("word"))


def whole(model: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> bool:
    """Whether a model has the form of another, and is made of numbers."""
    return model.keys() == like.keys() and all(
        x.shape == like[name].shape and x.dtype == like[name].dtype and bool(torch.isfinite(x).all())
        for name, x in model.items()
    )


def apart(model: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """The largest distance of two models' numbers."""
    return max((float((x - other[name]).abs().max()) for name, x in model.items()), default=math.inf)

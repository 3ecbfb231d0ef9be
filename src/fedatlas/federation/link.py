"""Messages between the server's half of a federation and the parties' halves, and the interface for watching them.

    server half ── Request ──> link ──> party half          server half <── Reply ── link <── party half

The server half (`server.py`) sees no rows. A party half (`party.py`) sees no other party's rows. Requests and replies are plain
values of the codec, so a link may be a function call, a pipe or a network.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from fedatlas.algorithm import Budget, Message, Mixing, Update
from fedatlas.tree import Tree

Place = tuple[str, int, int, int]
"""(run, round, attempt, number) of an ask."""


class Head(NamedTuple):
    """A request without its content. A party that knows the experiment and the round can work it out (`federation.start`)."""

    run: str
    round: int
    attempt: int
    number: int
    client: int
    what: str
    lr: float
    K: int
    n: int
    reduce: str
    single: bool
    budget: Budget | None
    visits: int
    architecture: str
    sender: int | None
    peer: bool


class Request(NamedTuple):
    """A request to one party. (run, round, attempt, number, client) identify it."""

    run: str
    round: int  # from 1; 0 = the set-up
    attempt: int  # how often this round was restarted
    number: int  # of the ask in its round, from 0
    client: int
    what: str  # the task
    message: Message
    lr: float  # the round's local learning rate
    K: int  # clients of the whole federation
    n: int  # examples of the whole federation
    reduce: str  # the reducer that the update goes into
    single: bool = False  # whether the server will look at this update by itself
    budget: Budget | None = None  # how much work, if it differs from the experiment's
    visits: int = 0  # how often this party has done this already in this round
    anchor: Tree | None = None  # the model that the server knows, if the message holds another
    word: Mapping[str, Any] | None = None  # how a protected update is sealed; None if it is not protected
    architecture: str = ""  # of the network to work with, if it is not the party's own
    sender: int | None = None  # the client that hands the message over; None: the server
    peer: bool = False  # the update goes on to another party, not to the server

    @property
    def ask(self) -> Place:
        """The ask that this request belongs to."""
        return self.run, self.round, self.attempt, self.number

    @property
    def head(self) -> Head:
        """The request without its content."""
        return Head(*(getattr(self, name) for name in Head._fields))

    def plain(self) -> dict[str, Any]:
        """Return the form that the codec carries."""
        word = None if self.word is None else dict(self.word)
        return {
            **self._asdict(),
            "message": dict(self.message),
            "word": word,
            "budget": None if not self.budget else [*self.budget],
        }

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Request:
        """Build a request from its plain form; the inverse of `plain`."""
        return cls(**{**plain, "budget": None if plain["budget"] is None else Budget(*plain["budget"])})


class Reply(NamedTuple):
    """A party's reply: its update as it crosses, sealed if the federation seals, and the seconds it took."""

    client: int
    update: Update
    seconds: float
    ask: Place  # the ask it answers: tells a late reply from a reply to the next ask
    sealing: float = 0.0  # how many of these seconds went into noise, masks or encryption
    bare: int = 0  # bytes of the update before sealing

    def plain(self) -> dict[str, Any]:
        """Return the form that the codec carries."""
        return {**self._asdict(), "update": dict(self.update)}

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Reply:
        """Build a reply from its plain form; the inverse of `plain`."""
        return cls(**{**plain, "ask": tuple(plain["ask"])})


class Link(Protocol):
    """The way from the server's half to the parties' halves. It takes a whole ask at once."""

    def __call__(self, requests: Sequence[Request], deadline: float | None) -> Iterator[Reply]:
        """Yield replies as they come, in any order. After ``deadline`` seconds no more come, and a lost party sends none.

        The tensors of a reply are valid until the next reply is asked for.
        """
        ...

    def commit(self, run: str, round: int, counted: Collection[int]) -> None:
        """Commit the round. Until then a party holds its state before and after; clients that are not ``counted`` return to the former."""
        ...


class Observer:
    """An observer of the messages. Each method may be left out. No method may change what it is shown."""

    def asked(self, request: Request) -> None:
        """See a request on its way to its party."""

    def replied(self, request: Request, update: Update) -> None:
        """See a party's update as it crosses: sealed, if updates are sealed."""

    def opened(self, request: Request, update: Update) -> None:
        """See the same update after the server has opened it. This is not called for masked or encrypted updates."""

    def mixed(self, mixing: Mixing) -> None:
        """See which client heard which update in an ask without a server, after the replies to it."""

"""What crosses between the server's half of a federation and the parties' halves, and who may watch it cross.

    server half ── Request ──> link ──> party half          server half <── Reply ── link <── party half

The server half (`server.py`) knows no rows, the party half (`party.py`) knows no other party's. Requests and replies are
plain values of the codec, so that a link may be a function call, a pipe or a network.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from fedatlas.algorithm import Budget, Message, Mixing, Update
from fedatlas.tree import Tree

Place = tuple[str, int, int, int]
"""(run, round, attempt, number) of an ask."""


class Head(NamedTuple):
    """Everything of a request but its content: a party that knows the experiment and the round can work it out (`federation.start`)."""

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
    """What one party is asked to do. (run, round, attempt, number, client) tell it from every other request."""

    run: str
    round: int  # from 1; 0 = the set-up
    attempt: int  # how often this round was begun anew
    number: int  # of the ask in its round, from 0
    client: int
    what: str  # the task
    message: Message
    lr: float  # the round's local learning rate
    K: int  # clients of the whole federation
    n: int  # examples of the whole federation
    reduce: str  # the reducer that the update goes into
    single: bool = False  # whether the server will look at this update alone
    budget: Budget | None = None  # how much work, where that is not the experiment's
    visits: int = 0  # how often this party has done this already in this round
    anchor: Tree | None = None  # the model that the server knows, where the message holds another
    word: Mapping[str, Any] | None = None  # what the update is sealed by, where it is protected
    architecture: str = ""  # of the network to work with, where that is not the party's own
    sender: int | None = None  # the client that hands the message over; None: the server
    peer: bool = False  # the update goes on to another party, not to the server

    @property
    def ask(self) -> Place:
        """Of which ask it is."""
        return self.run, self.round, self.attempt, self.number

    @property
    def head(self) -> Head:
        """The request without its content."""
        return Head(*(getattr(self, name) for name in Head._fields))

    def plain(self) -> dict[str, Any]:
        """As the codec carries it."""
        word = None if self.word is None else dict(self.word)
        return {
            **self._asdict(),
            "message": dict(self.message),
            "word": word,
            "budget": None if not self.budget else [*self.budget],
        }

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Request:
        """The inverse of `plain`."""
        return cls(**{**plain, "budget": None if plain["budget"] is None else Budget(*plain["budget"])})


class Reply(NamedTuple):
    """What a party sends back: its update as it crosses, sealed where the federation seals, and the seconds it took."""

    client: int
    update: Update
    seconds: float
    ask: Place  # that it answers: one that comes after its ask was closed is told from those of the next
    sealing: float = 0.0  # seconds of these that went into noise, masks or encryption
    bare: int = 0  # bytes of the update before that

    def plain(self) -> dict[str, Any]:
        """As the codec carries it."""
        return {**self._asdict(), "update": dict(self.update)}

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Reply:
        """The inverse of `plain`."""
        return cls(**{**plain, "ask": tuple(plain["ask"])})


class Link(Protocol):
    """The way from the server's half to the parties'. A whole ask is handed over at once."""

    def __call__(self, requests: Sequence[Request], deadline: float | None) -> Iterator[Reply]:
        """Replies as they come: in any order, after ``deadline`` seconds none any more; of a lost party none at all.

        The tensors of a reply hold until the next one is asked for.
        """
        ...

    def commit(self, run: str, round: int, counted: Collection[int]) -> None:
        """The round has landed. Until then a party holds its state before and after; who is not ``counted`` goes back."""
        ...


class Observer:
    """Watches what crosses. Each method may be left out; none may change what it is shown."""

    def asked(self, request: Request) -> None:
        """A request on its way to its party."""

    def replied(self, request: Request, update: Update) -> None:
        """A party's update as it crosses: sealed, where updates are sealed."""

    def opened(self, request: Request, update: Update) -> None:
        """The same update as the server has opened it; of masked and encrypted ones there is none."""

    def mixed(self, mixing: Mixing) -> None:
        """Who heard whose update, in an ask without a server: after the replies to it."""

"""The record of a privacy mechanism: what it says of itself (`Mechanism`) and what it does to an update in a round (`Work`).

A builder returns the record from the keys of its table, as an algorithm's builder does. Every field has the default of a mechanism
that leaves all as it is; a mechanism states what differs. docs/mechanisms.md explains the fields. `Mechanism` is read without torch,
by the recommender for one; whatever needs torch belongs to `Work`, which `Mechanism.work` makes when a run begins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from pydantic import Field

from fedatlas.privacy.ledger import Event

if TYPE_CHECKING:
    from fedatlas.aggregation.reducers import Reducer
    from fedatlas.algorithm import Algorithm, Ask, Message, Question, Transform, Update
    from fedatlas.privacy.ask_protocol import Asking, Place

Source = Literal["os", "seed"]
Small = Annotated[float, Field(gt=0, lt=1)]
Bits = Annotated[int, Field(ge=2, le=40)]

WHO_CAME = ("clients", "selected", "bytes_up", "bytes_down", "bytes_peer", "bytes_privacy", "flops")
"""Fields of a row that tell who took part, or how many did."""

PHASES: Mapping[str, str] = {
    "keys": "making and exchanging keys",
    "noise": "clipping and noise at the clients",
    "mask": "masking",
    "encrypt": "encrypting",
    "aggregate": "the server's arithmetic",
    "decrypt": "opening the sum",
    "unmask": "handing over shares of the masks",
}
"""Phases in which the seconds of a protected round are counted, beside the algorithm's tasks, in words for people."""


class Noise(NamedTuple):
    """The source of random words: the operating system, or a seed that every reader of the experiment file knows."""

    source: Source = "os"
    seed: int = 0  # of the run; without meaning under "os"


class Doing(NamedTuple):
    """Whose update it is, and which."""

    client: int
    round: int
    what: str
    visit: int
    rows: int


class Learns(NamedTuple):
    """Knowledge of a client that each role gains under a mechanism, besides the models that everybody is told."""

    server: str
    clients: str  # other clients, each on its own
    colluding: str  # some of them together, or with the server


class Words(NamedTuple):
    """Sentences about a mechanism for its report, its dry run and before a run."""

    done: str = ""  # first sentence of the report's section: HTML, with the mechanism's keys in braces
    warnings: tuple[str, ...] = ()  # of the report
    notices: tuple[str, ...] = ()  # before a run
    accounts: Mapping[str, tuple[str, str]] = {}  # of the summary's "accounts": figure -> (its name, what it assumes)
    preview: Callable[[Mapping[str, Any]], Sequence[str]] = lambda found: ()  # of what `Mechanism.preview` found


class Noising(NamedTuple):
    """The noise of a mechanism and its price. The ledger's events are the one source of epsilon."""

    source: Source
    released: Callable[[Protection, int, Sequence[int]], Event | None]  # (.., round, clients) -> the ledger's line
    delta: Callable[[Protection], float]  # at which epsilon is stated
    for_all_rounds: bool = False  # the noise of each round is made for the number of rounds: `rounds` cannot change
    epsilon: float | None = None  # of the whole run, where the keys state it; else it follows from the events
    secret_cohort: bool = False  # who takes part is drawn in secret and must stay secret


class Extra(NamedTuple):
    """A package that a plain installation lacks."""

    module: str
    name: str  # of the extra: pip install "fedatlas[name]"
    sampled: bool = False  # needed only where a cohort is sampled


class Asked(NamedTuple):
    """Choices of an experiment that a mechanism may refuse."""

    clients: int  # in all; 0: not known yet
    sampling: str
    fraction: float
    size: int | None
    compression: str  # name of the transform; "" without one


class Trial(NamedTuple):
    """Facts of a round that a dry run has played through."""

    parties: int
    largest: int  # rows of the client with the most
    counted: int  # what `Protocol.counted` found in one client's updates


class Limits(NamedTuple):
    """Algorithms, choices and settings that a mechanism does not go with, and why."""

    alone: str = ""  # why it stands beside no other mechanism
    why_not: Callable[[Algorithm], str] = lambda algorithm: ""  # why it cannot protect an algorithm; "" where it can
    refuses: Callable[[Asked], str] = lambda asked: ""  # a sentence about what the experiment file asks for; "": fine
    columns: tuple[str, ...] = ()  # its keys that have a meaning where parties hold columns; (): it does not serve them
    deployed: bool = False  # runs between real parties
    extras: tuple[Extra, ...] = ()


class Mechanism(NamedTuple):
    """A mechanism: facts and words, read without torch."""

    name: str
    keys: Mapping[str, Any]  # of its table, defaults included
    place: int  # in the sound order: clip 1, noise 2, noise at the server 3, encrypt 4, mask 5
    trust: Literal["nobody", "clients", "server"]  # who has to be trusted: nobody, clients not to collude, the server
    learns: Learns
    work: Callable[[], Work]
    words: Words = Words()
    phase: str = ""  # of `PHASES`: seconds in which clients seal an update; "": the task itself
    sums_only: Literal["", "partly", "wholly"] = ""  # the server sees sums of updates in place of single ones
    whole: bool = False  # acts on whole models; else on changes of what a client was told
    noise: Noising | None = None
    hides: tuple[str, ...] = ()  # fields of a row that nobody in a federation would know, or that tell what is hidden
    # (.., the run's rows, clients' sizes, the ledger's events) -> what the summary says of the run beyond what all have.
    figures: Callable[[Protection, Sequence[Any], Mapping[int, int], Sequence[Event]], Mapping[str, Any]] | None = None
    preview: Callable[[Trial], Mapping[str, Any]] | None = None  # what a dry run says beyond what all have
    named: Callable[[Sequence[str]], Mechanism] | None = None  # the same once the model's parameters have names
    limits: Limits = Limits()


class Work(NamedTuple):
    """A mechanism at work: functions on an update in a round."""

    # A client, to its update before it leaves: changes, or the model where the mechanism is `whole`.
    update: Callable[[Update, Protection, Doing], Update] | None = None
    protocol: Protocol | None = None  # in place of sending updates: `sums_only`
    # The server, in place of the mean: a sum of its own, noise also where nobody came; `release` makes a mean of it.
    total: Callable[[Transform | None], Reducer] | None = None
    # (value, .., place, who answered, algorithm) -> what the server uses of the value, with its noise.
    release: Callable[[Update, Protection, Place, tuple[int, ...], Algorithm], Update] | None = None


class Keys(NamedTuple):
    """The secrets of all parties of a simulation, and what the server half is told of them."""

    public: Any
    session: Callable[[int, Mapping[str, Any]], Any]  # (client, sums it opened so far) -> what its questions begin with


class Protocol(NamedTuple):
    """A protocol around an ask, at whose end the server knows a sum of updates and no single one."""

    questions: Mapping[str, Question]  # its phases beside the work
    phases: Mapping[str, str]  # question -> one of `PHASES`
    keys: Callable[[int, str, bool], Keys]  # (clients, federation, short keys for tests)
    # (changes, .., the server's word, session) -> (what is sent, the session, the changes as the server will decode them).
    seal: Callable[[Update, Doing, Mapping[str, Any], Any], tuple[Update, Any, Update]]
    around: Callable[[Any, str, Ask, Place, int], Asking]  # (`Keys.public`, federation, .., .., processes)
    fits: Callable[[int, bool], Any]  # (clients, weights by rows): PrivacyError where a sum would overflow
    fewest: int  # clients of a sum
    most: int | None = None
    leaves: tuple[str, ...] = ("masked",)  # phases in which a client may leave; "masked": the work
    staged: bool = False  # a phase after the work needs each client's session of the work
    check: Callable[[str, int, str, Message], None] | None = None  # (run, round, what, message): ProtocolError
    cohort: Callable[[str, Message], int | None] | None = None  # clients of a sum by what a party signs for
    # (client, federation, its private key, everybody's public keys, sums it opened) -> what a deployed node's questions begin with.
    node: Callable[[int, str, bytes, Mapping[int, bytes], Mapping[str, Any]], Any] | None = None
    counted: Callable[[Update], int] = lambda sent: 0  # of one client's sealed update, for `Mechanism.preview`


class Protection(NamedTuple):
    """Mechanisms in their sound order, and what of the federation they follow from."""

    mechanisms: tuple[Mechanism, ...]
    K: int  # clients that hold rows
    rounds: int  # of the run
    fraction: float  # of the clients that take part in a round
    seed: int
    smallest: int = 1  # rows of the client with the fewest
    testing: bool = False  # short keys, for tests

    @property
    def works(self) -> tuple[Work, ...]:
        """The work of its mechanisms, in their order."""
        return tuple(one.work() for one in self.mechanisms)

    @property
    def protocol(self) -> Protocol | None:
        """The protocol around an ask, where the server sees sums."""
        return next((work.protocol for work in self.works if work.protocol is not None), None)

    @property
    def masks(self) -> bool:
        """Whether the server sees sums in place of updates."""
        return any(one.sums_only for one in self.mechanisms)

    @property
    def noising(self) -> Noising | None:
        """The noise that is added, and its price."""
        return next((one.noise for one in self.mechanisms if one.noise is not None), None)

    @property
    def noise(self) -> Noise:
        """The source of its noise."""
        return Noise("os" if self.noising is None else self.noising.source, self.seed)

    @property
    def whole(self) -> bool:
        """Whether whole models are reduced in place of changes."""
        return any(one.whole for one in self.mechanisms)

    @property
    def secret_cohort(self) -> bool:
        """Whether who takes part must stay secret."""
        return self.noising is not None and self.noising.secret_cohort

    def delta(self) -> float:
        """Return the delta at which epsilon is stated."""
        return 0.0 if self.noising is None else self.noising.delta(self)

    def released(self, round: int, clients: Sequence[int]) -> list[Event]:
        """Return the ledger's lines of one ask, to be written before it is used."""
        found = [one.noise.released(self, round, clients) for one in self.mechanisms if one.noise is not None]
        return [event for event in found if event is not None]

    def check(self, run: str, round: int, what: str, message: Message) -> None:
        """ProtocolError for a request that the protocol does not let a party answer."""
        if self.protocol is not None and self.protocol.check is not None:
            self.protocol.check(run, round, what, message)

    @property
    def phases(self) -> Mapping[str, str]:
        """The questions of its protocol, and the phase in which the seconds of each are counted."""
        return {} if self.protocol is None else self.protocol.phases

    def phase(self, what: str, *, sealing: bool = False) -> str:
        """Return the phase in which the seconds of an ask are counted, or those of ``sealing`` its updates."""
        if sealing:
            return self.mechanisms[-1].phase or what
        return self.phases.get(what, what)


def drawn_by(source: Source) -> tuple[Extra, ...]:
    """Return what noise needs installed to be drawn."""
    return () if source == "seed" else (Extra("cryptography", "dp"),)


def number(x: float) -> float | str:
    """Return a number as JSON holds it: infinity as a word."""
    return x if x < float("inf") else "infinite"

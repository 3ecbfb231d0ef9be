"""The record of a privacy mechanism: its description (`Mechanism`) and its work on an update in a round (`Work`).

A builder returns the record from the keys of its table, as an algorithm's builder does. The defaults of the fields describe a
mechanism that changes nothing; a mechanism states only what differs. docs/mechanisms.md explains the fields. `Mechanism` is read
without torch, for example by the recommender. What needs torch belongs to `Work`, which `Mechanism.work` makes when a run begins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from pydantic import Field

from fedatlas.privacy.ledger import Event, Unit
from fedatlas.privacy.protocol import Closed, Doing, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from fedatlas.aggregation.reducers import Reducer
    from fedatlas.algorithm import Algorithm, Batch, Budget, Local, Question, Task, Transform, Update
    from fedatlas.privacy.ask_protocol import Place
    from fedatlas.privacy.own_rows import Columns, OwnRows, RowsHow, Total
    from fedatlas.tree import Tree

Source = Literal["os", "seed"]
Small = Annotated[float, Field(gt=0, lt=1)]
Bits = Annotated[int, Field(ge=2, le=40)]

WHO_CAME = ("clients", "selected", "bytes_up", "bytes_down", "bytes_peer", "bytes_privacy", "flops")
"""Fields of a row that reveal which clients took part, or how many."""

OWN_FIGURES = (
    "Figures of the model are the simulation's own: it opened each model with the clients' key. A real server holds a ciphertext and "
    "could not see them."
)
"""Of a run whose server keeps the model as a ciphertext (`Mechanism.closed`)."""

PHASES: Mapping[str, str] = {
    "keys": "making and exchanging keys",
    "noise": "clipping and noise at the clients",
    "mask": "masking",
    "share": "splitting updates into shares",
    "encrypt": "encrypting",
    "agree": "agreeing on who is in the sum",
    "aggregate": "the server's arithmetic",
    "decrypt": "opening the sum",
    "unmask": "handing over shares of the masks",
}
"""Phases of a protected round whose seconds are counted in addition to the algorithm's tasks, with their names for readers."""


class Noise(NamedTuple):
    """The source of random words: the operating system, a party's secret, or a seed that every reader of the file knows."""

    source: Source = "os"
    seed: int = 0  # seed of the run; unused under "os"
    secret: bytes = b""  # if the same has to be drawn again: the words follow from it and their key


class Learns(NamedTuple):
    """Knowledge of a client that each role gains under a mechanism, besides the models that all are told."""

    server: str
    clients: str  # any other client by itself
    colluding: str  # some of them together, or jointly with the server


class Words(NamedTuple):
    """Sentences about a mechanism for its report, its dry run and before a run."""

    done: str = ""  # first sentence of the report's section: HTML with the mechanism's keys in braces
    warnings: tuple[str, ...] = ()  # of the report
    notices: tuple[str, ...] = ()  # before a run
    accounts: Mapping[str, tuple[str, str]] = {}  # of the summary's "accounts": figure -> (its name, what it assumes)
    preview: Callable[[Mapping[str, Any]], Sequence[str]] = lambda found: ()  # of the findings of `Mechanism.preview`
    rows: Callable[[Mapping[str, Any]], Sequence[str]] = lambda found: ()  # of the findings of `Work.row_figures`
    covers: str = ""  # what an epsilon is about, if not a client or a whole row


class Noising(NamedTuple):
    """The noise of a mechanism and its cost. The ledger's events are the only source of epsilon."""

    source: Source
    # (.., round, clients) -> the ledger's line, or one for each client
    released: Callable[[Protection, int, Sequence[int]], Event | Sequence[Event] | None]
    delta: Callable[[Protection], float]  # the delta at which epsilon is stated
    for_all_rounds: bool = (
        False  # the noise of each round is calibrated to the number of rounds: `rounds` cannot change
    )
    epsilon: float | None = None  # epsilon of the whole run if the keys state it; else it follows from the events
    secret_cohort: bool = False  # the cohort is drawn in secret and must stay secret
    unit: Unit = "client"  # what noise is on: a client's whole update, or gradients of records inside its local steps
    of_rows: bool = False  # its epsilon is that of single rows, wherever its noise is
    # (.., rounds) -> at most what a client pays for a run, as lines of the ledger; None: `released` in every round.
    planned: Callable[[Protection, int], Sequence[Event]] | None = None


class Extra(NamedTuple):
    """A package that a plain installation does not include."""

    module: str
    name: str  # name of the extra: pip install "fedatlas[name]"
    sampled: bool = False  # needed only if the cohort is sampled
    package: str = ""  # its name in a package index, if it differs from the module's


class Asked(NamedTuple):
    """Choices of an experiment that a mechanism may refuse."""

    clients: int  # clients in total; 0: not known yet
    sampling: str
    fraction: float
    size: int | None
    compression: str  # name of the transform; "" if there is none
    largest: int = 0  # rows of the largest client, if clients weigh by their rows; 0: not known yet


class Trial(NamedTuple):
    """Facts of a round that a dry run has played through."""

    parties: int
    largest: int  # rows of the largest client
    counted: int  # what `Protocol.counted` found in one client's updates


class Limits(NamedTuple):
    """Algorithms, choices and settings that a mechanism does not work with, and the reasons."""

    alone: str = ""  # why it cannot be combined with other mechanisms
    why_not: Callable[[Algorithm], str] = lambda algorithm: ""  # why it cannot protect an algorithm; "" if it can
    refuses: Callable[[Asked], str] = lambda asked: (
        ""
    )  # an objection to what the experiment file asks for; "" if there is none
    columns: tuple[str, ...] = ()  # its keys that apply if parties hold columns; () if it does not support columns
    labels: tuple[
        str, ...
    ] = ()  # of one that changes rows: its keys that apply to the label of parties that hold columns
    deployed: bool = False  # runs between real parties
    undeployed: str = ""  # why its keys forbid that, if others would allow it, and what to write
    masks: str = ""  # why it needs another mechanism that hides what single clients send
    extras: tuple[Extra, ...] = ()


class Mechanism(NamedTuple):
    """A mechanism: facts and words, read without torch."""

    name: str
    keys: Mapping[str, Any]  # keys of its table, defaults included
    place: int  # position in the sound order: rows before the run 0 and below, clip 1, noise 2, noise at the server 3, encrypt 4, mask 5
    # who has to be trusted: nobody, clients not to collude, the server, several servers not to collude
    trust: Literal["nobody", "clients", "server", "servers"]
    learns: Learns
    work: Callable[[], Work]
    words: Words = Words()
    phase: str = ""  # the one of `PHASES` in which clients seal an update; "": the task itself
    sums_only: Literal["", "partly", "wholly"] = ""  # the server sees sums of updates instead of single ones
    whole: bool = False  # acts on whole models; else on changes relative to what a client was told
    acts_on: Literal["updates", "rows"] = (
        "updates"  # "rows": only on a party's rows, before anything is computed from them
    )
    noise: Noising | None = None
    joins: Literal["", "party", "all"] = ""  # whose other rows a changed row follows from as well
    blind: bool = False  # the server does not know how rows were changed, so that it has none to judge by
    entered: Callable[[], Event] | None = None  # the ledger's line of changed rows, written before round 1
    hides: tuple[
        str, ...
    ] = ()  # fields of a row that nobody in a real federation would know, or that reveal hidden values
    # (.., the run's rows, clients' sizes, the ledger's events) -> additional figures of the run's summary.
    figures: Callable[[Protection, Sequence[Any], Mapping[int, int], Sequence[Event]], Mapping[str, Any]] | None = None
    preview: Callable[[Trial], Mapping[str, Any]] | None = None  # additional figures of a dry run
    named: Callable[[Sequence[str]], Mechanism] | None = (
        None  # a check of the same kind once the model's parameters have names
    )
    # (clients, sums that are opened at most) -> the same for such a run. ConfigError if that is more than its keys stand.
    sized: Callable[[int, int], Mechanism] | None = None
    draws: bool = False  # its protocol draws noise from the operating system
    closed: bool = False  # the server keeps the model as a ciphertext that only clients open
    limits: Limits = Limits()
    # name of a mechanism that hides single updates -> (this one, that one) -> this one beside it, in spite of `Limits.alone`
    under: Mapping[str, Callable[[Mechanism, Mechanism], Mechanism]] = {}

    @property
    def repeats(self) -> bool:
        """Whether a repeated run ends with the same bits."""
        return not self.draws and (self.noise is None or self.noise.source == "seed")


Memory = Mapping[str, Any]
"""The state of a mechanism from round to round: tensors and plain values, in the server's state under `ask_protocol.MEMORY`."""


class Remembering(NamedTuple):
    """Functions of a mechanism with a memory at the server. They replace `Work.release` and `Noising.released`."""

    start: Callable[[Protection], Memory]
    # (memory, .., place, who was asked) -> the memory with this ask in it, and the ledger's lines of its release.
    enter: Callable[[Memory, Protection, Place, Sequence[int]], tuple[Memory, Sequence[Event]]]
    # (value, the memory that `enter` returned, .., place, algorithm) -> the value with noise, and the next memory.
    release: Callable[[Update, Memory, Protection, Place, Algorithm], tuple[Update, Memory]]
    word: Callable[[Memory], Mapping[str, Any]] = lambda memory: {}  # what it tells each client
    total: Callable[[Memory, Transform | None], Reducer] | None = (
        None  # in place of `Work.total`, if that depends on it
    )
    draws: bool = False  # whether repeatable draws follow from the memory, and not from the round


class Work(NamedTuple):
    """A mechanism at work: functions on an update in a round, or on a party's rows before the run."""

    # What a party does to the rows that it trains on, before anything is computed from them, if the mechanism `acts_on` rows.
    rows: Callable[[OwnRows, RowsHow], OwnRows] | None = None
    # The same for rows that are judged or predicted, by what the parties told; None: the model reads them as they are.
    new_rows: Callable[[OwnRows, RowsHow], OwnRows] | None = None
    # (columns, classes, sums over all parties of what is counted in their rows) -> plain values that all parties agree on before;
    # `rows` and `new_rows` are told them under `SERVER`.
    agree: Callable[[Columns, Sequence[str], Total], Mapping[str, Any]] | None = None
    # (the training rows of each client that has any, before and after) -> figures of a simulation's summary, under its name.
    row_figures: Callable[[Sequence[tuple[OwnRows, OwnRows]]], Mapping[str, Any]] | None = None
    # What a client does to its update before sending: to the changes, or to the model if the mechanism is `whole`.
    update: Callable[[Update, Protection, Doing], Update] | None = None
    protocol: Protocol | None = None  # replaces the sending of updates if `sums_only`
    # The server's sum that replaces the mean. It gets noise even if nobody came. `release` turns it into a mean.
    total: Callable[[Transform | None], Reducer] | None = None
    # (value, .., place, who answered, algorithm) -> the value with noise, as the server uses it.
    release: Callable[[Update, Protection, Place, tuple[int, ...], Algorithm], Update] | None = None
    # Local steps: (.., visit, budget, rows per batch, trained tensors) -> how its batches are drawn (`data.batches.Sampling`), and
    # (sum of clipped gradients of rows, params, batch) -> (loss, gradient).
    batches: Callable[[Protection, Doing, Budget, int, Tree], Any] | None = None
    gradient: Callable[[Callable[[Batch, float], tuple[Tensor, Tree]], Tree, Batch], tuple[Tensor, Tree]] | None = None
    memory: Remembering | None = None
    # What a client sends next to its update, for the server's sum only: plain values, found before `update` changes it.
    beside: Callable[[Update, Protection, Doing], Mapping[str, Any]] | None = None


class PublicWork(NamedTuple):
    """The local work of clients as far as all may know it: their rows, rows per batch, and the budget of a visit."""

    sizes: Mapping[int, int]  # client -> its rows
    batch_size: int
    budget: Budget
    options: Local | None = None  # of the task under way
    budgets: Mapping[int, Budget] = {}  # clients whose work of this ask differs

    @property
    def n(self) -> int:
        """Rows of all clients together."""
        return sum(self.sizes.values())

    def budget_of(self, client: int) -> Budget:
        """Return a client's work in a visit, as `engine.job.budget_of` does."""
        own, given = self.options, self.budgets.get(client, self.budget)
        if own is None or (own.steps is None and own.epochs is None):
            return given
        return given._replace(epochs=own.epochs, steps=own.steps, examples=None)

    def batch_of(self) -> int:
        """Return the rows per batch."""
        own = None if self.options is None else self.options.solver.batch_size
        return self.batch_size if own is None else own


class Protection(NamedTuple):
    """Mechanisms in their sound order, and the facts of the federation that they depend on."""

    mechanisms: tuple[Mechanism, ...]
    K: int  # clients that hold rows
    rounds: int  # of the run
    fraction: float  # share of the clients that take part in a round
    seed: int
    smallest: int = 1  # rows of the smallest client
    testing: bool = False  # short keys, for tests
    training: PublicWork | None = None  # None: not known yet, as before data are read
    guarded: bool = False  # whether rounds may be rejected or rolled back

    def during(self, task: Task | Question, budgets: Mapping[int, Budget]) -> Protection:
        """Return the same with the work of an ask, from which noise inside local steps is accounted."""
        options = getattr(task, "options", None)
        if self.training is None:
            return self
        return self._replace(training=self.training._replace(options=options, budgets=budgets))

    @property
    def works(self) -> tuple[Work, ...]:
        """The work of its mechanisms, in their order."""
        return tuple(one.work() for one in self.mechanisms)

    @property
    def protocol(self) -> Protocol | None:
        """The protocol around an ask, if the server sees only sums."""
        return next((work.protocol for work in self.works if work.protocol is not None), None)

    @property
    def closed(self) -> Closed | None:
        """The parties' part if the server keeps the model as a ciphertext."""
        return None if self.protocol is None else self.protocol.closed

    @property
    def masks(self) -> bool:
        """True if the server sees sums instead of updates."""
        return any(one.sums_only for one in self.mechanisms)

    def reducers(self, transform: Transform | None) -> frozenset[str]:
        """Return the names of the reducers of protected updates that are not the algorithm's."""
        totals = {work.total(transform).name for work in self.works if work.total is not None}
        return frozenset(totals | ({self.protocol.reducer} if self.protocol is not None else set()))

    @property
    def noising(self) -> Noising | None:
        """The added noise and its cost."""
        return next((one.noise for one in self.mechanisms if one.noise is not None), None)

    @property
    def noises_sums(self) -> bool:
        """True if the server adds noise to a sum, also to one that nobody is in."""
        return any((work.release or work.memory) and (work.total or self.protocol) for work in self.works)

    @property
    def noise(self) -> Noise:
        """The source of its noise."""
        return Noise("os" if self.noising is None else self.noising.source, self.seed)

    @property
    def whole(self) -> bool:
        """True if whole models are reduced instead of changes."""
        return any(one.whole for one in self.mechanisms)

    @property
    def secret_cohort(self) -> bool:
        """True if the cohort must stay secret."""
        return self.noising is not None and self.noising.secret_cohort

    def delta(self) -> float:
        """Return the delta at which epsilon is stated."""
        return 0.0 if self.noising is None else self.noising.delta(self)

    def released(self, round: int, clients: Sequence[int]) -> list[Event]:
        """Return the ledger's lines of one ask, to be written before it is used."""
        found = [one.noise.released(self, round, clients) for one in self.mechanisms if one.noise is not None]
        each = [[lines] if isinstance(lines, Event) else lines or () for lines in found]
        return [event for lines in each for event in lines]

    def planned(self, rounds: int) -> list[Event]:
        """Return at most what a client pays for a run of so many rounds, as lines of the ledger.

        Of noise inside local steps there are lines of all clients, since their rows differ.
        """
        own = None if self.noising is None else self.noising.planned
        if own is not None:
            return [*own(self, rounds)]
        inside = self.noising is not None and self.noising.unit == "record" and self.training is not None
        clients = tuple(self.training.sizes) if inside and self.training is not None else (0,)
        return [event for number in range(1, rounds + 1) for event in self.released(number, clients)]

    def told(self, memories: Mapping[str, Memory]) -> dict[str, Any]:
        """Return what the mechanisms tell each client of an ask."""
        kept = {one.name: work.memory for one, work in zip(self.mechanisms, self.works, strict=True) if work.memory}
        return {
            key: x for name, one in kept.items() for key, x in one.word(memories.get(name) or one.start(self)).items()
        }

    def check(self, requests: Sequence[Any], session: Callable[[int], Any]) -> None:
        """Raise ProtocolError for a request that the protocol forbids a party to answer. ``session`` gives a client's session."""
        known = dict[int, Any]()
        if self.protocol is not None and self.protocol.check is not None:
            for request in requests:
                self.protocol.check(request, session(request.client), known)

    @property
    def phases(self) -> Mapping[str, str]:
        """The questions of its protocol, and the phase in which the seconds of each are counted."""
        return {} if self.protocol is None else self.protocol.phases

    def phase(self, what: str, *, sealing: bool = False) -> str:
        """Return the phase in which the seconds of an ask, or of ``sealing`` its updates, are counted."""
        if sealing:
            return self.mechanisms[-1].phase or what
        return self.phases.get(what, what)


def on_rows(mechanisms: Sequence[Mechanism]) -> tuple[Mechanism, ...]:
    """Return the mechanisms that change a party's rows before the run."""
    return tuple(one for one in mechanisms if one.acts_on == "rows")


def on_updates(mechanisms: Sequence[Mechanism]) -> tuple[Mechanism, ...]:
    """Return the mechanisms that act in rounds."""
    return tuple(one for one in mechanisms if one.acts_on == "updates")


def entered(mechanisms: Sequence[Mechanism]) -> list[Event]:
    """Return the ledger's lines of changed rows, which are written before round 1."""
    return [one.entered() for one in on_rows(mechanisms) if one.entered is not None]


def from_memory(how: Protection, round: int, clients: Sequence[int]) -> None:
    """Return no line for the ledger: those of a mechanism with a memory follow from it (`Remembering.enter`)."""


def drawn_by(source: Source) -> tuple[Extra, ...]:
    """Return the extras needed to draw noise from this source."""
    return () if source == "seed" else (Extra("cryptography", "dp"),)


def no_noise(name: str, multiplier: float) -> tuple[str, ...]:
    """Return the notice before a run whose noise multiplier is 0; () for any other."""
    return () if multiplier else (f"'{name}': noise_multiplier = 0 adds no noise, and no privacy.",)


def number(x: float) -> float | str:
    """Return a number as JSON can hold it: infinity as a word."""
    return x if x < float("inf") else "infinite"

"""Rehearse protected rounds for a dry run: the real protocol among all clients of a round, with one client's update.

One client trains without protection; its update is sealed once and represents every client's. All phases run with as
many clients as a round asks, so bytes are those of a run. Seconds are measured: making all keys, sealing one update
(times the number of clients), and opening the sum. The opened sum is discarded, the keys are made only for the
rehearsal, and neither a ledger nor a journal is written.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import torch

from fedatlas.aggregation.reducers import Closing, Reducer
from fedatlas.algorithm import Ask, Question, Replies, Round, State, Task, Update
from fedatlas.course.timing import Sampled
from fedatlas.engine.executors import Plan, make_executor
from fedatlas.errors import PrivacyError
from fedatlas.federation.asks import hidden
from fedatlas.federation.client_states import PartyState
from fedatlas.federation.cost import AGGREGATE, DECRYPT, Cost
from fedatlas.federation.in_process import InProcess
from fedatlas.federation.link import Link, Observer, Request
from fedatlas.federation.sealing import told
from fedatlas.federation.secrets import Keyring
from fedatlas.federation.server import ServerHalf
from fedatlas.federation.start import RoundStart
from fedatlas.privacy.ask_protocol import CHAIN, RoundClosed, SessionFailed
from fedatlas.privacy.mechanism import Protection
from fedatlas.privacy.protection import protect, unaided
from fedatlas.privacy.protocol import Doing
from fedatlas.rounds import federated
from fedatlas.setup.assembly import Setup, first_server
from fedatlas.tree import Tree
from fedatlas.wire import codec

NAME = "dry run"


class Rehearsed(NamedTuple):
    """Costs of a first and a second round with all their clients, and seconds for the keys before them."""

    costs: list[Cost]
    seconds_keys: float
    counted: int = 0  # what `Protocol.counted` found in one client's traffic of a round
    refused: str = ""  # why its client refused to seal its update, as it would in the run


class Last(Observer):
    """Observer that copies the last opened update before its memory is reused."""

    def __init__(self) -> None:
        self.update: Update = {}

    def opened(self, request: Request, update: Update) -> None:  # noqa: ARG002
        """Keep a copy of the update."""
        self.update = codec.decode(codec.encode(dict(update)), own=True)


class Rehearsal(ServerHalf):
    """Adds the cost of each protected ask's protocol to the costs of an unprotected round, which `sampled` finds."""

    def __init__(self, setup: Setup, link: Link, keyring: Keyring) -> None:
        half = (setup.bench.algorithm, link, setup.sizes, setup.seed)
        super().__init__(*half, transform=setup.bench.transform, guard=keyring.guard(NAME))
        self.last = Last()
        self.sampled = Sampled(setup, link, (self.last,))
        self.sampled.guard = self.guard
        self.keyring = keyring
        self.updates: dict[str, Update] = {}  # by task
        self.played: _Played | None = None  # the ask whose protocol is under way
        self.wide, self.refused = 0, ""
        self.model: Any = None  # what stands in a model's place after the first sum, if only clients open it

    def begin(self, start: RoundStart) -> None:
        super().begin(start)
        self.sampled.now = self.now  # both count the costs of one round together

    def ask(self, ask: Ask) -> Replies:
        """Return the replies without protection.

        The protocol then runs on copies of one update, and only its costs count.
        """
        found, task = self.answer(ask), self.algorithm.tasks[ask.what]
        update = self.updates.setdefault(ask.what, self.last.update)
        if ask.to and update and hidden(ask, task):
            self.played = _Played(self, ask, task, update)
            try:
                with suppress(SessionFailed, RoundClosed):  # copies of a masked update do not sum
                    value = self._guarded(ask).value
                    self.model = value["model"] if value and self.keyring.how.closed is not None else None
            except PrivacyError as error:
                self.refused = self.refused or str(error)
            self.wide, self.played = self.wide + self.played.counted, None
        return found

    def answer(self, ask: Ask) -> Replies:
        if self.played is None:
            return self.sampled.answer(ask)
        replies, spent = self.played.phase(ask)
        self.now.cost = _plus(self.cost, spent)
        return replies


class _Played:
    """The protocol of one ask, with all its parties played here."""

    def __init__(self, server: Rehearsal, ask: Ask, task: Task | Question, update: Update) -> None:
        self.server, self.ask, self.task, self.update, self.how = server, ask, task, update, server.keyring.how
        self.sessions = {k: server.keyring.session(k) for k in ask.to}
        self.counted = 0
        self.copied = None if self.how.protocol is None else self.how.protocol.copied

    def phase(self, inner: Ask) -> tuple[Replies, Cost]:
        """Return the replies to an ask of the protocol, and its cost beyond an unprotected ask."""
        return self._questions(inner) if inner.what in self.how.phases else self._work(inner)

    def _questions(self, inner: Ask) -> tuple[Replies, Cost]:
        began, each, up, down = time.perf_counter(), {}, 0, 0
        question = self.server.algorithm.tasks[inner.what]
        assert isinstance(question, Question)
        alike = self.copied is not None  # then one party's answer stands for all
        for k in inner.to[:1] if alike else inner.to:
            message: Any = inner.messages[k]
            if k not in self.sessions:  # a party that was not asked to work
                self.sessions[k] = self.server.keyring.session(k)
            each[k], _, self.sessions[k] = question.answer(None, None, message, {}, self.sessions[k])  # type: ignore[arg-type]
            up, down = up + codec.size(dict(each[k])), down + codec.size(dict(message))
        times = len(inner.to) if alike else 1
        each, up, down = dict.fromkeys(inner.to, each[inner.to[0]]) if alike else each, up * times, down * times
        spent = {self.how.phase(inner.what): times * (time.perf_counter() - began)}
        return Replies(inner.to, None, each), Cost(up, down, 0, up + down, spent, messages=2 * len(inner.to))

    def _work(self, inner: Ask) -> tuple[Replies, Cost]:
        server, first, many = self.server, inner.to[0], len(inner.to)
        how = self.how
        began = time.perf_counter()
        sent = self._sealed(how, inner, first)
        seconds = {how.phase(inner.what, sealing=True): many * (time.perf_counter() - began)}
        protocol = how.protocol
        self.counted = 0 if protocol is None else protocol.counted(sent)
        if protocol is not None and protocol.staged:
            for k in inner.to[1:]:  # their sessions continue with a single number each, where no more is sent later
                if protocol.later:
                    self._sealed(how, inner, k)
                    continue
                one, doing = {"model": Tree({"x": torch.zeros(1)})}, Doing(k, server.now.start.round, inner.what, 0, 1)
                _, self.sessions[k], _ = protocol.seal(one, doing, inner.words[k], self.sessions[k])
        copies = self._copies(inner, sent)
        began = time.perf_counter()
        value = _reduced(inner, copies, self.update)
        seconds[AGGREGATE] = time.perf_counter() - began
        words = sum(codec.size(self._word(inner, k)) + self._anchor(k) + self._longer(k) for k in inner.to)
        seconds |= self._opening(inner)
        bare = codec.size(self.update if how.masks else unaided(sent, self.update))
        up = many * (codec.size(dict(sent)) - bare)
        return Replies(inner.to, value, {}), Cost(up, words, 0, up + words, seconds)

    def _copies(self, inner: Ask, sent: Update) -> dict[int, Update]:
        """Return a sealed update as if each client of an ask had sealed it."""
        out = dict.fromkeys(inner.to, sent)
        if (copied := self.copied) is not None:
            for k in inner.to[1:]:
                out[k], self.sessions[k] = copied(sent, inner.words[k], self.sessions[k])
        return out

    def _word(self, inner: Ask, k: int) -> dict[str, Any]:
        """Return what a client is told besides its message."""
        return {**inner.words[k], CHAIN: bool(self.ask.route.anchors)}

    def _anchor(self, k: int) -> int:
        """Return the bytes of the model that a client at the end of a chain needs in order to send its change."""
        message, route = self.ask.messages[k], self.ask.route
        if k not in route.anchors or route.sender.get(k) == k:
            return 0
        return codec.size(told(message, route.anchors[k])) - codec.size(dict(message))

    def _longer(self, k: int) -> int:
        """Return by how many bytes a model that the server keeps as a ciphertext is longer than the plain one."""
        message = dict(self.ask.messages[k])
        return (
            0
            if self.server.model is None
            else codec.size({**message, "model": self.server.model}) - codec.size(message)
        )

    def _opening(self, inner: Ask) -> dict[str, float]:
        """Return the seconds in which every client opens such a model."""
        first, closed = inner.to[0], self.how.closed
        if closed is None or self.server.model is None:
            return {}
        began = time.perf_counter()
        closed.opened(self.server.model, self.ask.messages[first]["model"], 1, self.sessions[first])
        return {DECRYPT: len(inner.to) * (time.perf_counter() - began)}

    def _sealed(self, how: Protection, inner: Ask, k: int) -> Update:
        server, rows = self.server, self.server.sizes[k]
        doing = Doing(k, server.now.start.round, inner.what, 0, rows, word=inner.words[k])
        memory: State | None = None if server.transform is None else {}
        message = told(self.ask.messages[k], self.ask.route.anchors.get(k))
        given = (how, server.transform, self.task, message, self.update, memory, torch.Generator())
        done = protect(*given, self._word(inner, k), self.sessions[k], doing)
        self.sessions[k] = done.session
        return done.sent


def _reduced(inner: Ask, copies: Mapping[int, Update], update: Update) -> Update | None:
    """Reduce as many copies of a sealed update as the server would receive."""
    if not isinstance(inner.reduce, Reducer):
        return update
    total: Any = None
    for k in inner.to:
        total = inner.reduce.add(total, inner.reduce.lift(k, copies[k], 1.0))
    value: Update | None = inner.reduce.close(total, Closing(inner.to, lambda part: 1.0, None)).value
    return value


def _plus(one: Cost, other: Cost) -> Cost:
    total = {
        key: getattr(one, key) + getattr(other, key) for key in ("bytes_up", "bytes_down", "bytes_privacy", "messages")
    }
    return one._replace(**total).spending(other.seconds)


def rehearse(setup: Setup, plan: Plan, drawn: Round) -> Rehearsed:
    """Rehearse a first and a second round of these clients under ``[[privacy]]``; one client's work represents all."""
    how = setup.bench.protection
    assert how is not None
    began = time.perf_counter()
    keyring = Keyring(how, len(setup.sizes), NAME)
    made = how.masks and keyring.keys is not None and keyring.keys.public is not None
    seconds_keys = time.perf_counter() - began if made else 0.0
    executor = make_executor(plan._replace(workers=1), setup.bench, setup.sizes.values())
    both = InProcess(setup.bench, executor, PartyState(), setup.sizes, setup.seed, compares=False)
    asking, server, algorithm = Rehearsal(setup, both, keyring), first_server(setup), setup.algorithm
    costs = []
    try:
        for number in (1, 2):
            asking.sampled.known.clear()  # a client's traffic may change after its first round
            asking.updates.clear()
            generator = (algorithm.rounds or federated)(algorithm, server, drawn._replace(number=number))
            server = dict(asking.drive(generator, RoundStart(number, setup.config.local.lr)))
            costs.append(asking.cost)
    finally:
        both.close()
    if how.closed is not None:  # all rounds but the first send a ciphertext, whoever takes part
        costs = costs[1:] * 2
    return Rehearsed(costs, seconds_keys, asking.wide // len(costs), asking.refused)

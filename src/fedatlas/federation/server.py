"""The server half: drives the generator of a round, sends what it asks as requests over a link, and reduces the replies.

It sees no rows and no client's state. Replies may come in any order, late or never: sums run in the order of the seats, with the
coefficients of those asked; where some are lost one factor a part mends a mean (`Mend`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from fedatlas.aggregation import REDUCERS
from fedatlas.aggregation.reducers import Closing, Reducer, part_of
from fedatlas.algorithm import (
    SERVER,
    Algorithm,
    Ask,
    Message,
    Question,
    Replies,
    Round,
    RoundGenerator,
    State,
    Task,
    Transform,
    Update,
    Weights,
)
from fedatlas.deploy import codec
from fedatlas.errors import ConfigError, ProtocolError
from fedatlas.federation.cost import QUESTIONS, Cost, phases_of, server_phase
from fedatlas.federation.link import Link, Observer, Reply, Request
from fedatlas.federation.sealing import sealed, told, unseal
from fedatlas.privacy import encrypted_sum, noised_sum, paillier, secure_sum
from fedatlas.privacy.asking import Asking, Journal, Place, bases, journalled, restored
from fedatlas.privacy.mechanisms import Paillier, SecAgg
from fedatlas.privacy.protection import Protection
from fedatlas.registry import find
from fedatlas.rng import torch_stream
from fedatlas.tree import Tree


class Guard(NamedTuple):
    """What the server half of a protected run holds: mechanisms, public keys, the journal of opened sums, the ledger."""

    protection: Protection
    federation: str = ""
    identities: Mapping[int, bytes] = {}
    public: paillier.PublicKey | None = None
    journal: Journal | None = None
    note: noised_sum.Note = lambda events: None
    workers: int = 1

    def around(self, server: ServerHalf, ask: Ask, place: Place) -> Asking:
        """The protocol of an ask."""
        how = self.protection
        if (mask := how.of(SecAgg)) is not None:
            made = secure_sum.around(mask, self.identities, self.federation, ask, place)
            return journalled(ask, place, made, partial(self._released, place.round))
        if (lock := how.of(Paillier)) is not None:
            assert self.public is not None
            made = encrypted_sum.around(lock, self.public, ask, place, self.workers)
            return journalled(ask, place, made, partial(self._released, place.round))
        zero = partial(zero_update, server, ask.what)
        return noised_sum.around(how, server.transform, server.algorithm, zero, ask, place, self.note)

    def _released(self, number: int, clients: tuple[int, ...]) -> None:
        """Local noise inside a sum: its lines in the ledger before the sum is used."""
        if self.protection.noises:
            self.note(self.protection.released(number, clients))


def zero_update(server: ServerHalf, what: str) -> Update:
    """An update that changes nothing: of the model, and of the parts that follow it."""
    task, model = server.algorithm.training(what), Tree(server.told()["model"])
    return {part: model.zeros() for part in ("model", *task.sealing.tracked)}


class ServerHalf:
    """Answers the asks of rounds over a link. Keeps nothing between rounds."""

    def __init__(
        self,
        algorithm: Algorithm,
        link: Link,
        sizes: Mapping[int, int],
        seed: int,
        *,
        run: str = "",
        transform: Transform | None = None,
        raw_bytes: int = 0,  # of all rows, where the algorithm sends them
        observers: Iterable[Observer] = (),
        deadline: float | None = None,  # seconds an ask waits for its replies
        guard: Guard | None = None,
    ) -> None:
        self.algorithm, self.link, self.sizes, self.seed, self.run = algorithm, link, sizes, seed, run
        self.transform, self.raw_bytes, self.deadline = transform, raw_bytes, deadline
        self.observers, self.guard = tuple(observers), guard
        self.leaving: Mapping[int, str] = {}  # clients of this round that leave, and the phase in which
        self.told: Callable[[], Message] = (
            dict  # what a client of this round would be told, for a round that nobody came to
        )
        self.n, self.K = sum(sizes.values()), len(sizes)
        self.cost = Cost()
        self.attempt = 0  # how often this round was begun anew
        self.asks = 0  # of this round, so far
        self.asked: set[int] = set()  # of this round
        self.lost: set[int] = set()  # those who owe a reply

    @property
    def counted(self) -> frozenset[int]:
        """Who was asked in this round and answered every time."""
        return frozenset(self.asked - self.lost)

    def drive(self, generator: RoundGenerator, number: int, lr: float, attempt: int = 0) -> State:
        """Runs one round to its end: sends the generator the replies to each ask. The caller commits it.

        What an attempt before this one has cost was spent all the same.
        """
        self.cost = self.cost.in_vain() if attempt else Cost()
        self.attempt, self.asks, self.asked, self.lost = attempt, 0, set(), set()
        replies: Replies | None = None
        while True:
            try:
                ask = next(generator) if replies is None else generator.send(replies)
            except StopIteration as end:
                state: State = end.value
                return state
            replies = self.answer(ask, number, lr) if self.guard is None else self._guarded(ask, number, lr)

    def _guarded(self, ask: Ask, number: int, lr: float) -> Replies:
        """The replies to an ask of a protected run: by the protocol of its mechanisms, where the server would see something."""
        guard, task = self.guard, self.algorithm.tasks.get(ask.what)
        assert guard is not None
        seen = ask.route.via == "server" and SERVER not in ask.to and ask.reduce in {"mean", "sum"}
        if task is None or not seen or (isinstance(task, Task) and task.sealing.silent):
            replies = self.answer(ask, number, lr)
            if seen and replies.value:
                raise ProtocolError(f"'{self.algorithm.name}' says that '{ask.what}' sends nothing, but it does.")
            return replies
        if not ask.to and not guard.protection.secret_cohort:
            return Replies((), None, {})
        protocol = guard.around(self, ask, self._place(ask, number, task))
        inner, base = next(protocol), None
        while True:
            replies = self.answer(inner, number, lr)
            if inner.what == ask.what:
                base = inner.messages
            try:
                with self._timed(server_phase(inner.what)):
                    inner = protocol.send(replies)
            except StopIteration as end:
                found: Replies = end.value
                break
        self.leaving = {}
        if ask.reduce == "mean":
            self._weigh(ask, found.clients)
        if found.value is None or guard.protection.whole:
            return found
        k = next((k for k in found.clients if k in (base or {})), None)
        told_ = self.told() if k is None else told(ask.messages[k], ask.route.anchors.get(k))
        return found._replace(value=restored(found.value, bases(task, told_, found.value), exact=True))

    def _place(self, ask: Ask, number: int, task: Task | Question) -> Place:
        sums = task.sums if isinstance(task, Task) else ()
        asked = tuple(sorted({*ask.to, *self.leaving}))
        return Place(
            run=self.run,
            round=number,
            attempt=self.attempt,
            number=self.asks,
            task=task,
            sizes=self.sizes,
            n=self.n,
            K=self.K,
            coefficients=coefficients_of(ask, asked, sums),
            mend=lambda answered: Mend(ask, asked, answered, sums),
            leaving=self.leaving,
            journal=self.guard.journal if self.guard else None,
        )

    def _weigh(self, ask: Ask, answered: tuple[int, ...]) -> None:
        """Notes the coefficients of a protected mean, where they are no secret."""
        if answered and not (self.guard and self.guard.protection.secret_cohort):
            found = coefficients_of(ask, answered, ())
            self.cost = self.cost._replace(weights={k: part_of(c, "model") for k, c in found.items()})

    def commit(self, number: int, counted: Collection[int] | None = None) -> None:
        """Tells the parties that the round has landed and who counted; with nobody all go back to the state before it."""
        self.link.commit(self.run, number, self.counted if counted is None else counted)

    def answer(self, ask: Ask, number: int, lr: float) -> Replies:
        """The replies to one ask, its updates reduced as they come."""
        started = time.perf_counter()
        reducer = reducer_of(ask)
        check_ask(ask, reducer, self.algorithm)
        clients = tuple(sorted(ask.to, key=lambda k: ask.route.seats.get(k, k)))
        task = self.algorithm.tasks[ask.what]
        sums = task.sums if isinstance(task, Task) else ()
        coefficients = coefficients_of(ask, clients, sums)
        requests = {k: self._request(ask, reducer, k, number, lr) for k in clients}
        self.asks += 1
        total: Any = None
        sizes: dict[int, int] = {}
        more = 0  # bytes up than without protection
        worked = sealed_for = adding = 0.0  # seconds of the clients' work, of their sealing, of the server's sum
        for reply in in_seats(self._replies(requests), clients):
            sizes[reply.client] = codec.size(reply.update)
            worked, sealed_for = worked + reply.seconds, sealed_for + reply.sealing
            more += sizes[reply.client] - reply.bare if requests[reply.client].word is not None else 0
            update = self._opened(requests[reply.client], reply.update)
            began = time.perf_counter()
            total = reducer.add(total, reducer.lift(reply.client, update, coefficients[reply.client]))
            adding += time.perf_counter() - began
        answered = tuple(k for k in clients if k in sizes)
        self.asked.update(k for k in clients if k != SERVER)
        self.lost.update(set(clients) - set(answered))
        mend = Mend(ask, clients, answered, sums)
        reduced = reducer.close(total, Closing(answered, mend, ask.mixing))
        if ask.reduce == "mean":
            weights = {k: part_of(coefficients[k], "model") * mend("model") for k in answered}
            self.cost = self.cost._replace(weights=weights)
        value = self._finalized(ask, reduced.value, requests, number)
        self._count(ask, requests, sizes, number, more)
        how = None if self.guard is None else self.guard.protection
        spent = phases_of(ask, how, time.perf_counter() - started, adding, worked, sealed_for)
        self.cost = self.cost.spending(spent)
        return Replies(answered, value, reduced.each)

    def _request(self, ask: Ask, reducer: Reducer, k: int, number: int, lr: float) -> Request:
        return Request(
            run=self.run,
            round=number,
            attempt=self.attempt,
            number=self.asks,
            client=k,
            what=ask.what,
            message=ask.messages[k],
            lr=lr,
            K=self.K,
            n=self.n,
            reduce=reducer.name,
            single=reducer.single,
            budget=ask.budgets.get(k),
            visits=ask.route.visits.get(k, 0),
            anchor=ask.route.anchors.get(k),
            word=ask.words.get(k),
            architecture=ask.architectures.get(k, ""),
            sender=ask.route.sender.get(k),
            peer=ask.route.via == "peer",
        )

    def _replies(self, requests: Mapping[int, Request]) -> Iterator[Reply]:
        """The first reply of each party that was asked, as they come; what answers an earlier ask is passed over."""
        for observer in self.observers:
            for request in requests.values():
                observer.asked(request)
        heard: set[int] = set()
        for reply in self.link(list(requests.values()), self.deadline) if requests else ():
            known = requests.get(reply.client)
            if known is None or reply.ask != known.ask or reply.client in heard:
                continue
            heard.add(reply.client)
            for observer in self.observers:
                observer.replied(known, reply.update)
            yield reply

    def _opened(self, request: Request, update: Update) -> Update:
        """A client's update, opened where it was sealed."""
        task = self.algorithm.tasks[request.what]
        if request.word is not None:
            return update  # its observers see what the protocol opens
        if isinstance(task, Task) and sealed(self.transform, task, request):
            update = unseal(self.transform, task, told(request.message, request.anchor), update)
        for observer in self.observers:
            observer.opened(request, update)
        return update

    def _finalized(self, ask: Ask, value: Update | None, requests: Mapping[int, Request], number: int) -> Update | None:
        """The reduced value after `Transform.finalize`."""
        transform = self.transform
        if value is None or transform is None or transform.finalize is None:
            return value
        if not all(sealed(transform, self.algorithm.tasks[ask.what], request) for request in requests.values()):
            return value
        clients = tuple(requests)
        drawn = Round(number, clients, self.K, self.n, {k: self.sizes.get(k, self.n) for k in clients})
        return transform.finalize(value, drawn, torch_stream(self.seed, "compression", number, "server", ask.what))

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        """What the server computes inside is spent on this phase."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.cost = self.cost.spending({phase: time.perf_counter() - began})

    def _count(
        self, ask: Ask, requests: Mapping[int, Request], sizes: Mapping[int, int], number: int, more: int
    ) -> None:
        known: dict[tuple[int, ...], int] = {}
        task = self.algorithm.tasks[ask.what]
        down = {"server": 0, "peer": 0, "nobody": 0}  # bytes by who hands the messages over
        words = 0
        for k, request in requests.items():
            key = tuple(id(value) for value in request.message.values())
            if key not in known:
                known[key] = codec.size(dict(request.message))
            by = ask.route.sender.get(k)
            words += codec.size(dict(request.word)) if request.word else 0
            down["server" if by is None else "nobody" if by == k else "peer"] += known[key]
            if by != k and request.anchor is not None and sealed(self.transform, task, request):
                down["server"] += codec.size(told(request.message, request.anchor)) - known[key]
        down["server"] += words
        own = sum(sizes.values()) + sum(down.values()) if ask.what in QUESTIONS else words + more
        c, mine = self.cost, tuple(requests) == (SERVER,)
        peer = down["peer"] + heard_by_others(ask, sizes)
        self.cost = c._replace(
            bytes_up=c.bytes_up + (0 if ask.route.via == "peer" or mine else sum(sizes.values())),
            bytes_down=c.bytes_down + (0 if mine else down["server"]),
            bytes_peer=c.bytes_peer + peer,
            bytes_privacy=c.bytes_privacy + own,
        )
        if self.algorithm.card.sends != "messages":  # a baseline: all rows go up before round 1, or nothing ever does
            self.cost = self.cost._replace(bytes_up=self.raw_bytes if number == 1 else 0, bytes_down=0)


class Mend:
    """The factor by which a part of a mean is multiplied where clients asked were lost.

    p_k(those who answered) / p_k(those asked), which is the same for every k of those who answered; exactly 1 where nobody is lost,
    and for a fixed denominator.
    """

    def __init__(self, ask: Ask, clients: tuple[int, ...], answered: tuple[int, ...], sums: Collection[str]) -> None:
        self.ratio: tuple[Mapping[int, Any], Mapping[int, Any]] | None = None
        if ask.weights is not None and answered and len(answered) < len(clients):
            self.ratio = coefficients_of(ask, answered, sums), coefficients_of(ask, clients, sums)

    def __call__(self, part: str) -> float:
        """Of a part."""
        if self.ratio is None:
            return 1.0
        now, asked = self.ratio
        k = max(now, key=lambda k: abs(part_of(asked[k], part)))  # of a client without weight nothing could be said
        return part_of(now[k], part) / part_of(asked[k], part) if part_of(asked[k], part) else 1.0


def in_seats(replies: Iterator[Reply], clients: tuple[int, ...]) -> Iterator[Reply]:
    """Replies in the order of the seats: who comes early waits, in memory of its own, for those before it who are not lost."""
    early: dict[int, Reply] = {}
    place = {k: i for i, k in enumerate(clients)}
    at = 0
    for reply in replies:
        if place[reply.client] != at:
            early[reply.client] = reply._replace(update=codec.decode(codec.encode(dict(reply.update))))
            continue
        yield reply
        at += 1
        while at < len(clients) and clients[at] in early:
            yield early.pop(clients[at])
            at += 1
    yield from (early[k] for k in clients if k in early)


def reducer_of(ask: Ask) -> Reducer:
    """The reducer that an ask names, or brings."""
    if isinstance(ask.reduce, Reducer):
        return ask.reduce
    try:
        made: Reducer = find("reducers", REDUCERS, ask.reduce)()
    except ConfigError as error:
        raise ProtocolError(str(error)) from None
    return made


def check_ask(ask: Ask, reducer: Reducer, algorithm: Algorithm) -> None:
    """ProtocolError for an ask that no reply could answer, or that shows the server more than the algorithm declares.

    It is an algorithm's own fault, said before anybody trains for nothing.
    """
    name = algorithm.name
    if ask.what not in algorithm.tasks:
        raise ProtocolError(f"'{name}' asks for the task '{ask.what}', but its tasks are {', '.join(algorithm.tasks)}.")
    if alone := [k for k in ask.to if k not in ask.messages]:
        raise ProtocolError(
            f"'{name}' asks client {alone[0]} for '{ask.what}' without a message; an empty one is {{}}."
        )
    if ask.reduce == "mean" and ask.weights is None:
        raise ProtocolError(f"'{name}' asks for a mean of '{ask.what}' without weights; a plain sum is reduce='sum'.")
    if ask.reduce == "neighbours" and not algorithm.serverless:
        raise ProtocolError(
            f"'{name}' asks for '{ask.what}' by reduce='neighbours', but declares a server: set serverless=True."
        )
    if ask.reduce == "neighbours" and ask.to and not ask.mixing:
        raise ProtocolError(f"'{name}' asks for '{ask.what}' by reduce='neighbours' without mixing.")
    shown = reducer.single and ask.route.via == "server" and SERVER not in ask.to
    if shown and not algorithm.tasks[ask.what].shows:
        raise ProtocolError(
            f"'{name}' asks for '{ask.what}' by reduce='{reducer.name}', which looks at single clients, but the task declares "
            "that the server sees it in sums only: name the parts it shows in Task.shows."
        )


def coefficients_of(ask: Ask, clients: tuple[int, ...], sums: Collection[str]) -> dict[int, Any]:
    """client -> coefficient, or part -> coefficient; the parts ``sums`` are added up as they are."""
    if ask.weights is None or not clients:
        return dict.fromkeys(clients, 1.0)
    found = by_client(ask.weights(clients), clients)
    if not sums:
        return found
    whole = dict.fromkeys(sums, 1.0)
    return {k: {**(own if isinstance(own, Mapping) else {"model": own}), **whole} for k, own in found.items()}


def by_client(weights: Weights, clients: tuple[int, ...]) -> dict[int, Any]:
    """The algorithm's weights turned to client -> coefficient (or part -> coefficient where parts differ)."""
    if weights and all(isinstance(value, Mapping) for value in weights.values()):
        return {k: {part: value[k] for part, value in weights.items()} for k in clients}  # type: ignore[index]
    return {k: weights[k] for k in clients}  # type: ignore[index]


def heard_by_others(ask: Ask, sizes: Mapping[int, int]) -> int:
    """Bytes of the updates that went to other nodes."""
    if ask.mixing is None:
        return 0
    mixing = ask.mixing(tuple(sizes))
    return sum(sizes[sender] for receiver, row in mixing.items() for sender in row if sender != receiver)

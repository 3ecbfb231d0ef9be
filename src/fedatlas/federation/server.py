"""The server half: drive the generator of a round, send its asks as requests over a link, and reduce the replies.

It sees no rows and no client's state. Replies may come in any order, late or never. Sums run in seat order with the coefficients of
those asked. If clients are lost, one factor per part corrects a mean (`Mend`).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from fedatlas.aggregation.reducers import Closing, Reducer, part_of
from fedatlas.algorithm import (
    SERVER,
    Algorithm,
    Ask,
    Question,
    Replies,
    Round,
    RoundGenerator,
    State,
    Task,
    Transform,
    Update,
)
from fedatlas.errors import ProtocolError
from fedatlas.federation.asks import (
    Mend,
    Tally,
    check_ask,
    check_declared,
    coefficients_of,
    heard_by_others,
    hidden,
    in_seats,
    reducer_of,
    summed,
)
from fedatlas.federation.closed_models import is_closed
from fedatlas.federation.cost import Cost, phases_of, server_phase
from fedatlas.federation.defence import Defence, Seen, Sorting, combined, root_ask, root_change
from fedatlas.federation.link import Link, Observer, Reply, Request
from fedatlas.federation.sealing import sealed, told
from fedatlas.federation.start import Federation, RoundStart, head_of
from fedatlas.privacy import noised_ask
from fedatlas.privacy.ask_protocol import CHAIN, MEMORY, Asking, Journal, Place, journalled, with_counters
from fedatlas.privacy.mechanism import Protection
from fedatlas.privacy.reasons import by_rows
from fedatlas.rng import derive, torch_stream
from fedatlas.transforms.change import bases, decoded, restore, unseal
from fedatlas.tree import Tree
from fedatlas.wire import codec


class Guard(NamedTuple):
    """The server half's share of a protected run: mechanisms, public keys, the journal of opened sums, the ledger."""

    protection: Protection
    federation: str = ""
    public: Any = None  # `Keys.public`
    journal: Journal | None = None
    note: noised_ask.Note = lambda events: None
    workers: int = 1
    model: Mapping[str, Any] = {}  # as it would be sent without protection, if it is sent as a ciphertext

    def around(self, server: ServerHalf, ask: Ask, place: Place) -> Asking:
        """Return the protocol of an ask."""
        how, zero = self.protection.during(place.task, ask.budgets), partial(zero_update, server, ask.what)
        if (protocol := how.protocol) is not None:
            noised = how.noises_sums
            place = noised_ask.fixed(place) if noised else place
            made = protocol.around(self.public, self.federation, ask, place, self.workers)
            if noised:
                made = noised_ask.over_sum(how, server.algorithm, zero, ask, place, made)
            inside = how.noising is not None and how.noising.unit == "record"
            return journalled(ask, place, made, partial(self._released, how, place.round), inside)
        return noised_ask.around(
            how, server.transform, server.algorithm, zero, ask, place, self.note, server.now.memories
        )

    def _released(self, how: Protection, number: int, clients: tuple[int, ...]) -> None:
        """Write the ledger lines of local noise inside a sum, before the sum is used."""
        if lines := how.released(number, clients):
            self.note(lines)


def zero_update(server: ServerHalf, what: str) -> Update:
    """Return an update that changes nothing: neither the model nor the parts that follow it."""
    task, model = server.algorithm.training(what), Tree(server.now.start.told()["model"])
    return {part: model.zeros() for part in ("model", *task.sealing.tracked)}


def messages_of(ask: Ask, requests: Collection[int], answered: Collection[int]) -> int:
    """Return the messages of an ask between server and clients; what a client hands to another is none."""
    down = sum(k != SERVER and ask.route.sender.get(k) is None for k in requests)
    return down + (0 if ask.route.via == "peer" else sum(k != SERVER for k in answered))


class UnderWay:
    """A round under way at the server: its start, and what has been asked, answered and spent since."""

    def __init__(self, start: RoundStart, cost: Cost, declared: Tally) -> None:
        self.start, self.cost = start, cost
        self.memories = dict(start.memories)  # of the mechanisms, after the last ask
        self.declared = declared  # how often each party was asked each form
        self.leaving = start.leaving  # clients that leave, until they are gone
        self.asks = 0  # so far
        self.sums = 0  # sums that a protocol opened so far; a repeated round counts the same
        self.asked: set[int] = set()
        self.lost: set[int] = set()  # clients that owe a reply
        self.seen = Seen()  # the fate of the updates


class ServerHalf:
    """Answers the asks of rounds over a link. Between rounds it keeps nothing but the record of the last one."""

    def __init__(
        self,
        algorithm: Algorithm,
        link: Link,
        sizes: Mapping[int, int],
        seed: int,
        *,
        run: str = "",
        transform: Transform | None = None,
        raw_bytes: int = 0,  # of all rows, if the algorithm sends them
        observers: Iterable[Observer] = (),
        deadline: float | None = None,  # seconds an ask waits for its replies
        guard: Guard | None = None,
        defence: Defence | None = None,
    ) -> None:
        self.algorithm, self.link, self.sizes, self.seed = algorithm, link, sizes, seed
        self.of = Federation(run, len(sizes), sum(sizes.values()))
        self.transform, self.raw_bytes, self.deadline = transform, raw_bytes, deadline
        self.observers, self.guard, self.defence = tuple(observers), guard, defence
        self.now = UnderWay(RoundStart(0, 0.0), Cost(), Tally(self.of.K))

    @property
    def cost(self) -> Cost:
        """The cost of the round so far."""
        return self.now.cost

    @property
    def counted(self) -> frozenset[int]:
        """Clients that were asked in this round and answered every time."""
        return frozenset(self.now.asked - self.now.lost)

    def begin(self, start: RoundStart) -> None:
        """Begin a round, or another attempt at it. The cost of earlier attempts stays."""
        if start.sizes is not None:
            self.sizes, self.of = start.sizes, self.of._replace(n=sum(start.sizes.values()))
        self.now = UnderWay(start, self.now.cost.in_vain() if start.attempt else Cost(), Tally(self.of.K))

    def drive(self, generator: RoundGenerator, start: RoundStart) -> State:
        """Run one round to its end: send the generator the replies to each ask. The caller commits the round."""
        self.begin(start)
        replies: Replies | None = None
        while True:
            try:
                ask = next(generator) if replies is None else generator.send(replies)
            except StopIteration as end:
                state: State = end.value
                return {**state, MEMORY: self.now.memories} if self.now.memories else state
            replies = self.ask(ask)

    def aside(self, ask: Ask) -> Replies:
        """Return the replies to a side ask. It does not change who counts in the round, and its bytes appear in no row."""
        now = self.now
        kept = set(now.asked), set(now.lost), now.cost
        try:
            return self.ask(ask)
        finally:
            now.asked, now.lost, now.cost = kept

    def ask(self, ask: Ask) -> Replies:
        """Return the replies to one ask, protected if the run is. ProtocolError for an ask that its algorithm does not declare."""
        self._hold(ask)
        return self.answer(ask) if self.guard is None else self._guarded(ask)

    def _hold(self, ask: Ask) -> None:
        """Check an ask against the algorithm's grammar, if there is one."""
        if (grammar := self.algorithm.grammar) is not None:
            reducer = reducer_of(ask)
            check_ask(ask, reducer, self.algorithm)
            check_declared(ask, reducer, self.algorithm, grammar.of(self.now.start.round), self.now.declared)

    def _guarded(self, ask: Ask) -> Replies:
        """Return the replies to an ask of a protected run, by the mechanisms' protocol if the server would see something."""
        guard, task = self.guard, self.algorithm.tasks.get(ask.what)
        assert guard is not None
        if task is None or not hidden(ask, task):
            replies = self.answer(ask)
            if summed(ask) and replies.value:
                raise ProtocolError(f"'{self.algorithm.name}' says that '{ask.what}' sends nothing, but it does.")
            return replies
        if not ask.to and not guard.protection.noises_sums:
            return Replies((), None, {})
        now = self.now
        place, before = self._place(ask, task), set(now.lost)
        protocol = guard.around(self, ask, place)
        now.sums += 1
        inner, messages = next(protocol), None
        while True:
            replies = self.answer(inner)
            if inner.what == ask.what:
                messages = inner.messages
            try:
                with self._timed(server_phase(guard.protection, inner.what)):
                    inner = protocol.send(replies)
            except StopIteration as end:
                found: Replies = end.value
                break
        now.leaving = {}
        # Clients in the sum count, even if they fell silent while it was opened. Clients left out of it do not count.
        now.lost = before | ({*ask.to, *place.leaving} - {*found.clients})
        now.asked |= now.lost
        judged = self.defence is not None and self.defence.judges and not guard.protection.masks
        if ask.reduce == "mean" and not judged:
            self._weigh(ask, found.clients)
        if found.value is None or guard.protection.whole or guard.protection.closed:
            return found
        k = next((k for k in found.clients if k in (messages or {})), None)
        told_ = now.start.told() if k is None else told(ask.messages[k], ask.route.anchors.get(k))
        base = bases(task, told_, found.value, chain=bool(ask.route.anchors))
        return found._replace(value=with_counters(restore(found.value, base, exact=True), told_))

    def _place(self, ask: Ask, task: Task | Question) -> Place:
        sums = task.sums if isinstance(task, Task) else ()
        now = self.now
        asked = tuple(sorted({*ask.to, *now.leaving}))
        claimed = {k: order.claims for k, order in now.start.orders.items() if order.claims}
        return Place(
            run=self.of.run,
            round=now.start.round,
            attempt=now.start.attempt,
            number=now.sums,
            task=task,
            sizes={**self.sizes, **claimed},
            n=self.of.n,
            K=self.of.K,
            coefficients=coefficients_of(ask, asked, sums),
            mend=lambda answered: Mend(ask, asked, answered, sums),
            leaving=now.leaving,
            by_rows=partial(by_rows, self.algorithm),
            journal=self.guard.journal if self.guard else None,
            lr=now.start.lr,
        )

    def _weigh(self, ask: Ask, answered: tuple[int, ...]) -> None:
        """Note the coefficients of a protected mean, unless they are secret."""
        if answered and not (self.guard and self.guard.protection.secret_cohort):
            found = coefficients_of(ask, answered, ())
            self.now.cost = self.cost._replace(weights={k: part_of(c, "model") for k, c in found.items()})

    def commit(self, number: int, counted: Collection[int] | None = None) -> None:
        """Tell the parties that the round has landed and who counted. If nobody did, all return to the state before it."""
        self.link.commit(self.of.run, number, self.counted if counted is None else counted)

    def close(self, number: int) -> None:
        """End a round that is given up. Nobody counts."""
        self.now.lost |= self.now.asked
        self.now.cost = self.cost._replace(weights={})
        self.commit(number)

    def answer(self, ask: Ask) -> Replies:
        """Return the replies to one ask, reducing its updates as they come."""
        reducer = reducer_of(ask)
        inner = None if self.defence is None else root_ask(self.defence.rule, ask, reducer)
        root = None if inner is None else root_change(self.ask(inner), inner)
        started, now = time.perf_counter(), self.now
        check_ask(ask, reducer, self.algorithm)
        clients = tuple(sorted(ask.to, key=lambda k: ask.route.seats.get(k, k)))
        task = self.algorithm.tasks[ask.what]
        sums = task.sums if isinstance(task, Task) else ()
        coefficients = coefficients_of(ask, clients, sums)
        requests = {k: self._request(ask, reducer, k) for k in clients}
        now.asks += 1
        sorting = self._sorting(ask, task, reducer, requests, root)
        total: Any = None
        sizes: dict[int, int] = {}
        more = 0  # bytes up that are due to protection
        worked = sealed_for = adding = 0.0  # seconds of the clients' work, of their sealing, of the server's sum
        for reply in in_seats(self._replies(requests), clients):
            sizes[reply.client] = codec.size(reply.update)
            worked, sealed_for = worked + reply.seconds, sealed_for + reply.sealing
            more += sizes[reply.client] - reply.bare if requests[reply.client].word is not None else 0
            update = self.opened(requests[reply.client], reply.update)
            began = time.perf_counter()
            if sorting is None:
                total = reducer.add(total, reducer.lift(reply.client, update, coefficients[reply.client]))
            else:
                sorting.add(reply.client, update, coefficients[reply.client])
            adding += time.perf_counter() - began
        answered = tuple(k for k in clients if k in sizes) if sorting is None else sorting.accepted()
        now.asked.update(k for k in clients if k != SERVER)
        now.lost.update(set(clients) - set(answered))
        mend = Mend(ask, clients, answered, sums)
        closing, began = Closing(answered, mend, ask.mixing), time.perf_counter()
        reduced = reducer.close(total, closing) if sorting is None else sorting.close(closing, len(clients))
        adding += time.perf_counter() - began
        if ask.mixing is not None:
            for observer in self.observers:
                observer.mixed(ask.mixing(answered))
        if ask.reduce == "mean":
            weights = {k: part_of(coefficients[k], "model") * mend("model") for k in answered}
            now.cost = self.cost._replace(weights=weights if sorting is None else sorting.weights(weights))
        if sorting is not None:
            now.seen.note(sorting.judging, sorting.hostile)
        value = self._finalized(ask, reduced.value, requests)
        self._count(ask, requests, sizes, more)
        how = None if self.guard is None else self.guard.protection
        spent = phases_of(ask, how, time.perf_counter() - started, adding, worked, sealed_for)
        now.cost = self.cost.spending(spent)
        combine = None
        if reducer.name == "each" and self.defence is not None and self.defence.judges:
            combine = partial(combined, self.defence, now.seen, self._draws())
        return Replies(answered, value, reduced.each, combine)

    def _draws(self) -> int:
        """Return the seed of the draws before a rule, for the latest ask."""
        return derive(self.seed, "buckets", self.now.start.round, self.now.asks)

    def _sorting(
        self, ask: Ask, task: Any, reducer: Reducer, requests: Mapping[int, Request], root: Update | None
    ) -> Sorting | None:
        """Return the sorting of an ask's updates; None without a declared defence, and under masks, which hide single updates."""
        if self.defence is None or (self.guard is not None and self.guard.protection.masks):
            return None

        def like(client: int, update: Update) -> Mapping[str, Tree] | None:
            request = requests[client]
            try:
                return bases(task, told(request.message, request.anchor), update)
            except (LookupError, TypeError, ValueError, AttributeError):  # it lacks the parts that say what it changes
                return None

        def base(client: int, update: Update) -> Mapping[str, Tree]:  # a protected update is already a change
            return {} if requests[client].word is not None else like(client, update) or {}

        return Sorting(self.defence, ask, task, reducer, base, like, root, self._draws())

    def _request(self, ask: Ask, reducer: Reducer, k: int) -> Request:
        head = head_of(self.of, self.now.start, self.now.asks, ask, reducer.name, k, single=reducer.single)
        word = {**ask.words[k], CHAIN: bool(ask.route.anchors)} if k in ask.words else None
        return Request(**head._asdict(), message=ask.messages[k], anchor=ask.route.anchors.get(k), word=word)

    def _replies(self, requests: Mapping[int, Request]) -> Iterator[Reply]:
        """Yield the first reply of each party that was asked, as they come. Replies to an earlier ask are skipped."""
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

    def _noised_alone(self) -> bool:
        """Return whether protected updates are reduced as they come: clients noise them, and no mechanism forms the sum."""
        how = None if self.guard is None else self.guard.protection
        return how is not None and how.protocol is None and all(work.total is None for work in how.works)

    def opened(self, request: Request, update: Update) -> Update:
        """Return a client's update, opened if it was sealed."""
        task = self.algorithm.tasks[request.what]
        if request.word is not None:  # its observers see what the protocol opens
            return decoded(self.transform, update) if self._noised_alone() else update
        if isinstance(task, Task) and sealed(self.transform, task, request):
            try:
                update = unseal(self.transform, task, told(request.message, request.anchor), update)
            except (LookupError, TypeError, ValueError, RuntimeError, AttributeError):
                if self.defence is None:
                    raise
                update = {}  # an update that cannot be opened counts as hostile
        for observer in self.observers:
            observer.opened(request, update)
        return update

    def _finalized(self, ask: Ask, value: Update | None, requests: Mapping[int, Request]) -> Update | None:
        """Return the reduced value after `Transform.finalize`."""
        transform = self.transform
        if value is None or transform is None or transform.finalize is None:
            return value
        if not all(sealed(transform, self.algorithm.tasks[ask.what], request) for request in requests.values()):
            return value
        clients = tuple(requests)
        number, n = self.now.start.round, self.of.n
        drawn = Round(number, clients, self.of.K, n, {k: self.sizes.get(k, n) for k in clients})
        return transform.finalize(value, drawn, torch_stream(self.seed, "compression", number, "server", ask.what))

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        """Charge the time that the server computes inside to this phase."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.now.cost = self.cost.spending({phase: time.perf_counter() - began})

    def _count(self, ask: Ask, requests: Mapping[int, Request], sizes: Mapping[int, int], more: int) -> None:
        known: dict[tuple[int, ...], int] = {}
        task = self.algorithm.tasks[ask.what]
        down = {"server": 0, "peer": 0, "nobody": 0}  # bytes by sender of the messages
        words = 0
        for k, request in requests.items():
            key = tuple(id(value) for value in request.message.values())
            if key not in known:
                known[key] = codec.size(dict(request.message))
            by = ask.route.sender.get(k)
            words += codec.size(dict(request.word)) if request.word else 0
            if self.guard is not None and is_closed(request.message.get("model")):
                more += known[key] - codec.size({**request.message, "model": self.guard.model})
            down["server" if by is None else "nobody" if by == k else "peer"] += known[key]
            changes = sealed(self.transform, task, request)
            if by != k and request.anchor is not None and (changes or request.word is not None):
                anchor = codec.size(told(request.message, request.anchor)) - known[key]
                down["server"] += anchor
                more += 0 if changes else anchor
        down["server"] += words
        own = (
            sum(sizes.values()) + sum(down.values())
            if self.guard is not None and ask.what in self.guard.protection.phases
            else words + more
        )
        c, mine = self.cost, tuple(requests) == (SERVER,)
        peer = down["peer"] + heard_by_others(ask, sizes)
        self.now.cost = c._replace(
            bytes_up=c.bytes_up + (0 if ask.route.via == "peer" or mine else sum(sizes.values())),
            bytes_down=c.bytes_down + (0 if mine else down["server"]),
            bytes_peer=c.bytes_peer + peer,
            bytes_privacy=c.bytes_privacy + own,
            messages=c.messages + messages_of(ask, requests, sizes),
        )
        if self.algorithm.card.sends != "messages":  # a baseline: rows go up before round 1, or never
            first = self.now.start.round == 1
            self.now.cost = self.cost._replace(bytes_up=self.raw_bytes if first else 0, bytes_down=0)

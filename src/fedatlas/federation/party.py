"""The party half: a request becomes a job on the party's rows with the party's state, and the result goes back as a reply.

In a simulation one party half plays all parties. Nothing here knows how updates are reduced.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from fedatlas.algorithm import SERVER, Budget, Facts, State, Task, Work
from fedatlas.data.batches import examples_of
from fedatlas.engine.attackers import Order
from fedatlas.engine.job import Bench, Executor, Job, Result
from fedatlas.errors import ProtocolError
from fedatlas.federation.client_states import PartyState
from fedatlas.federation.closed_models import Opener
from fedatlas.federation.colluders import Colluders
from fedatlas.federation.expected import Expected
from fedatlas.federation.link import Reply, Request
from fedatlas.federation.sealing import MEMORY, sealed, told
from fedatlas.transforms.change import BUFFERS
from fedatlas.tree import Tree


class Answer(NamedTuple):
    """A reply, with what a simulation may know of the work. No algorithm reads the extra fields and no link carries them."""

    reply: Reply
    work: Work
    lost: bool = False  # the work produced NaN or infinity
    failed: str = ""  # why its change is zero, which noise covers


class Secrets(Protocol):
    """Secrets that parties receive when they are built, never over the link: identities, keys, the record of sums they opened."""

    def session(self, client: int) -> Any: ...
    def keep(self, client: int, session: Any) -> None: ...


class PartyHalf:
    """Answers requests. ``sizes`` holds the training rows of the parties that it plays."""

    def __init__(
        self,
        bench: Bench,
        executor: Executor,
        state: PartyState,
        sizes: Mapping[int, int],
        seed: int,
        secrets: Secrets | None = None,
        expected: Expected | None = None,
    ) -> None:
        self.bench, self.executor, self.state, self.sizes, self.seed = bench, executor, state, sizes, seed
        self.sessions: dict[int, Any] = {}  # of questions that continue within a round; only in memory
        self.secrets, self.expected = secrets, expected
        self.opener = Opener(bench, compares=expected is not None)
        self.orders: Mapping[int, Order] = {}  # what malicious clients do in this round

    def resize(self, sizes: Mapping[int, int]) -> None:
        """Go on with other numbers of training rows: a drift changes them."""
        self.sizes = sizes
        if self.expected is not None:
            self.expected.n = sum(sizes.values())

    def answer(self, requests: Sequence[Request]) -> Iterator[Answer]:
        """Yield answers in the order of the requests, those of colluders last. Their tensors are valid until the next is asked for.

        A failure under ``[[privacy]]`` ends the sessions of those asked. Asking a party twice could reveal something each time.
        """
        try:
            yield from self._answers(requests)
        except Exception:
            for request in requests if self.bench.protection is not None else ():
                self.sessions.pop(request.client, None)
            raise

    def _answers(self, requests: Sequence[Request]) -> Iterator[Answer]:
        for request in requests:
            self.compare(request)
            self._begin(request)
        if self.bench.protection is not None:
            self.bench.protection.check(requests, self._session)
        requests = [self.opener.request(request, self._session(request.client)) for request in requests]
        colluders = Colluders(self.bench, requests, map(self.order, requests))
        jobs = (colluders.marked(request, self.job(request)) for request in requests)
        for request, result in zip(requests, self.executor.run(jobs), strict=True):
            if not colluders.hold(request, result):
                yield self._answered(request, result)
        for request, result in colluders.decided():
            yield self._answered(request, result)

    def _answered(self, request: Request, result: Result) -> Answer:
        """Keep what a client keeps of a result, and return its answer."""
        if not result.lost:
            check_shown(request, result, self.bench)
            self._keep(request, result)
        reply = Reply(result.client, result.update, result.seconds, request.ask, result.sealing, result.bare)
        return Answer(reply, result.work, result.lost, result.failed)

    def compare(self, request: Request) -> None:
        """Raise ProtocolError for a request that this party would not answer. Nothing is started by this check."""
        check_request(request, self.bench)
        if self.expected is not None:
            self.expected.check(request, self.state)

    def _begin(self, request: Request) -> None:
        """Begin the round of a request if it is the first; ProtocolError if a request comes more often than declared."""
        if self.state.begin(request.round, request.attempt):
            self.sessions.clear()
            if self.expected is not None:
                self.expected.begin()
        if self.expected is not None:
            self.expected.count(request, self.state)

    def commit(self, round: int, counted: Collection[int]) -> None:
        """Commit the round. Clients that are not ``counted`` return to their state from before it."""
        self.state.commit(round, counted)
        self.sessions.clear()
        if self.expected is not None:
            self.expected.begin()

    def _session(self, client: int) -> Any:
        """Return the session left by a party's questions of this round; before the first question, its secrets."""
        if client not in self.sessions and self.secrets is not None and client >= 0:
            self.sessions[client] = self.secrets.session(client)
        return self.sessions.get(client)

    def job(self, request: Request) -> Job:
        """Turn a request into a job."""
        bench, k = self.bench, request.client
        task = bench.tasks(k)[request.what]
        memory = self._memory(request)
        whole = memory is None and request.word is None  # else a change of a model the server also knows
        order = self.order(request)
        whole = whole and not (order is not None and order.chained)
        message = request.message if whole else told(request.message, request.anchor)
        facts = self.facts(k, request.round, request.lr, request.K, request.n)
        state = self.state_of(k, message, facts) if task.stateful else {}
        where = request.architecture or bench.architecture(k)
        session = self._session(k)
        return Job(
            k,
            request.what,
            message,
            state,
            facts,
            self._budget(request, int(facts.n_k)),
            self.seed,
            memory,
            where,
            bench.cast.get(k, ""),
            session,
            request.word,
            order,
        )

    def order(self, request: Request) -> Order | None:
        """Return the order of a malicious client; None for all others, and for every request before round 1."""
        order = self.orders.get(request.client) if request.round else None
        if order is None or not order.chained:
            return order
        return order._replace(sends=not request.peer)

    def facts(self, client: int, number: int, lr: float, K: int, n: int) -> Facts:
        """Return the facts that a party knows before its work."""
        n_k = self.sizes.get(client, n)  # the union of all rows is not a client
        optimizer = self.bench.local.optimizer
        momentum = optimizer.betas[0] if optimizer.name == "adam" else optimizer.momentum
        return Facts(float(n_k), float(n), K, self.bench.classes, float(number), lr, momentum=momentum)

    def state_of(self, client: int, message: Mapping[str, Any], facts: Facts) -> State:
        """Return a client's state, made at its first use."""
        init = self._init(client)
        if init is None:
            return {}
        state = {name: x for name, x in (self.state.get(client) or {}).items() if name != MEMORY}
        if state:
            return state
        if "model" in message or not self.bench.networks:  # parties that hold columns have no network
            return init(message.get("model", Tree()), facts)
        return init(self.bench.network_of(client).initial()[0], facts)

    def _init(self, client: int) -> Callable[[Tree, Facts], State] | None:
        """Return the function that makes a client's state; None if the client keeps none."""
        role = self.bench.role_of(client)
        return (role and role.client_init) or self.bench.algorithm.client_init

    def _budget(self, request: Request, n: int) -> Budget:
        """Return the work to do. A further visit continues after the epochs of the visits before it."""
        local, task = self.bench.local, self.bench.tasks(request.client)[request.what]
        budget = request.budget or local.budget
        if not request.visits:
            return budget
        least = self.bench.network_of(request.client).least
        epochs = math.ceil(examples_of(budget, n, local.batch_size, least, local.merge) / max(n, 1))
        epochs = max(epochs, task.options.epochs or 0) if isinstance(task, Task) else epochs
        return budget._replace(first_epoch=request.visits * epochs)

    def _memory(self, request: Request) -> State | None:
        """Return the transform's memory for this task, {} before its first use; None if the update is not sealed."""
        if request.word is not None:
            return None if self.bench.transform is None else self._held(request)
        if not sealed(self.bench.transform, self.bench.tasks(request.client)[request.what], request):
            return None
        return self._held(request)

    def _held(self, request: Request) -> State:
        memory: State = (self.state.get(request.client) or {}).get(MEMORY, {}).get(request.what, {})
        return memory

    def _keep(self, request: Request, result: Result) -> None:
        """Keep the client's state, together with the memory of the transform that sealed its update."""
        task = self.bench.tasks(result.client)[request.what]
        if result.session is not None:
            if self.secrets is not None and result.client >= 0:
                self.secrets.keep(result.client, result.session)  # before the reply leaves
            self.sessions[result.client] = result.session
        stateful = self._init(result.client) is not None and task.stateful
        kept = result.memory if isinstance(task, Task) and task.sealing.remembered else None
        if stateful or kept:
            held = self.state.get(result.client) or {}
            memory = {**held.get(MEMORY, {}), **({request.what: kept} if kept else {})}
            state = result.state if stateful else {name: x for name, x in held.items() if name != MEMORY}
            self.state.put(result.client, {**state, MEMORY: memory} if memory else state)


def alone(request: Request) -> bool:
    """Whether the server would look at this update by itself, by the request's flag or by its reducer."""
    looked = request.single or request.reduce == "each"
    return looked and not request.peer and request.client != SERVER


def check_request(request: Request, bench: Bench) -> None:
    """Raise ProtocolError for a request this party refuses: an unknown task, or one whose updates the server may see only in sums."""
    task = bench.tasks(request.client).get(request.what)
    if task is None:
        raise ProtocolError(
            f"client {request.client} is asked for '{request.what}', which '{bench.algorithm.name}' does not know."
        )
    parts: tuple[Any, ...] = request.message, {} if request.word is None else request.word
    if not all(isinstance(part, Mapping) for part in parts):
        raise ProtocolError(f"client {request.client} is asked for '{request.what}' with a message that is no table.")
    if alone(request) and not task.shows:
        raise ProtocolError(
            f"client {request.client} is asked for '{request.what}' on its own, but '{bench.algorithm.name}' declares that "
            "the server sees it in sums only (Task.shows)."
        )


def check_shown(request: Request, result: Result, bench: Bench) -> None:
    """Raise ProtocolError if the server would see a part of a single client's update that the task does not declare."""
    if not alone(request):
        return
    shows = bench.tasks(request.client)[request.what].shows
    if odd := sorted(result.update.keys() - {*shows, BUFFERS}):
        raise ProtocolError(
            f"'{bench.algorithm.name}' would show the server '{odd[0]}' of client {request.client}, but its task "
            f"'{request.what}' declares {', '.join(shows)} (Task.shows)."
        )

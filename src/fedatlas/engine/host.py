"""Plays all parties of a simulated federation: turns what a round asks into jobs, and their results into replies."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from fedatlas.aggregation.mean import WeightedSum, part_of
from fedatlas.algorithm import (
    SERVER,
    Algorithm,
    Ask,
    Facts,
    Replies,
    Round,
    RoundGenerator,
    State,
    Update,
    Weights,
    Work,
)
from fedatlas.data.batches import examples_of
from fedatlas.deploy import codec
from fedatlas.engine.client_state import ClientStates
from fedatlas.engine.job import Bench, Job, Result
from fedatlas.engine.seal import MEMORY, extra_bytes, finalized, message_for, received, sealed
from fedatlas.errors import ProtocolError


class Executor(Protocol):
    """Runs jobs; results come in the order of the jobs. Be done with one before asking for the next: its memory may be reused."""

    @property
    def run_job(self) -> Callable[[Bench, Job], Result]: ...  # one job, alone
    def run(self, jobs: Iterable[Job]) -> Iterator[Result]: ...
    def close(self) -> None: ...


class Cost(NamedTuple):
    """What a round cost so far; bytes are the codec's."""

    bytes_up: int = 0
    bytes_down: int = 0
    bytes_peer: int = 0
    seconds: Mapping[str, float] = {}
    examples: int = 0  # that went through local steps
    passes: float = 0.0  # forward passes of one example, a backward one counted as two (ALGORITHMS.md C13)
    passes_of: Mapping[str, float] = {}  # the same by architecture; "" where there is one for all
    weights: Mapping[int, float] = {}  # coefficients of the last mean


def check_ask(ask: Ask, algorithm: Algorithm) -> None:
    """ProtocolError for an ask that no reply could answer: an algorithm's own fault, said before anybody trains for nothing."""
    name = algorithm.name
    if ask.what not in algorithm.tasks:
        raise ProtocolError(f"'{name}' asks for the task '{ask.what}', but its tasks are {', '.join(algorithm.tasks)}.")
    if alone := [k for k in ask.to if k not in ask.messages]:
        raise ProtocolError(
            f"'{name}' asks client {alone[0]} for '{ask.what}' without a message; an empty one is {{}}."
        )
    if ask.reduce == "mean" and ask.weights is None:
        raise ProtocolError(f"'{name}' asks for a mean of '{ask.what}' without weights; a plain sum is reduce='sum'.")
    if ask.reduce == "neighbours" and ask.to and not ask.mixing:
        raise ProtocolError(f"'{name}' asks for '{ask.what}' by reduce='neighbours' without mixing.")


class Host:
    """Answers asks. Keeps the clients' states; everything else comes in and goes out."""

    def __init__(
        self,
        bench: Bench,
        executor: Executor,
        states: ClientStates,
        sizes: Mapping[int, int],
        seed: int,
        watch: Callable[[Ask, int, Update], None] | None = None,  # is shown every update as it comes in
    ) -> None:
        self.bench, self.executor, self.states, self.seed = bench, executor, states, seed
        self.sizes, self.watch = sizes, watch
        self.n, self.K = sum(sizes.values()), len(sizes)
        self.cost = Cost()
        self.work: dict[int, Work] = {}  # all of this round's, by client
        self.last: dict[int, str] = {}  # the task of a client's last steps in this round

    def drive(self, generator: RoundGenerator, number: int, lr: float) -> State:
        """Runs one round to its end: sends the generator the replies to each ask."""
        self.cost, self.work, self.last = Cost(), {}, {}
        replies: Replies | None = None
        while True:
            try:
                ask = next(generator) if replies is None else generator.send(replies)
            except StopIteration as end:
                state: State = end.value
                return state
            replies = self.answer(ask, number, lr)

    def answer(self, ask: Ask, number: int, lr: float) -> Replies:
        """The replies to one ask, its updates reduced as they come."""
        started = time.perf_counter()
        check_ask(ask, self.bench.algorithm)
        clients = tuple(sorted(ask.to, key=lambda k: ask.route.seats.get(k, k)))
        coefficients = self._coefficients(ask, clients)
        heard = hearers(ask, clients)
        sums = {k: WeightedSum() for k in heard}
        total, each, work, up, sent = WeightedSum(), {}, {}, 0, 0
        jobs = self._jobs(ask, clients, number, lr)
        for result in self.executor.run(jobs):
            size = codec.size(result.update)
            up += size
            sent += size * len(heard.get(result.client, {}).keys() - {result.client})
            work[result.client] = result.work
            self._keep(ask.what, result)
            update = received(self.bench, ask, result)
            if self.watch is not None:
                self.watch(ask, result.client, update)
            if ask.reduce == "neighbours":
                for k, coefficient in heard[result.client].items():
                    sums[k].add(update, coefficient)
            elif ask.reduce == "each":
                each[result.client] = codec.decode(codec.encode(dict(update)))  # a worker's memory is used again
            else:
                total.add(update, coefficients[result.client])
        if ask.reduce == "mean":
            weights = {k: part_of(c, "model") for k, c in coefficients.items()}
            self.cost = self.cost._replace(weights=weights)
        self.cost = self.cost._replace(bytes_peer=self.cost.bytes_peer + sent)
        self._count(ask, clients, up, work, time.perf_counter() - started)
        each |= {k: mixed.total for k, mixed in sums.items()}
        if (
            self.bench.algorithm.card.sends != "messages"
        ):  # a baseline: all rows go up before round 1, or nothing ever does
            self.cost = self.cost._replace(bytes_up=self.bench.raw_bytes if number == 1 else 0, bytes_down=0)
        if sealed(self.bench, ask, number):
            self.cost = self.cost._replace(bytes_down=self.cost.bytes_down + extra_bytes(ask))
        return Replies(
            clients, finalized(self.bench, ask, total.total, self._round(clients, number), self.seed), each, work
        )

    def _keep(self, what: str, result: Result) -> None:
        """Puts away the client's state, and beside it the memory of the transform that sealed its update."""
        task = self.bench.algorithm.tasks[what]
        stateful = self.bench.algorithm.client_init is not None and task.stateful
        kept = result.memory if task.sealing.remembered else None
        if stateful or kept:
            held = self.states.get(result.client) or {}
            memory = {**held.get(MEMORY, {}), **({what: kept} if kept else {})}
            state = result.state if stateful else {name: x for name, x in held.items() if name != MEMORY}
            self.states.put(result.client, {**state, MEMORY: memory} if memory else state)

    def _memory(self, ask: Ask, client: int, number: int) -> State | None:
        """The transform's memory for this task, {} before its first use; None where the update is not sealed."""
        if not sealed(self.bench, ask, number):
            return None
        memory: State = (self.states.get(client) or {}).get(MEMORY, {}).get(ask.what, {})
        return memory

    def _round(self, clients: tuple[int, ...], number: int) -> Round:
        return Round(number, clients, self.K, self.n, {k: self.sizes.get(k, self.n) for k in clients})

    def _coefficients(self, ask: Ask, clients: tuple[int, ...]) -> dict[int, Any]:
        """client -> coefficient, or part -> coefficient."""
        if ask.weights is None or not clients:
            return dict.fromkeys(clients, 1.0)
        return by_client(ask.weights(clients), clients)

    def _jobs(self, ask: Ask, clients: tuple[int, ...], number: int, lr: float) -> Iterator[Job]:
        for k in clients:
            memory = self._memory(ask, k, number)
            message = ask.messages[k] if memory is None else message_for(ask, k)
            facts = self.facts(k, number, lr)
            budget = ask.budgets.get(k, self.bench.local.budget)
            if ask.route.visits.get(k):
                n = int(facts.n_k)
                least = self.bench.network_of(k).least
                epochs = math.ceil(examples_of(budget, n, self.bench.local.batch_size, least) / max(n, 1))
                epochs = max(epochs, self.bench.algorithm.tasks[ask.what].options.epochs or 0)
                budget = budget._replace(first_epoch=ask.route.visits[k] * epochs)
            stateful = self.bench.algorithm.tasks[ask.what].stateful
            state = self.state_of(k, message, facts) if stateful else {}
            yield Job(k, ask.what, message, state, facts, budget, self.seed, memory, self._architecture(ask, k))

    def _architecture(self, ask: Ask, client: int) -> str:
        return ask.architectures.get(client) or self.bench.architecture(client)

    def server_facts(self) -> dict[str, Any]:
        """What `Algorithm.server_init` is told of the federation and of the model's tensors."""
        bench = self.bench
        known = {"K": self.K, "n": self.n, "classes": bench.classes, "roles": bench.network.roles()}
        known |= {"chain": bench.chain, "public": bench.public}
        if not bench.architectures:
            return known
        buffers = {name: one.network.buffers() for name, one in bench.architectures.items()}
        return {**known, "owners": bench.owners, "buffers": buffers}

    def facts(self, client: int, number: int, lr: float) -> Facts:
        """What a party knows before its work."""
        n_k = self.sizes.get(client, self.n)  # the union of all rows is no client
        optimizer = self.bench.local.optimizer
        momentum = optimizer.betas[0] if optimizer.name == "adam" else optimizer.momentum
        return Facts(float(n_k), float(self.n), self.K, self.bench.classes, float(number), lr, momentum=momentum)

    def state_of(self, client: int, message: Mapping[str, Any], facts: Facts) -> State:
        """A client's state, made at its first use."""
        init = self.bench.algorithm.client_init
        if init is None:
            return {}
        state = {name: x for name, x in (self.states.get(client) or {}).items() if name != MEMORY}
        if state:
            return state
        own = message["model"] if "model" in message else self.bench.network_of(client).initial()[0]
        return init(own, facts)

    def _count(self, ask: Ask, clients: tuple[int, ...], up: int, work: Mapping[int, Work], seconds: float) -> None:
        sizes: dict[tuple[int, ...], int] = {}
        told = {"server": 0, "peer": 0, "nobody": 0}  # bytes by who hands the messages over
        for k in clients:
            key = tuple(id(value) for value in ask.messages[k].values())
            if key not in sizes:
                sizes[key] = codec.size(dict(ask.messages[k]))
            by = ask.route.sender.get(k)
            told["server" if by is None else "nobody" if by == k else "peer"] += sizes[key]
        c, task = self.cost, self.bench.algorithm.tasks[ask.what]
        up = 0 if ask.route.via == "peer" or clients == (SERVER,) else up
        down = 0 if clients == (SERVER,) else told["server"]
        examples = sum(w.examples for w in work.values())
        for k, w in work.items():
            self.work[k] = joined(self.work[k], w, self.last.get(k) == ask.what) if k in self.work else w
            self.last[k] = ask.what if w.steps else self.last.get(k, "")
        passes, passes_of = c.passes, dict(c.passes_of)
        for k, w in work.items():
            one, name = task.passes.step * w.examples + task.passes.survey * w.n_k, self._architecture(ask, k)
            passes, passes_of[name] = passes + one, passes_of.get(name, 0.0) + one
        self.cost = c._replace(
            bytes_up=c.bytes_up + up,
            bytes_down=c.bytes_down + down,
            bytes_peer=c.bytes_peer + told["peer"],
            seconds={**c.seconds, ask.what: c.seconds.get(ask.what, 0.0) + seconds},
            examples=c.examples + examples,
            passes=passes,
            passes_of=passes_of,
        )


def joined(first: Work, then: Work, alike: bool) -> Work:
    """Two pieces of a client's work as one; the loss is the mean of both where the task is the same, else the later one's."""
    if not (first.steps and then.steps):
        return then if then.steps else first
    examples = first.examples + then.examples
    loss = (first.loss * first.examples + then.loss * then.examples) / examples if alike else then.loss
    return Work(then.n_k, first.steps + then.steps, examples, first.lr_sum + then.lr_sum, loss)


def by_client(weights: Weights, clients: tuple[int, ...]) -> dict[int, Any]:
    """The algorithm's weights turned to client -> coefficient (or part -> coefficient where parts differ)."""
    if weights and all(isinstance(value, Mapping) for value in weights.values()):
        return {k: {part: value[k] for part, value in weights.items()} for k in clients}  # type: ignore[index]
    return {k: weights[k] for k in clients}  # type: ignore[index]


def hearers(ask: Ask, clients: tuple[int, ...]) -> dict[int, dict[int, float | Mapping[str, float]]]:
    """sender -> those who hear it (itself included) -> coefficient: the columns of the mixing matrix; empty without one."""
    if ask.mixing is None:
        return {}
    columns: dict[int, dict[int, float | Mapping[str, float]]] = {k: {} for k in clients}
    for receiver, row in ask.mixing(clients).items():
        for sender, coefficient in row.items():
            columns[sender][receiver] = coefficient
    return columns

"""Both halves of a federation in one process: the simulator's link is a function call, which hands a whole ask to the executor at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from fedatlas.algorithm import Facts, Question, RoundGenerator, State, Work
from fedatlas.engine.attackers import Order
from fedatlas.engine.job import Bench, Executor
from fedatlas.federation.client_states import PartyState
from fedatlas.federation.cost import Cost
from fedatlas.federation.defence import Defence
from fedatlas.federation.link import Observer, Reply, Request
from fedatlas.federation.party import PartyHalf, Secrets
from fedatlas.federation.secrets import Keyring
from fedatlas.federation.server import ServerHalf
from fedatlas.privacy.ask_protocol import RoundClosed, SessionFailed
from fedatlas.privacy.secure_sum import MASKED

ATTEMPTS = 3  # at a round whose masked session fails before any share is given
Rounds = RoundGenerator | Callable[[], RoundGenerator]


class View:
    """What a simulation alone sees of a round: the work of every client. For the record; no algorithm reads it."""

    def __init__(self) -> None:
        self.work: dict[int, Work] = {}  # by client, all that it did
        self.examples = 0  # that went through local steps
        self.passes = 0.0  # forward passes of one example, a backward one counted as two (C13)
        self.passes_of: dict[str, float] = {}  # the same by architecture; "" where there is one for all
        self._last: dict[int, str] = {}  # the task of a client's last steps

    def add(self, request: Request, work: Work, bench: Bench) -> None:
        """One more piece of work."""
        k, task = request.client, bench.algorithm.tasks[request.what]
        alike = self._last.get(k) == request.what
        self.work[k] = joined(self.work[k], work, alike) if k in self.work else work
        self._last[k] = request.what if work.steps else self._last.get(k, "")
        if isinstance(task, Question):
            passes = task.passes * work.n_k
        else:
            passes = task.passes.step * work.examples + task.passes.survey * work.n_k
        name = request.architecture or bench.architecture(k)
        self.examples += work.examples
        self.passes += passes
        self.passes_of[name] = self.passes_of.get(name, 0.0) + passes


class Driver:
    """Drives the rounds of a server half to their ends, and begins one anew where its masked session failed in time."""

    server: ServerHalf
    view: View
    given_up = ""  # why the last round that was driven changes nothing
    resumes = "; 'fedatlas run --resume {}' goes on from there"  # what a run that a party has left can still do
    orders: Mapping[int, Order] = {}  # what malicious clients do in this round

    def drive(self, generator: Rounds, number: int, lr: float, *, commit: bool = True) -> State | None:
        """Runs one round to its end, and commits it unless the caller will. None: it was closed without a change.

        ``generator``: the round's, or what makes it: a masked session that failed before any share was given begins the round anew.
        """
        make, self.given_up = generator if callable(generator) else lambda: generator, ""
        first = self.attempt_of(number)
        for attempt in range(first, max(first + 1, ATTEMPTS)):
            self.view = View()
            try:
                state = self.server.drive(make(), number, lr, attempt)
            except SessionFailed as error:
                self.server.leaving, self.given_up = {}, str(error)  # who left is gone
                continue
            except RoundClosed as error:
                self.given_up = str(error)
                break
            self.given_up = ""
            if commit:
                self.server.commit(number)
            return state
        self.server.close(number)
        return None

    @property
    def cost(self) -> Cost:
        """What the round cost so far."""
        return self.server.cost

    def attempt_of(self, number: int) -> int:  # noqa: ARG002
        """The attempt at a round that was under way when this process began."""
        return 0

    def record(self) -> dict[str, Any]:
        """What a checkpoint holds beside the states."""
        return {}

    def restore(self, extra: Mapping[str, Any]) -> None:
        """Goes on from such a checkpoint."""

    def landed(self, number: int) -> None:
        """A round's row, files and manifest are on the disk."""


class InProcess(Driver):
    """A simulated federation: the server half, the party half of all its clients, and the simulation's own view of the work."""

    def __init__(
        self,
        bench: Bench,
        executor: Executor,
        state: PartyState,
        sizes: Mapping[int, int],
        seed: int,
        *,
        run: str = "",
        observers: Iterable[Observer] = (),
        keyring: Keyring | None = None,
        defence: Defence | None = None,
        secrets: Secrets | None = None,  # what parties are given and keep in memory, where there is no keyring
    ) -> None:
        self.bench, self.executor, self.sizes = bench, executor, sizes
        self.party = PartyHalf(bench, executor, state, sizes, seed, keyring or secrets)
        self.server = ServerHalf(
            bench.algorithm,
            self,
            sizes,
            seed,
            run=run,
            transform=bench.transform,
            raw_bytes=bench.raw_bytes,
            observers=observers,
            guard=None if keyring is None else keyring.guard(run, getattr(executor, "count", 1)),
            defence=defence,
        )
        self.view = View()

    def __call__(self, requests: Sequence[Request], deadline: float | None) -> Iterator[Reply]:  # noqa: ARG002
        """The link: replies in the order of the requests, none is ever late."""
        staying = [r for r in requests if self.server.leaving.get(r.client) != r.what]
        staying = [r for r in staying if r.word is None or self.server.leaving.get(r.client) != MASKED]
        self.party.orders = self.orders
        for request, answer in zip(staying, self.party.answer(staying), strict=True):
            self.view.add(request, answer.work, self.bench)
            if answer.lost and request.word is not None:  # under masks there is nothing that the server could leave out
                continue
            yield answer.reply

    def commit(self, run: str, round: int, counted: Collection[int]) -> None:  # noqa: ARG002
        """The link's commit."""
        self.party.commit(round, counted)

    @property
    def states(self) -> PartyState:
        """What the clients keep."""
        return self.party.state

    def facts(self, client: int, number: int, lr: float) -> Facts:
        """What a party knows before its work."""
        return self.party.facts(client, number, lr, self.server.K, self.server.n)

    def state_of(self, client: int, message: Mapping[str, Any], facts: Facts) -> State:
        """A client's state, made at its first use."""
        return self.party.state_of(client, message, facts)

    def close(self) -> None:
        """Ends the workers and removes scratch files."""
        self.executor.close()
        self.party.state.close()


def server_facts(bench: Bench, sizes: Mapping[int, int]) -> dict[str, Any]:
    """What `Algorithm.server_init` is told of the federation and of the model's tensors."""
    known = {"K": len(sizes), "n": sum(sizes.values()), "classes": bench.classes, "roles": bench.network.roles()}
    known |= {"chain": bench.chain, "public": bench.public}
    if not bench.owners:
        return known
    buffers = {name: one.network.buffers() for name, one in bench.networks.items()}
    return {**known, "owners": bench.owners, "buffers": buffers}


def joined(first: Work, then: Work, alike: bool) -> Work:
    """Two pieces of a client's work as one; the loss is the mean of both where the task is the same, else the later one's."""
    if not (first.steps and then.steps):
        return then if then.steps else first
    examples = first.examples + then.examples
    loss = (first.loss * first.examples + then.loss * then.examples) / examples if alike else then.loss
    return Work(then.n_k, first.steps + then.steps, examples, first.lr_sum + then.lr_sum, loss)

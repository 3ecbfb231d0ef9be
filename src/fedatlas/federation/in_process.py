"""Both halves of a federation in one process. The simulator's link is a function call that gives the executor a whole ask at once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from fedatlas.algorithm import Facts, State, Work
from fedatlas.engine.job import Bench, Executor
from fedatlas.federation.client_states import PartyState
from fedatlas.federation.defence import Defence
from fedatlas.federation.expected import Expected, Rules
from fedatlas.federation.host import Host
from fedatlas.federation.link import Observer, Reply, Request
from fedatlas.federation.party import PartyHalf, Secrets
from fedatlas.federation.secrets import Keyring
from fedatlas.federation.server import ServerHalf
from fedatlas.privacy.ask_protocol import WORK


class InProcess(Host):
    """A simulated federation: the server half, the party half of all its clients, and the simulation's view of the work."""

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
        secrets: Secrets | None = None,  # what parties are given and keep in memory, if there is no keyring
        rules: Rules | None = None,  # of the experiment, if there is one
        compares: bool = True,  # whether the parties compare requests; not on trial, nor with columns
    ) -> None:
        super().__init__()
        self.bench, self.executor, self.sizes, self.states = bench, executor, sizes, state
        self._workers = executor
        expected = Expected(bench, run, len(sizes), sum(sizes.values()), rules) if compares else None
        self.party = PartyHalf(bench, executor, state, sizes, seed, keyring or secrets, expected)
        self.server = ServerHalf(
            bench.algorithm,
            self,
            sizes,
            seed,
            run=run,
            transform=bench.transform,
            raw_bytes=bench.raw_bytes,
            observers=observers,
            guard=None
            if keyring is None
            else keyring.guard(run, getattr(executor, "count", 1), self.party.opener.first()),
            defence=defence,
        )

    def __call__(self, requests: Sequence[Request], deadline: float | None) -> Iterator[Reply]:  # noqa: ARG002
        """Carry requests over the link: yield replies in the order of the requests, colluders' last. No reply is ever late."""
        now = self.server.now
        staying = [r for r in requests if now.leaving.get(r.client) != r.what]
        staying = [r for r in staying if r.word is None or now.leaving.get(r.client) != WORK]
        self.party.orders = now.start.orders
        if now.start.sizes is not None:
            self.party.resize(now.start.sizes)
        asked = {request.client: request for request in staying}
        worked = dict[int, Work]()
        for answer in self.party.answer(staying):
            request = asked[answer.reply.client]
            worked[request.client] = answer.work
            if answer.failed:
                self.view.failed[request.client] = answer.failed
            if answer.lost and request.word is not None:  # under masks the server cannot leave out a single update
                continue
            yield answer.reply
        for request in staying:  # not as they came: colluders answer last
            self.view.add(request, worked[request.client], self.bench)

    def commit(self, run: str, round: int, counted: Collection[int]) -> None:  # noqa: ARG002
        """Commit the round for the parties."""
        self.party.commit(round, counted)

    def opened(self, server: State, number: int) -> State:
        """Return the server's state after a round with its model opened by a client, if the server keeps it closed."""
        opener, secrets = self.party.opener, self.party.secrets
        return server if opener.closed is None or secrets is None else opener.server(server, number, secrets.session(0))

    def facts(self, client: int, number: int, lr: float) -> Facts:
        """Return the facts that a party knows before its work."""
        return self.party.facts(client, number, lr, self.server.of.K, self.server.of.n)

    def state_of(self, client: int, message: Mapping[str, Any], facts: Facts) -> State:
        """Return a client's state, made at its first use."""
        return self.party.state_of(client, message, facts)

    def close(self) -> None:
        """End the workers and remove scratch files."""
        self._workers.close()
        self.states.close()


def server_facts(bench: Bench, sizes: Mapping[int, int]) -> dict[str, Any]:
    """Return what `Algorithm.server_init` is told about the federation and the model's tensors."""
    known = {"K": len(sizes), "n": sum(sizes.values()), "classes": bench.classes, "roles": bench.network.roles()}
    known |= {"chain": bench.chain, "public": bench.public}
    if not bench.owners:
        return known
    buffers = {name: one.network.buffers() for name, one in bench.networks.items()}
    return {**known, "owners": bench.owners, "buffers": buffers}

"""The clients' private states: in memory up to a budget, the rest in files encoded by the codec. No bit changes on the way."""

from __future__ import annotations

import tempfile
from collections import OrderedDict
from collections.abc import Collection
from pathlib import Path

from fedatlas.algorithm import State
from fedatlas.wire import codec


class ClientStates:
    """client -> state. The least recently used states move to ``folder`` when ``budget`` bytes are exceeded."""

    def __init__(self, budget: int = 2 << 30, folder: Path | None = None) -> None:
        self.budget = budget
        self._folder = folder
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._memory: OrderedDict[int, State] = OrderedDict()
        self._sizes: dict[int, int] = {}
        self._spilled: set[int] = set()
        self._held = 0
        self.changed: set[int] = set()  # since the last `take_changed`

    def get(self, client: int) -> State | None:
        """Return the state of a client; None before its first use."""
        if client in self._memory:
            self._memory.move_to_end(client)
            return self._memory[client]
        if client not in self._spilled:
            return None
        state: State = codec.decode(self._path(client).read_bytes(), own=True)
        self._keep(client, state)
        return state

    def put(self, client: int, state: State) -> None:
        """Replace the state of a client."""
        self.changed.add(client)
        self._keep(client, state)

    def restore(self, client: int, state: State) -> None:
        """Put back a state from a checkpoint. It does not count as changed."""
        self._keep(client, state)

    def remove(self, client: int) -> None:
        """Forget the state of this client, as if it had never been used."""
        self.changed.add(client)
        if client in self._memory:
            del self._memory[client]
            self._held -= self._sizes[client]
        self._spilled.discard(client)

    def clear(self) -> None:
        """Forget all states, as if no client had been used yet."""
        self._memory.clear()
        self._sizes.clear()
        self._spilled.clear()
        self.changed.clear()
        self._held = 0

    def clients(self) -> list[int]:
        """Return the clients that have a state, ascending."""
        return sorted(self._memory.keys() | self._spilled)

    def take_changed(self) -> list[int]:
        """Return the clients whose state changed since the last call, ascending."""
        out, self.changed = sorted(self.changed), set()
        return out

    def close(self) -> None:
        """Remove the files that states were moved to."""
        if self._temporary is not None:
            self._temporary.cleanup()

    def _keep(self, client: int, state: State) -> None:
        size = codec.size(state)
        self._held += size - (self._sizes[client] if client in self._memory else 0)
        self._memory[client] = state
        self._memory.move_to_end(client)
        self._spilled.discard(client)
        self._sizes[client] = size
        while self._held > self.budget and len(self._memory) > 1:
            oldest, old = self._memory.popitem(last=False)
            self._path(oldest).write_bytes(codec.encode(old))
            self._spilled.add(oldest)
            self._held -= self._sizes[oldest]

    def _path(self, client: int) -> Path:
        if self._folder is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="fedatlas-states-")
            self._folder = Path(self._temporary.name)
        return self._folder / f"client-{client}.state"


class PartyState:
    """The state of a run on the parties' side: the state of every client after the current round and before it.

    A client's state changes when its work is done, but only a commit makes the change final. Until then the state before the round is
    kept as well. Clients that do not count return to it.
    """

    def __init__(self, after: ClientStates | None = None) -> None:
        self.after = after or ClientStates()
        self.before = ClientStates(self.after.budget // 4)  # of the clients that worked in this round
        self.fresh: set[int] = set()  # those that had no state before it
        self.place = (-1, 0)  # (round, attempt) of the work since the last commit
        self.landed: int | None = None  # the last round that has landed; None if unknown
        self.ended: int | None = None  # the round with a request that is allowed only at the end of a run

    def get(self, client: int) -> State | None:
        """Return the state of a client; None before its first use."""
        return self.after.get(client)

    def begin(self, round: int, attempt: int = 0) -> bool:
        """Note a request of this round, and return whether it is the first.

        Work of an earlier round or attempt that was never committed is dropped.
        """
        first = (round, attempt) != self.place
        if first:
            self.drop()
            self.place = round, attempt
        return first

    def put(self, client: int, state: State) -> None:
        """Set the state of a client after a piece of its work."""
        held = self.before.get(client)
        if held is None and client not in self.fresh:
            old = self.after.get(client)
            if old is None:
                self.fresh.add(client)
            else:
                self.before.put(client, old)
        self.after.put(client, state)

    def commit(self, round: int, counted: Collection[int]) -> None:
        """Make the round final. Clients that are not ``counted`` return to the state before it."""
        self.landed = round
        self._settle(round, counted)

    def drop(self) -> None:
        """Drop the work done since the last commit."""
        self._settle(self.place[0], ())

    def _settle(self, round: int, counted: Collection[int]) -> None:
        if round != self.place[0]:
            return
        for client in self.fresh - set(counted):
            self.after.remove(client)
        for client in set(self.before.clients()) - set(counted):
            old = self.before.get(client)
            assert old is not None
            self.after.put(client, old)
        self.before.clear()
        self.fresh.clear()

    def close(self) -> None:
        """Remove the files that states were moved to."""
        self.after.close()
        self.before.close()

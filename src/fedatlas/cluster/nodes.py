"""The driver's side of a Ray cluster: an agent on each node, and the calls that they have in hand.

A node that joins gets an agent; the calls of one that is lost come back as `Lost`. Nothing here knows of runs or clients.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

from fedatlas.cluster.agent import DIED, Agent
from fedatlas.cluster.frames import Failed, answer_of, with_head
from fedatlas.cluster.watch import NodeWatch, reachable
from fedatlas.cluster.worker import facts
from fedatlas.errors import ConfigError, TransportError, first_line

START = 120.0  # seconds for the first node's worker to start, which imports torch
END = 15.0  # seconds for all workers to end
OWN = "the Ray node of this machine"
AGAIN = 5.0  # seconds before a node that does not answer is tried again, if Ray still lists it


class Node(NamedTuple):
    """A node with a worker."""

    id: str
    host: str
    cores: int  # that Ray may use there
    memory: int  # bytes that Ray may use there


class Ticket(NamedTuple):
    """A call in hand."""

    node: str
    number: int


class Lost(NamedTuple):
    """The node of a call was lost, or its worker died (``died``), before it answered."""

    reason: str
    died: bool = False


class _Member(NamedTuple):
    """A node of which an agent was requested."""

    agent: Any
    listed: dict[str, Any]


def installed_ray() -> ModuleType:
    """Import Ray; ConfigError if it is not installed."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else Ray warns of a coming default
    try:
        import ray
    except ImportError:
        raise ConfigError('a cluster needs Ray: pip install "fedatlas[cluster]" on every node.') from None
    return ray


class Nodes:
    """The nodes of a cluster. Close it, also after an error."""

    def __init__(self, ray: ModuleType, address: str, hello: bytes, say: Callable[[str], None]) -> None:
        self.ray, self.address, self.say = ray, address, say
        self.here = facts()
        self.own = ray.get_runtime_context().get_node_id()
        self.hello = ray.put(hello)
        self.watch = NodeWatch(ray, address)
        self.members: dict[str, _Member] = {}
        self.ready: dict[str, Node] = {}
        self.starting: dict[Any, tuple[str, bool]] = {}  # Ray's reference -> node, and whether it has the hello
        self.calls: dict[Any, Ticket] = {}  # Ray's reference -> ticket
        self.back: list[tuple[Ticket, bytes | Failed | Lost]] = []
        self.barred: dict[str, float] = {}  # node -> time until which it is not tried again
        self.count, self.begun = 0, False
        self.left = time.monotonic()  # when a node was lost last
        self.raw = False  # whether answers stay the arrays that lie in the object store

    @classmethod
    def connect(cls, address: str, kind: str, hello: bytes, say: Callable[[str], None] = lambda _: None) -> Nodes:
        """Connect to the cluster whose head is at HOST:PORT ("auto": the one of this machine) and start a worker on each node.

        ``kind``: name of the workers' handler; ``hello``: the bytes that it is built from; ``say`` is told of nodes that join or
        are lost. ConfigError if there is no cluster, or if versions differ.
        """
        ray = installed_ray()
        join(ray, address)
        nodes = cls(ray, ray.get_runtime_context().gcs_address, with_head(kind, hello), say)
        nodes.raw = kind == "engine"
        try:
            nodes.begin()
        except BaseException:
            nodes.close()
            raise
        return nodes

    def begin(self) -> None:
        """Wait until every node that is there has its worker."""
        until = time.monotonic() + START
        self.look()
        while self.starting and time.monotonic() < until:
            self.turn(0.5)
        if not self.ready:
            raise ConfigError(
                f"no node of the cluster at {self.address} started a worker within {START:g} s: see its logs."
            )
        self.begun = True

    def alive(self) -> list[Node]:
        """Return the nodes with a worker, in the order of their ids."""
        return [self.ready[name] for name in sorted(self.ready)]

    def coming(self) -> bool:
        """Return whether a node that Ray lists will get a worker, for a while after one was lost."""
        return time.monotonic() - self.left < START and any(
            node_of(listed).cores and name not in self.ready and self.barred.get(name, 0.0) < math.inf
            for name, listed in self.watch.seen.items()
        )

    def put(self, message: Any) -> Any:
        """Put bytes into the object store once, to be given to `call` for several nodes."""
        with connected(self.address):
            return self.ray.put(message)

    def call(self, node: str, message: Any) -> Ticket:
        """Send a message, or one that was `put`, to a node's worker."""
        self.count += 1
        ticket = Ticket(node, self.count)
        if node not in self.ready:
            self.back.append((ticket, Lost("it is gone")))
            return ticket
        with connected(self.address):
            self.calls[self.members[node].agent.call.remote(message)] = ticket
        return ticket

    def wait(self, timeout: float) -> list[tuple[Ticket, bytes | Failed | Lost]]:
        """Return the calls that were answered, failed or lost, after at most ``timeout`` seconds if there are none.

        TransportError if the head or the Ray node of this machine is lost.
        """
        with connected(self.address):
            self.look()
            self.turn(0.0 if self.back else timeout)
        out, self.back = self.back, []
        return out

    def look(self) -> None:
        """Take notice of nodes that joined or were lost."""
        seen = self.watch.seen
        if self.watch.lost or self.own not in seen:
            raise lost_at(self.address, "the head of the cluster" if self.watch.lost else OWN)
        now = time.monotonic()
        for name, listed in seen.items():
            if name not in self.members and node_of(listed).cores and self.barred.get(name, 0.0) < now:
                self.members[name] = _Member(self.agent_on(name), listed)
                self.starting[self.members[name].agent.start.remote()] = (name, False)
        for name in [one for one in self.members if one not in seen]:
            self.lose(name, Lost("its machine or its Ray process ended"))

    def agent_on(self, node: str) -> Any:
        """Request an agent on a node. It asks for no CPU of Ray, so that it starts beside other work."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        where = NodeAffinitySchedulingStrategy(node, soft=False)
        agent = self.ray.remote(num_cpus=0, max_restarts=0, max_concurrency=10_000)(Agent)
        return agent.options(scheduling_strategy=where).remote()

    def turn(self, timeout: float) -> None:
        """Wait for answers for at most ``timeout`` seconds, and take those that are there."""
        due = [*self.starting, *self.calls]
        if not due:
            time.sleep(timeout)
            return
        self.ray.wait(due, num_returns=1, timeout=timeout)
        for reference in self.ray.wait(due, num_returns=len(due), timeout=0)[0]:
            try:
                failed, data = self.ray.get(reference)
            except self.ray.exceptions.RayError as error:
                self.gone(reference, error)
                continue
            raw = self.raw and reference in self.calls
            answer = answer_of(failed, data if raw else bytes(data))
            if reference in self.starting:
                self.started(self.starting.pop(reference), answer)
            elif reference not in self.calls:
                continue  # given back with another call of the same worker, which had died
            elif isinstance(answer, Failed) and answer.kind == DIED:
                self.lose(self.calls[reference].node, Lost(answer.reason, died=True))
            else:
                self.back.append((self.calls.pop(reference), answer))

    def gone(self, reference: Any, error: Exception) -> None:
        """Take notice that an agent does not answer."""
        if reference in self.starting:
            name, _ = self.starting[reference]
            if "Error: " in str(error) and not isinstance(error, self.ray.exceptions.ActorUnavailableError):
                self.refuse(name, f"it cannot start an agent ({last_line(error)}): install the same fedatlas there.")
            else:
                self.lose(name, Lost("it did not start"))
        elif reference in self.calls:
            self.lose(self.calls[reference].node, Lost("it does not answer any more"))

    def started(self, which: tuple[str, bool], answer: bytes | Failed) -> None:
        """Take the next step in the start of a node's worker: its versions, then the hello."""
        name, greeted = which
        member = self.members[name]
        host = member.listed["NodeManagerHostname"]
        if isinstance(answer, Failed):
            hint = ": install the same fedatlas there; its log is among Ray's" if answer.kind == DIED else ""
            self.refuse(name, f"{answer.reason.rstrip('.')}{hint}.")
            return
        if greeted:
            node = self.ready[name] = node_of(member.listed)
            self.say(f"node {host} has {node.cores} core{'s' * (node.cores != 1)}; {len(self.ready)} in all")
            return
        there = json.loads(answer)
        if told := differences(self.here, there):
            self.refuse(name, f"it has {told}: install the same versions on every node.")
            return
        if there["flags"] != self.here["flags"]:
            self.say(f"node {host} has another processor: its last digits may differ")
        self.starting[member.agent.call.remote(self.hello)] = (name, True)

    def refuse(self, name: str, why: str) -> None:
        """Do without a node that joined; ConfigError for one that was there at the beginning."""
        sentence = f"node {self.members[name].listed['NodeManagerHostname']} cannot take part: {why}"
        if not self.begun:
            raise ConfigError(sentence)
        self.lose(name, Lost("refused"))
        self.barred[name] = math.inf
        self.say(sentence)

    def lose(self, name: str, why: Lost) -> None:
        """Forget a node, and give back the calls that it had in hand. If it comes back, it gets another agent."""
        member = self.members.pop(name)
        self.barred[name] = time.monotonic() + AGAIN
        with contextlib.suppress(Exception):
            member.agent.end.remote()
        if self.ready.pop(name, None):
            self.left = time.monotonic()
            self.say(f"node {member.listed['NodeManagerHostname']} is lost ({why.reason}); {len(self.ready)} left")
        self.starting = {reference: one for reference, one in self.starting.items() if one[0] != name}
        for reference in [one for one, ticket in self.calls.items() if ticket.node == name]:
            self.back.append((self.calls.pop(reference), why))

    def close(self) -> None:
        """End all workers and leave the cluster; Ray's processes stay."""
        self.watch.end()
        with contextlib.suppress(self.ray.exceptions.RayError, OSError):
            ends = [member.agent.end.remote() for member in self.members.values()]
            if ends and not self.watch.lost:
                self.ray.wait(ends, num_returns=len(ends), timeout=END)
        self.ray.shutdown()


def lost_at(address: str, what: str) -> TransportError:
    """Return the error of a cluster that cannot be used any more."""
    return TransportError(f"{what} at {address} is lost: start it again.")


@contextlib.contextmanager
def connected(address: str) -> Iterator[None]:
    """Raise TransportError where Ray's own calls end with an OSError: it writes to the Ray node of this machine by a socket."""
    try:
        yield
    except OSError as error:
        raise lost_at(address, OWN) from error


def join(ray: ModuleType, address: str) -> None:
    """Connect this process to a cluster; ConfigError with what to do."""
    if address.startswith("ray://"):
        raise ConfigError(
            f"'{address}': run the command on a machine of the cluster, and give HOST:PORT of its head, or auto."
        )
    if address != "auto" and not reachable(address):
        raise ConfigError(
            f"there is no Ray cluster at '{address}': start one with 'ray start --head --port=PORT', and give HOST:PORT."
        )
    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False, ignore_reinit_error=True)
        # Ray would tell of lost nodes on standard output, where --json prints.
        vars(sys.modules["ray._private.worker"])["print_to_stdstream"] = lambda *_, **__: None
    except Exception as error:
        raise ConfigError(
            f"cannot join the Ray cluster at '{address}' ({first_line(error)}): this machine must be a node of it, with the same "
            "versions of Ray and Python."
        ) from error


def listed_nodes(address: str) -> list[Node]:
    """Return the nodes of a cluster, and start nothing there."""
    ray = installed_ray()
    join(ray, address)
    try:
        return [node_of(one) for one in ray.nodes() if one["Alive"] and node_of(one).cores]
    finally:
        ray.shutdown()


def node_of(listed: dict[str, Any]) -> Node:
    """Return a node as Ray lists it."""
    has = listed["Resources"]
    return Node(listed["NodeID"], listed["NodeManagerHostname"], int(has.get("CPU", 0)), int(has.get("memory", 0)))


def differences(here: dict[str, Any], there: dict[str, Any]) -> str:
    """Return the versions of another machine that differ from those here, in words; "" for none."""
    ours, theirs = here["versions"], there["versions"]
    names = [name for name in {**ours, **theirs} if minor(name, ours) != minor(name, theirs)]
    return " and ".join(f"{name} {theirs.get(name, 'missing')} instead of {ours.get(name, 'none')}" for name in names)


def minor(name: str, versions: dict[str, str]) -> str:
    """Return a version as far as it has to agree: of Python without the last number."""
    found = versions.get(name, "")
    return found.rpartition(".")[0] if name == "python" else found


def last_line(error: Exception) -> str:
    """Return the last line of an error of Ray, which names the cause."""
    return str(error).strip().rpartition("\n")[2].strip().rstrip(".")

"""The clients of a run on the nodes of a cluster: the third executor, with the bits of the others.

A client's work depends only on its job, and results are yielded in the order of the jobs, so it does not matter which node
did which. A node is given work only after it has shown that it computes as this machine does: it has the same program, rows
and initial model, and its result of one client of each kind is, byte for byte, the one that is computed here.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedatlas.algorithm import Work
from fedatlas.cluster.bench import BenchOrder
from fedatlas.cluster.frames import Failed
from fedatlas.cluster.last_words import ENDED, LastWords
from fedatlas.cluster.nodes import Lost, Node, Nodes, Ticket
from fedatlas.cluster.parcels import BENCH, DATA, ERROR, NEED, TELL, WORK, packed, unpacked
from fedatlas.data.batches import examples_of
from fedatlas.engine.executors import Plan, make_executor
from fedatlas.engine.job import Job, Result
from fedatlas.engine.loop import timed
from fedatlas.engine.pool import bare, failed, kept_by, plain_of
from fedatlas.errors import ConfigError, ProtocolError, TransportError
from fedatlas.setup.assembly import Setup
from fedatlas.wire import codec

AHEAD = 2  # units that a node has in hand: it works on one while the next travels
MOST = 8  # jobs per core in a unit
UNIT = 0.25  # seconds that a core should be busy with a unit: a call costs processes of Ray 10 ms
PARCEL = 1 << 25  # bytes that a unit's results should not exceed
PATIENCE = 0.5  # seconds between two looks at who has joined
KEPT = "Everything up to the last checkpoint is kept, continue with: fedatlas run --resume {folder}"
AGAIN = "start one, and continue the run with --resume"

Key = tuple[tuple[str, int], ...]


class Piece(NamedTuple):
    """A job with its place among the jobs of a call; in the order of ``rank`` jobs are dealt, the longest first."""

    rank: tuple[int, int]  # (minus the examples, place)
    job: Job
    key: Key  # equal for jobs with the same message


class Told(NamedTuple):
    """A message of several jobs, which a node is told once."""

    number: int
    message: Mapping[str, Any]  # kept, so that no other object gets its id
    parcel: Any  # in Ray's object store


class Proof:
    """A job of one kind in Ray's object store, and the digest of its result as it is computed here."""

    def __init__(self, piece: Piece, parcel: Any) -> None:
        self.piece, self.parcel, self.digest = piece, parcel, ""


class Carried(NamedTuple):
    """The surroundings of a run on its own machine, for nodes on other machines."""

    hello: Mapping[str, Any]  # its surroundings, as plain values
    data: Any  # its data files with their digests
    pack: Callable[[], tuple[list[str], bytes]]  # their names and copies of them


class Hand:
    """A node as the driver sees it."""

    def __init__(self, node: Node) -> None:
        self.node, self.ready, self.helped = node, False, False  # has it the bench; was it given the data
        self.units = 0  # in hand
        self.shown: dict[str, bool] = {}  # kind -> whether the node's proof has come back
        self.told: dict[int, bool] = {}  # number of a message -> whether the node has it


class Sent(NamedTuple):
    """A call that a node has in hand: a unit of pieces, the proof of a kind, the message of a number, else order or data."""

    hand: Hand
    call: int  # number of the executor's call of `run`
    pieces: tuple[Piece, ...] = ()
    kind: str = ""
    number: int = 0
    data: bool = False


class ClusterExecutor:
    """An executor that runs jobs on nodes, and holds the updates of ``plan.chunk`` clients at once."""

    def __init__(self, plan: Plan, setup: Setup, address: str, carried: Carried, folder: Path) -> None:
        local = make_executor(plan._replace(workers=1), setup.bench, setup.sizes.values())
        self.bench, self.run_job, self.chunk = setup.bench, local.run_job, max(plan.chunk, 1)
        noise = None if setup.bench.protection is None else setup.bench.protection.noising
        self.repeats = noise is None or noise.source == "seed"  # whether a client's result can be computed twice
        self.news: list[str] = []
        order, hello = packed((BENCH, BenchOrder.of(setup, plan), carried.data)), json.dumps(carried.hello).encode()
        self.nodes = Nodes.connect(address, "engine", hello, lambda said: self.news.append(f"Cluster: {said}."))
        self.kept = KEPT.format(folder=folder)
        self.last_words = LastWords(f"{ENDED} {self.kept}")
        self.order, self.carried, self.copies = self.nodes.put(order), carried, None
        self.hands: dict[str, Hand] = {}
        self.refused: dict[str, str] = {}  # node -> why it is left out
        self.proofs: dict[str, Proof] = {}  # by kind of job
        self.sent: dict[Ticket, Sent] = {}
        self.numbers, self.call = itertools.count(1), 0
        self.pace, self.size = UNIT, PARCEL  # seconds of a job and bytes of its result, about
        self._begin()

    def _begin(self) -> None:
        self.call += 1
        self.queue: list[Piece] = []  # not dealt yet
        self.done: dict[int, Result] = {}  # by place
        self.told: dict[Key, Told] = {}
        self.alike: Counter[Key] = Counter()  # jobs by message
        self.deadly: Counter[int] = Counter()  # places of jobs in whose work a node's process died

    def run(self, jobs: Iterable[Job]) -> Iterator[Result]:
        """Yield the results in the order of the jobs. TransportError if the cluster is lost, with how to continue."""
        try:
            yield from self._run(jobs)
        except TransportError as error:
            raise TransportError(f"{error} {self.kept}") from error

    def _run(self, jobs: Iterable[Job]) -> Iterator[Result]:
        self._begin()
        pieces, held = self._pieces(jobs), 0
        for place in itertools.count():
            for piece in itertools.islice(pieces, self.chunk - held):
                insort(self.queue, piece, key=lambda one: one.rank)
                held += 1
            if not held:
                return
            self._deal()
            while place not in self.done:
                self._collect(PATIENCE)
                self._deal()
            self._collect(0)
            held -= 1
            yield self.done.pop(place)

    def noticed(self) -> list[str]:
        """Return the notices since the last call: who joined, was lost or was left out."""
        said, self.news = self.news, []
        return said

    def close(self) -> None:
        """End the workers on all nodes."""
        self.nodes.close()
        self.last_words.take_back()

    def _pieces(self, jobs: Iterable[Job]) -> Iterator[Piece]:
        size, merge = self.bench.local.batch_size, self.bench.local.merge
        for place, job in enumerate(jobs):
            key = tuple((name, id(x)) for name, x in job.message.items())
            self.alike[key] += 1
            yield Piece((-examples_of(job.budget, int(job.facts.n_k), size, merge=merge), place), job, key)

    def _deal(self) -> None:
        """Give every node work while there is some, after a look at who has joined or was lost."""
        alive = {node.id: node for node in self.nodes.alive() if node.id not in self.refused}
        new = [Hand(node) for name, node in alive.items() if name not in self.hands]
        self.hands = {name: hand for name, hand in self.hands.items() if name in alive}
        for hand in new:
            self.hands[hand.node.id] = hand
            self._send(hand, self.order)
        if not self.hands and not self.nodes.coming():
            why = next(reversed(self.refused.values()), "")
            raise ConfigError(why) if why else ProtocolError(f"the cluster has no node left that works: {AGAIN}.")
        for hand in sorted(self.hands.values(), key=lambda one: one.units):
            while hand.ready and hand.units < AHEAD and (pieces := self._unit(hand)):
                self._send(hand, self._parcel(pieces, hand.node.cores), pieces=pieces)
                hand.units += 1
        for proof in self.proofs.values():
            if not proof.digest:  # while the nodes compute it, too
                result = timed(self.run_job, self.bench, proof.piece.job)
                proof.digest, self.pace = digest(plain_of(result)), result.seconds
                self.done[proof.piece.rank[1]] = result

    def _unit(self, hand: Hand) -> tuple[Piece, ...]:
        """Take the next jobs for a node from the queue; () while it must show or be told something first."""
        cores = sum(one.node.cores for one in self.hands.values())
        each = min(UNIT / max(self.pace, 1e-4), PARCEL / max(self.size, 1), len(self.queue) / (AHEAD * cores), MOST)
        pieces = tuple(
            itertools.takewhile(
                lambda one: self._shown(hand, one) and self._knows(hand, one),
                self.queue[: max(int(each), 1) * hand.node.cores],
            )
        )
        del self.queue[: len(pieces)]
        return pieces

    def _shown(self, hand: Hand, piece: Piece) -> bool:
        """Return whether a node has proven itself on a kind of job; one that was not asked yet is asked."""
        kind = piece.job.kind
        if not self.repeats:
            return True
        if kind not in self.proofs:
            alike = [one for one in self.queue if one.job.kind == kind]
            self._prove(alike[len(alike) // 2])
        if kind not in hand.shown:
            hand.shown[kind] = False
            self._send(hand, self.proofs[kind].parcel, kind=kind)
        return hand.shown[kind]

    def _prove(self, piece: Piece) -> None:
        """Take a job out of the queue that is done here and by every node."""
        parcel = packed((WORK, [(bare(piece.job), None)], 1), [dict(piece.job.message), kept_by(piece.job)])
        self.proofs[piece.job.kind] = Proof(piece, self.nodes.put(parcel))
        self.queue.remove(piece)

    def _knows(self, hand: Hand, piece: Piece) -> bool:
        """Return whether a node has the message of a job, where it does not travel with the job; one that does not is told."""
        told = self.told.get(piece.key)
        if told is None:
            if self.alike[piece.key] == 1:
                return True
            number, message = next(self.numbers), piece.job.message
            live = {one.number for one in self.told.values()}
            parcel = self.nodes.put(packed((TELL, number, live), [dict(message)]))
            told = self.told[piece.key] = Told(number, message, parcel)
        if told.number not in hand.told:
            hand.told[told.number] = False
            self._send(hand, told.parcel, number=told.number)
        return hand.told[told.number]

    def _parcel(self, pieces: Iterable[Piece], cores: int) -> Any:
        jobs, values = [], list[Any]()
        for piece in pieces:
            told = self.told.get(piece.key)
            jobs.append((bare(piece.job), None if told is None else told.number))
            values += [dict(piece.job.message)] if told is None else []
            values.append(kept_by(piece.job))
        return packed((WORK, jobs, cores), values)

    def _send(self, hand: Hand, parcel: Any, **what: Any) -> None:
        self.sent[self.nodes.call(hand.node.id, parcel)] = Sent(hand, self.call, **what)

    def _collect(self, timeout: float) -> None:
        """Take the answers that have come; wait at most so many seconds for the first."""
        for ticket, answer in self.nodes.wait(timeout):
            sent = self.sent.pop(ticket)
            sent.hand.units -= bool(sent.pieces)
            if isinstance(answer, Lost):
                self._lost(sent, answer)
            elif isinstance(answer, Failed):
                raise ProtocolError(f"on node {sent.hand.node.host} {answer.reason}; {AGAIN}.")
            elif sent.call == self.call or not sent.pieces:
                self._take(sent, answer)

    def _take(self, sent: Sent, answer: Any) -> None:
        if sent.number:
            sent.hand.told[sent.number] = True
            return
        (what, *rest), values = unpacked(answer)
        if not sent.kind and not sent.pieces:
            self._prepare(sent, what, *rest)
            return
        if what == ERROR:
            client, failure = rest
            raise failed(failure, client)
        if sent.kind:
            sent.hand.shown[sent.kind] = digest({**values[0], **values[1]}) == self.proofs[sent.kind].digest
            if not sent.hand.shown[sent.kind]:
                self._refuse(
                    sent.hand.node, f"computes other bits of a client's work ('{sent.kind}') than this machine"
                )
            return
        for piece, plain, kept in zip(sent.pieces, values[::2], values[1::2], strict=True):
            self.done[piece.rank[1]] = Result(**{**plain, **kept, "work": Work(*plain["work"])})
            self.pace = 0.9 * self.pace + 0.1 * plain["seconds"]
        self.size = len(answer) // len(sent.pieces)

    def _prepare(self, sent: Sent, what: str, why: str = "") -> None:
        """Go on with a node that has made its bench, lacks the data or was given them, or cannot take part."""
        hand = sent.hand
        if what == ERROR or (what == NEED and hand.helped):
            self._refuse(
                hand.node, f"cannot take part: {why or 'it finds other data than the copies that it was given'}"
            )
        elif what == NEED:
            if self.copies is None:
                self.copies = self.nodes.put(packed((DATA, self.carried.data, *self.carried.pack())))
            hand.helped = True
            self._send(hand, self.copies, data=True)
        elif sent.data:
            self._send(hand, self.order)
        else:
            hand.ready = True

    def _lost(self, sent: Sent, lost: Lost) -> None:
        """Put the jobs that a node had in hand back; one in whose work a second process died ends the run."""
        if self.hands.get(sent.hand.node.id) is sent.hand:
            del self.hands[sent.hand.node.id]  # if it comes back, its process is another one
        for piece in sent.pieces if sent.call == self.call else ():
            insort(self.queue, piece, key=lambda one: one.rank)
            self.deadly[piece.rank[1]] += lost.died
            if self.deadly[piece.rank[1]] > 1:
                raise ProtocolError(
                    f"the process that trained client {piece.job.client} on node {sent.hand.node.host} died ({lost.reason}), "
                    "and so did one before (perhaps for lack of memory; start Ray there with fewer --num-cpus); continue the "
                    "run with --resume."
                )

    def _refuse(self, node: Node, why: str) -> None:
        self.refused[node.id] = f"node {node.host} {why.rstrip('.')}; it is left out."
        self.news.append(f"Cluster: {self.refused[node.id]}")


def digest(plain: Mapping[str, Any]) -> str:
    """Return a hash of a result but for its seconds."""
    value = {key: plain[key] for key in sorted(plain) if key not in ("seconds", "sealing")}
    return hashlib.sha256(codec.encode(value)).hexdigest()


def on_cluster(address: str, carried: Carried, plan: Plan, setup: Setup, folder: Path) -> ClusterExecutor | None:
    """Return the executor of a plan on the cluster at ``address``; None if its clients train in one stack.

    ConfigError if there is no cluster, or if no node can be shown to compute as this machine does.
    """
    return None if plan.step == "stacked" else ClusterExecutor(plan, setup, address, carried, folder)

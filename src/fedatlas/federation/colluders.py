"""Colluders of one ask: their results are held until everything that they know has come; then they decide, and seal.

Their local work is a job like any other, so honest clients keep their stacks and their bits. Its result brings only where it
ended. Attackers of one table whose changes have the same shape send one change (`attacks.collusion.Craft`), each from the
model that it was told. It is sealed by the executor's own `finish`, in this process. Their replies come last; the server half
puts replies in the order of seats.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor

from fedatlas.aggregation.changes import finite, flat, rebuilt, shape_of
from fedatlas.attacks.collusion import Scene
from fedatlas.engine.attackers import Order, waits_for_others
from fedatlas.engine.failing import guarded
from fedatlas.engine.job import Bench, Job, Result, finish, prepare
from fedatlas.federation.link import Request
from fedatlas.rng import torch_stream
from fedatlas.tree import Tree

Shape = Any
"""Names and shapes of a model."""


class HonestWork(NamedTuple):
    """A client's honest work, copied."""

    shape: Shape
    change: Tensor  # (d,), float64
    start: Tree
    end: Tree
    buffers: Tree

    @classmethod
    def of(cls, ended: Mapping[str, Any], anchor: Tree | None) -> HonestWork:
        """Copy what a result brought. ``anchor``: the start of the chain that attacks as a whole; None if there is none."""
        end = Tree(ended["end"]).clone()
        told = ended["start"] if anchor is None else {**ended["start"], **anchor}
        start = Tree({name: told[name] for name in end if name in told}).clone()
        return cls(shape_of(end), flat(end, start), start, end, Tree(ended["buffers"]).clone())

    def sending(self, change: Tensor) -> Tree:
        """Return the model that a client claims to have reached; its own, bit for bit, if ``change`` is its own."""
        moved, start = rebuilt(change, self.end), self.start
        whole = {name: x + start[name].double() if name in start else x for name, x in moved.items()}
        return Tree({name: x.to(self.end[name].dtype) for name, x in whole.items()})


class WaitingAttacker(NamedTuple):
    """The result of an attacker that waits for others."""

    attack: str
    request: Request
    job: Job
    result: Result
    ended: HonestWork


class Colluders:
    """The colluding attackers of one ask. ``orders``: those of its requests."""

    def __init__(self, bench: Bench, requests: Sequence[Request], orders: Iterable[Order | None]) -> None:
        self.bench, self.n = bench, len(requests)
        ordered = [bench.attackers[order.attack] for order in orders if order is not None and order.sends]
        self.watched = any(one.craft is not None and one.omniscient for one in ordered)
        self.jobs: dict[int, Job] = {}  # of attackers that wait
        self.held: list[WaitingAttacker] = []
        self.seen: dict[int, HonestWork] = {}  # honest clients, if an attacker is omniscient

    def marked(self, request: Request, job: Job) -> Job:
        """Return a job as it is done: an honest one also brings its end if an attacker is omniscient."""
        if waits_for_others(self.bench.attackers, job.order):
            self.jobs[request.client] = job
        return job._replace(shown=True) if self.watched and job.order is None else job

    def hold(self, request: Request, result: Result) -> bool:
        """Note a result, and return whether it is held back. An attacker whose work failed is left to itself."""
        if result.ended is None or result.lost:
            return False
        job = self.jobs.get(request.client)
        chained = job is None or (job.order is not None and job.order.chained)
        ended = HonestWork.of(result.ended, request.anchor if chained else None)
        if job is None:
            self.seen |= {request.client: ended} if finite(ended.change) else {}
            return False
        assert job.order is not None
        self.held.append(WaitingAttacker(job.order.attack, request, job, result, ended))
        return True

    def decided(self) -> Iterator[tuple[Request, Result]]:
        """Yield the sealed results of all that were held, those of one coalition after another."""
        coalitions: dict[Any, list[WaitingAttacker]] = {}
        for one in self.held:
            coalitions.setdefault((one.attack, one.ended.shape), []).append(one)
        for mine in coalitions.values():
            sent = self._agreed(mine)
            for one in mine:
                end = one.ended.end if sent is None else one.ended.sending(sent)
                done = guarded(partial(concluded, end, one.ended.buffers, one.result), self.bench, one.job)
                yield one.request, done._replace(seconds=one.result.seconds + done.sealing)

    def _agreed(self, mine: Sequence[WaitingAttacker]) -> Tensor | None:
        """Return the change that a coalition sends; None if each of its attackers sends its honest one."""
        attack, _, job, _, ended = mine[0]
        attacker = self.bench.attackers[attack]
        own = {one.request.client: one.ended.change for one in mine if finite(one.ended.change)}
        if attacker.craft is None or attacker.aggregate is None or not own:
            return None
        others = {k: one.change for k, one in self.seen.items() if attacker.omniscient and one.shape == ended.shape}
        stream = torch_stream(job.seed, "attack", int(job.facts.round), "together", attack, job.what)
        return attacker.craft(Scene(own, others, self.n, attacker.aggregate, stream))


def concluded(end: Tree, buffers: Tree, before: Result, bench: Bench, job: Job) -> Result:
    """Return the sealed result of an attacker's job that claims to have ended at ``end``; ``before``: its honest work."""
    own = bench.of(job)
    return finish(own, job, prepare(own, job), end, buffers, before.work)

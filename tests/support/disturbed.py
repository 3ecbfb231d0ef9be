"""A simulator between whose two halves a test stands: replies are lost, turned round, doubled, held back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fedatlas.engine.job import Bench, Executor
from fedatlas.engine.loop import SerialExecutor
from fedatlas.federation.client_states import PartyState
from fedatlas.federation.in_process import InProcess
from fedatlas.federation.link import Reply, Request
from fedatlas.wire import codec
from federation import Federation

MEANS = (
    "fedsgd",
    "fedavg",
    "fedavgm",
    "fedadagrad",
    "fedadam",
    "fedyogi",
    "fedprox",
    "feddyn",
    "scaffold",
    "moon",
    "fednova",
    "hwfedavg",
    "nwfedavg",
    "ditto",
    "fedbn",
    "fedmd",
)
"""The algorithms whose server needs a mean or a sum in every round."""


PLAN = [(0, 1, 2), (1, 2, 3), (0, 3, 4), (0, 1, 3)]


class Between(InProcess):
    """A simulator whose replies a test may lose, turn round, double or hold back on their way."""

    @classmethod
    def of(cls, fed: Federation, make: Callable[[Bench], Executor] = SerialExecutor, **options: Any) -> Between:
        sizes = {k: r.n for k, r in fed.held.items()}
        return cls(fed.bench, make(fed.bench), PartyState(), sizes, 1, **options)

    lost: Callable[[Request], bool] = staticmethod(lambda request: False)
    way: Callable[[list[Reply]], list[Reply]] = staticmethod(lambda replies: replies)

    def __call__(self, requests: Sequence[Request], deadline: float | None) -> Iterator[Reply]:
        held = []
        for request, reply in zip(requests, super().__call__(requests, deadline), strict=True):
            if not self.lost(request):
                held.append(reply._replace(update=codec.decode(codec.encode(dict(reply.update)))))
        yield from self.way(held)
